//! # Room card: plans
//!
//! Purpose:    answers that the node planned and the disk completes.
//! Owns:       on which thread a plan is read; who reads sequentially.
//! Interface:  [`resolve`], [`Resolved`], [`Trail`].
//! Invariants: bytes that were not checked since the process started are checked before they leave,
//!             on a thread that may wait.
//! Never:      the meaning of a plan (`duramen_broker::read_plan`).
//! Tests:      `tests/`, `compat/`.
//! Start at:   [`resolve`].

use std::collections::HashMap;
use std::sync::Arc;

use duramen_broker::event::{FetchPlan, Reply, SharePlan};
use duramen_broker::read_plan;
use duramen_protocol::{ErrorCode, Response};
use duramen_storage::Reader;
use duramen_storage::op::ReplicaId;
use duramen_storage::reader::FileRange;

use super::disk::{RealDisk, RealFile};
use super::freezing;
use super::inbox::Inbox;
use super::metrics::Metrics;
use super::sending::{FilePart, READ_AHEAD};
use super::threads::Work;

/// Files a connection is remembered to have read; above this it starts anew.
const TRAIL_MAX: usize = 4096;

/// A reply ready to be encoded.
#[derive(Debug, Default)]
pub struct Resolved {
    /// The response; `None` if nothing is sent.
    pub response: Option<Response>,
    /// File parts that fill the response's holes, by their ids.
    pub files: Vec<FilePart>,
}

/// End of a connection's reads of each file: a read that goes on there is sequential.
#[derive(Debug, Default)]
pub struct Trail(HashMap<usize, u64>);

impl Trail {
    fn follow(&mut self, file: usize, at: u64, end: u64) -> bool {
        if self.0.len() >= TRAIL_MAX && !self.0.contains_key(&file) {
            self.0.clear();
        }
        self.0.insert(file, end) == Some(at)
    }

    fn goes_on(&self, file: usize, at: u64) -> bool {
        self.0.get(&file) == Some(&at)
    }
}

/// Completes a reply. Lookups are a few reads of index pages, so they are made here; bytes that
/// have to be checked first, and lookups by time, which may read a segment, go to a thread that may
/// wait.
pub async fn resolve(
    (reader, work): (&Reader<RealDisk>, &Inbox<Work>),
    metrics: &Arc<Metrics>,
    reply: Reply,
    trail: &mut Trail,
) -> Resolved {
    match reply {
        Reply::Nothing { .. } => Resolved::default(),
        Reply::Response(response) => Resolved { response: Some(*response), files: Vec::new() },
        Reply::Fetch(plan) => fetch(reader, metrics, *plan, trail).await,
        Reply::ShareFetch(plan) => {
            for part in &plan.parts {
                metrics.tallies.note_sent(part.replica, part.bytes);
            }
            share(reader, *plan, trail).await
        }
        Reply::ListOffsets(plan) => {
            let reader = reader.clone();
            let response = waiting(move || read_plan::list_offsets(&reader, *plan)).await;
            Resolved { response: Some(response.into()), files: Vec::new() }
        }
        Reply::Native(_) => unreachable!("a session reads no operation of the native API"),
        Reply::Replicas(plan) => {
            let reader = reader.clone();
            let response = waiting(move || read_plan::digests(&reader, *plan)).await;
            Resolved { response: Some(response.into()), files: Vec::new() }
        }
        Reply::Backup(plan) => {
            let response = freezing::freeze(work, reader.disk().path(), *plan).await;
            Resolved { response: Some(response.into()), files: Vec::new() }
        }
        Reply::LogDirs(mut response) => {
            let disk = reader.disk().clone();
            let volume = waiting(move || disk.volume()).await;
            for dir in &mut response.results {
                match &volume {
                    Ok(volume) => (dir.total_bytes, dir.usable_bytes) = *volume,
                    Err(error) => {
                        tracing::error!(%error, "cannot read the size of the volume");
                        dir.error_code = ErrorCode::KafkaStorageError.code();
                    }
                }
            }
            Resolved { response: Some((*response).into()), files: Vec::new() }
        }
    }
}

async fn fetch(
    reader: &Reader<RealDisk>,
    metrics: &Arc<Metrics>,
    plan: FetchPlan,
    trail: &mut Trail,
) -> Resolved {
    let unchecked = unchecked(reader, &plan, trail);
    let (response, ranges) = if unchecked.is_empty() {
        read_plan::fetch_ranges(reader, plan, |replica, len| note(metrics, replica, len))
    } else {
        let (reader, metrics) = (reader.clone(), Arc::clone(metrics));
        waiting(move || {
            for (file, at, len, ahead) in unchecked {
                file.read_ahead(at, len, ahead);
            }
            read_plan::fetch_ranges(&reader, plan, |replica, len| note(&metrics, replica, len))
        })
        .await
    };
    Resolved { files: parts(ranges, trail), response: Some(response.into()) }
}

/// Counts bytes that are found for a response.
fn note(metrics: &Metrics, replica: ReplicaId, len: usize) {
    metrics.tallies.note_sent(replica, len as u64);
}

/// Reads batches for a consumer of a share group. They were surveyed, and so checked, a moment ago, unless they are
/// delivered again.
async fn share(reader: &Reader<RealDisk>, plan: SharePlan, trail: &mut Trail) -> Resolved {
    let is_checked = plan.parts.iter().all(|part| {
        let located = reader.locate(part.replica, part.from, part.end, u32::MAX, true);
        matches!(located, Ok(Some(range)) if range.verified && u64::from(range.len) == part.bytes)
    });
    let (response, ranges) = if is_checked {
        read_plan::share_ranges(reader, plan)
    } else {
        let reader = reader.clone();
        waiting(move || read_plan::share_ranges(&reader, plan)).await
    };
    Resolved { files: parts(ranges, trail), response: Some(response.into()) }
}

fn parts(ranges: Vec<FileRange<RealFile>>, trail: &mut Trail) -> Vec<FilePart> {
    let part = |range: FileRange<RealFile>| {
        let len = u64::from(range.len);
        let is_sequential = trail.follow(range.file.identity(), range.at, range.at + len);
        FilePart { file: range.file, at: range.at, len, is_sequential }
    };
    ranges.into_iter().map(part).collect()
}

/// Returns the ranges that have to be read and checked before they are sent, with the bytes that a sequential reader
/// will want next.
fn unchecked(
    reader: &Reader<RealDisk>,
    plan: &FetchPlan,
    trail: &Trail,
) -> Vec<(RealFile, u64, u64, u64)> {
    let mut unchecked = Vec::new();
    let mut budget = plan.bytes_max;
    for part in &plan.parts {
        let limit = part.bytes_max.min(budget);
        let located = reader.locate(part.replica, part.offset, part.end, limit, true);
        // A range that cannot be located is not read; the plan's own lookup says why.
        let Ok(Some(range)) = located else { continue };
        budget = budget.saturating_sub(range.len);
        if !range.verified {
            let len = u64::from(range.len);
            let ahead = if trail.goes_on(range.file.identity(), range.at) { READ_AHEAD } else { 0 };
            unchecked.push((range.file, range.at, len, ahead));
        }
        if budget == 0 {
            break;
        }
    }
    unchecked
}

/// Runs `work` on a thread that may wait for the disk.
pub(crate) async fn waiting<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("a read does not panic, nor is it cancelled")
}
