//! # Room card: freezing
//!
//! Purpose:    keep the files of a running node as they are at one moment, for `duramen backup`.
//! Owns:       the folder `backup` of the data directory, with hard links to the files and the moment's state.
//! Interface:  [`freeze`], [`thaw`].
//! Invariants: a link is to a file of the replica that the moment names: storage still knew that file after the link
//!             was made. There is one folder at a time, and none after a start.
//! Never:      a copy, or a check of content (see `cli::backup`).
//! Tests:      `tests/cli/backup.rs`.
//! Start at:   [`freeze`].

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use duramen_broker::event::BackupPlan;
use duramen_protocol::ErrorCode;
use duramen_protocol::messages::BeginBackupResponse;
use duramen_storage::ReplicaId;
use duramen_storage::backup::Moment;
use tokio::sync::{Mutex, oneshot};

use super::inbox::Inbox;
use super::threads::Work;

/// Folder of the data directory that holds frozen files.
pub const FOLDER: &str = "backup";
/// File in it with the state of all replicas.
pub const STATE: &str = "state";

/// Requests take turns, because there is one folder.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// Reason for which nothing was frozen.
enum Refusal {
    /// The node went on too fast: ask for a later moment.
    Later(&'static str),
    Disk(String, io::Error),
}

/// Completes a `BeginBackup`: finds the moment, and links its files.
pub async fn freeze(work: &Inbox<Work>, root: &Path, plan: BackupPlan) -> BeginBackupResponse {
    let BackupPlan { mut response, commits } = plan;
    let _turn = ONE_AT_A_TIME.lock().await;
    match frozen(work, root, Arc::new(commits)).await {
        Ok(path) => response.path = path,
        Err(refusal) => {
            let (code, why) = match refusal {
                Refusal::Later(why) => (ErrorCode::OperationNotAttempted, why.to_owned()),
                Refusal::Disk(path, error) => {
                    tracing::error!(path, %error, "cannot keep files for a backup");
                    (ErrorCode::KafkaStorageError, format!("{path}: {error}"))
                }
            };
            response.error_code = code.code();
            response.error_message = Some(why);
        }
    }
    response
}

async fn frozen(
    work: &Inbox<Work>,
    root: &Path,
    commits: Arc<BTreeMap<ReplicaId, u64>>,
) -> Result<String, Refusal> {
    let (sender, moment) = oneshot::channel();
    work.push(Work::Moment(commits, sender));
    // Without an answer the storage thread has ended.
    let moment = moment.await.ok().flatten();
    let moment = Arc::new(*moment.ok_or(Refusal::Later("a log went on before it could be cut"))?);
    let linked = Arc::clone(&moment);
    let folder = root.join(FOLDER);
    let linking = tokio::task::spawn_blocking(move || link(&folder, &linked)).await;
    linking.expect("linking does not panic, nor is it cancelled")?;
    let (sender, is_same) = oneshot::channel();
    work.push(Work::HasFiles(moment, sender));
    if !is_same.await.unwrap_or(false) {
        return Err(Refusal::Later("files changed while they were linked"));
    }
    Ok(FOLDER.to_owned())
}

/// Removes what an earlier backup left. Its links keep the room of files that are removed meanwhile.
pub fn thaw(root: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(root.join(FOLDER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Links the files of a moment into the folder, and writes its state there.
fn link(folder: &Path, moment: &Moment) -> Result<(), Refusal> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error| Refusal::Disk(path, error)
    };
    let root = folder.parent().unwrap_or(Path::new("."));
    thaw(root).map_err(failed(folder))?;
    std::fs::create_dir(folder).map_err(failed(folder))?;
    let mut made: Option<PathBuf> = None;
    for file in moment.files() {
        let (from, to) = (root.join(&file.path), folder.join(&file.path));
        let dir = to.parent().map(Path::to_owned);
        if let Some(new) = dir.filter(|dir| made.as_ref() != Some(dir)) {
            std::fs::create_dir_all(&new).map_err(failed(&new))?;
            made = Some(new);
        }
        match std::fs::hard_link(&from, &to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Refusal::Later("a file was removed before it was linked"));
            }
            linked => linked.map_err(failed(&from))?,
        }
    }
    let state = folder.join(STATE);
    std::fs::write(&state, moment.encode()).map_err(failed(&state))
}
