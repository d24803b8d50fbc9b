//! Parts that tests of storage share: small options, and work until nothing is under way.

use duramen_sim::SimDisk;
use duramen_storage::indexing::Limits;
use duramen_storage::op::Identity;
use duramen_storage::storage::{Error, Facts, Options};
use duramen_storage::{Done, Storage};

/// Returns options with small sizes.
pub(crate) fn options() -> Options {
    Options {
        facts: Facts { cluster_id: [1; 16], broker_id: 1, directory_id: [2; 16] },
        extent_bytes: 64 * 1024,
        extents_max: 8,
        replicas_an_extent: 1000,
        journal_payload_max: 4096,
        index_interval_bytes: 512,
        free_bytes_min: 0,
        reserve_bytes: 4096,
        open_files_max: 64,
        recovered_at_once: 1,
    }
}

/// Returns limits of an index with small sizes.
pub(crate) fn index_limits(seed: u64) -> Limits {
    Limits {
        memtable_bytes: (2048, 4096),
        rest_bytes: 512,
        log_bytes: (4096, 8192),
        step_bytes: 700,
        block_bytes: 256,
        merge_width: 3,
        class_bytes: 1024,
        merge_bytes: 300,
        free_bytes_min: 0,
        touched: 4,
        seed,
    }
}

/// Returns the identity of the one log.
pub(crate) fn identity() -> Identity {
    Identity { topic: "t".into(), topic_id: [5; 16], partition: 0 }
}

/// Brings all that is under way to its end, and returns the reports. `answer` may give storage what a report asks for.
pub(crate) fn settle(
    storage: &mut Storage<SimDisk>,
    disk: &SimDisk,
    mut answer: impl FnMut(&mut Storage<SimDisk>, &Done),
) -> Result<Vec<Done>, Error> {
    let mut all = Vec::new();
    for _ in 0..1000 {
        let mut requests = Vec::new();
        if let Some(round) = storage.begin_round()? {
            requests.push(round);
            requests.extend(storage.write_segments()?);
        }
        requests.extend(storage.maintain(true)?);
        for request in requests {
            let result = request.run(disk);
            storage.on_sync(request.id, result)?;
        }
        let done = storage.take_done();
        for done in &done {
            answer(storage, done);
        }
        all.extend(done);
        if storage.is_quiet() {
            return Ok(all);
        }
    }
    panic!("it never becomes quiet")
}
