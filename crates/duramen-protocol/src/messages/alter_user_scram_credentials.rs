//! `AlterUserScramCredentials` (key 51): sets and removes SCRAM credentials of users (KIP-554).

use bytes::Bytes;

use crate::messages::declare::declare;
use crate::wire::Secret;

declare! {
    /// Request of `AlterUserScramCredentials`.
    pub struct AlterUserScramCredentialsRequest: versions 0..=0, flexible 0.. {
        deletions: Vec<ScramCredentialDeletion> [0..],
        upsertions: Vec<ScramCredentialUpsertion> [0..],
    }

    /// Stands in [`AlterUserScramCredentialsRequest::deletions`].
    pub struct ScramCredentialDeletion {
        name: String [0..],
        mechanism: i8 [0..],
    }

    /// Stands in [`AlterUserScramCredentialsRequest::upsertions`].
    pub struct ScramCredentialUpsertion {
        name: String [0..],
        mechanism: i8 [0..],
        iterations: i32 [0..],
        salt: Bytes [0..],
        salted_password: Secret [0..],
    }

    /// Response of `AlterUserScramCredentials`.
    pub struct AlterUserScramCredentialsResponse: versions 0..=0, flexible 0.. {
        throttle_time_ms: i32 [0..],
        results: Vec<AlterUserScramCredentialsResult> [0..],
    }

    /// Stands in [`AlterUserScramCredentialsResponse::results`].
    pub struct AlterUserScramCredentialsResult {
        user: String [0..],
        error_code: i16 [0..],
        error_message: Option<String> [0.., nullable 0..],
    }
}
