//! CPU time of processes.

use std::fs;
use std::time::Duration;

use anyhow::Context;

/// Returns the time that all threads of a process have run, to the nanosecond.
pub(crate) fn ran(pid: u32) -> anyhow::Result<Duration> {
    let tasks = format!("/proc/{pid}/task");
    let mut sum = 0;
    for task in fs::read_dir(&tasks).with_context(|| tasks.clone())? {
        // A thread may have ended since.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        sum += text.split_whitespace().next().and_then(|it| it.parse().ok()).unwrap_or(0_u64);
    }
    Ok(Duration::from_nanos(sum))
}
