//! `BeginBackup` (key 10003, ours): the files of a node, kept as they are at one moment, for a program on its machine.
//!
//! The node links the files of all its replicas into a folder of its data directory, and answers with the folder's
//! path. The folder stays until the next such request or start, or until the program removes it.
//!
//! Errors are `CLUSTER_AUTHORIZATION_FAILED`, `REPLICA_NOT_AVAILABLE` where the node lacks a whole replica of some
//! partition (unless `partial`), `OPERATION_NOT_ATTEMPTED` where the program should ask again, and
//! `KAFKA_STORAGE_ERROR`.

use crate::messages::declare::declare;
use crate::wire::Uuid;

declare! {
    /// Request of `BeginBackup`.
    pub struct BeginBackupRequest: versions 0..=0, flexible 0.. {
        partial: bool [0..],
    }

    /// Response of `BeginBackup`. The path is relative to the data directory.
    pub struct BeginBackupResponse: versions 0..=0, flexible 0.. {
        throttle_time_ms: i32 [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
        directory_id: Uuid [0..],
        path: String [0..],
        missing: Vec<String> [0..],
    }
}
