//! What a node has promised or belongs to, when the power goes.

use duramen_sim::SimDisk;
use duramen_storage::storage::{Facts, Voter};
use duramen_storage::{Options, Storage};

const CLUSTER: [u8; 16] = [7; 16];

fn options() -> Options {
    Options {
        facts: Facts { cluster_id: [0; 16], broker_id: 1, directory_id: [1; 16] },
        extent_bytes: 64 * 1024,
        extents_max: 4,
        replicas_an_extent: 128,
        journal_payload_max: 4096,
        index_interval_bytes: 512,
        free_bytes_min: 0,
        reserve_bytes: 0,
        open_files_max: 16,
        recovered_at_once: 1,
    }
}

fn voters() -> Vec<Voter> {
    let voter = |id: u8| Voter { peer_id: id.into(), broker_id: id.into(), directory_id: [id; 16] };
    (1..=3).map(voter).collect()
}

/// The cluster that a directory belongs to, and how many voters it knows.
fn open(disk: &SimDisk) -> (Storage<SimDisk>, [u8; 16], usize) {
    let (storage, found) = Storage::open(disk.clone(), options()).expect("the disk is good");
    (storage, found.facts.cluster_id, found.voters.len())
}

#[test]
fn what_was_promised_or_joined_survives_and_a_crash_on_the_way_leaves_either() {
    let mut between = 0;
    for seed in 0..200 {
        let disk = SimDisk::new(seed);
        let (mut storage, cluster, known) = open(&disk);
        assert_eq!((cluster, known), ([0; 16], 0));
        storage.join(None, &voters()).expect("it has promised");
        drop(storage);
        let disk = disk.power_loss();
        let (mut storage, cluster, known) = open(&disk);
        assert_eq!((cluster, known), ([0; 16], 3), "seed {seed}: the promise is kept");

        disk.crash_in(Some(1 + seed % 9));
        let joined = storage.join(Some(CLUSTER), &voters());
        drop(storage);
        let disk = disk.power_loss();
        disk.crash_in(None);
        let (_, cluster, known) = open(&disk);
        assert!(cluster == CLUSTER || cluster == [0; 16], "seed {seed}: {cluster:?}");
        assert_eq!(known, 3, "seed {seed}: the promise is kept");
        assert!(
            joined.is_err() || cluster == CLUSTER,
            "seed {seed}: it was told that it is a member"
        );
        between += usize::from(joined.is_err());
    }
    assert!(between > 50, "crashes did happen on the way: {between}");
}
