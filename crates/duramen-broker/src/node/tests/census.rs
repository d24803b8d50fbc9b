//! What a census for metrics counts.

use std::collections::BTreeMap;

use duramen_protocol::messages::offset_commit::OffsetCommitRequestPartition;

use super::groups::{commit, commit_request, committed, find};
use super::harness::{Harness, batch, new_topic};
use super::trio::Trio;
use crate::limits::{CENSUS_SLICE, PEER_SILENT_TICKS, TICK_US};
use crate::node::Node;
use crate::node::census::{
    Census, Counted, GroupCounted, Led, NodeCounted, OffsetCounted, ReplicaCounted, TopicCounted,
};

/// Silence after which a node counts as gone.
const SILENT_MS: u64 = (PEER_SILENT_TICKS + 2) * TICK_US / 1000;

fn census(node: &Node) -> Vec<Counted> {
    let (mut census, mut all) = (Census::default(), Vec::new());
    while let Some(rows) = node.count(&mut census) {
        assert!(rows.len() <= CENSUS_SLICE, "{} rows at once", rows.len());
        all.extend(rows);
    }
    all
}

fn node_row(rows: &[Counted]) -> &NodeCounted {
    let found = rows.iter().find_map(|it| if let Counted::Node(it) = it { Some(it) } else { None });
    found.expect("a node")
}

fn replicas<'a>(rows: &'a [Counted], topic: &str) -> BTreeMap<i32, &'a ReplicaCounted> {
    let row = |it: &'a Counted| if let Counted::Replica(it) = it { Some(it) } else { None };
    let mut all = BTreeMap::new();
    for row in rows.iter().filter_map(row).filter(|it| it.topic == topic) {
        assert!(all.insert(row.partition, row).is_none(), "{topic}-{} comes once", row.partition);
    }
    all
}

/// Partitions of a topic of the cluster: all, without a leader, with another than the preferred one.
fn topic_row(rows: &[Counted], topic: &str) -> (u64, u64, u64) {
    let row = |it: &Counted| match it {
        Counted::Topic(TopicCounted { topic: name, partitions, leaderless, not_preferred }) => {
            (name == topic).then_some((*partitions, *leaderless, *not_preferred))
        }
        _ => None,
    };
    let parts = rows.iter().filter_map(row);
    parts.fold((0, 0, 0), |all, it| (all.0 + it.0, all.1 + it.1, all.2 + it.2))
}

fn offsets(rows: &[Counted], group: &str) -> Vec<OffsetCounted> {
    let row = |it: &Counted| match it {
        Counted::Offset(it) if &*it.group == group => Some(it.clone()),
        _ => None,
    };
    rows.iter().filter_map(row).collect()
}

#[test]
fn a_census_counts_each_replica_once_with_its_traffic() {
    let mut it = Harness::new(&[]);
    let many = i32::try_from(2 * CENSUS_SLICE + 7).expect("few");
    assert_eq!(it.try_create(new_topic("many", many, &[])).topics[0].error_code, 0);
    it.create("t", &[("min.insync.replicas", "2")]);
    let size = batch(&["a", "b"]).len() as u64;
    assert_eq!(it.produce("t", batch(&["a", "b"])).error_code, 0);
    assert_eq!(it.produce("t", batch(&["c", "d"])).error_code, 0);
    it.produce("t", bytes::Bytes::from_static(b"rubbish"));
    assert_eq!(it.fetch("t", 0).high_watermark, 4);
    assert_ne!(it.fetch("t", 99).error_code, 0);
    let rows = census(&it.node);
    assert_eq!(replicas(&rows, "many").len(), usize::try_from(many).expect("few"));
    let t = replicas(&rows, "t")[&0];
    assert_eq!((t.log_start, t.high_watermark, t.bytes, t.segments), (0, 4, 2 * size, 1));
    assert_eq!((t.traffic.appended_records, t.traffic.appended_bytes), (4, 2 * size));
    assert_eq!((t.traffic.appends, t.traffic.appends_refused), (2, 0), "rubbish is of no log");
    assert_eq!((t.traffic.reads, t.traffic.reads_refused), (2, 1));
    // A bound above the number of replicas counts as that number.
    let led = Led { replicas: 1, in_sync: 1, in_sync_min: 1, is_preferred: true };
    assert_eq!(t.led, Some(led));
    assert_eq!(topic_row(&rows, "many"), (u64::try_from(many).expect("few"), 0, 0));
    let node = node_row(&rows);
    assert!(node.leads_metadata && node.metadata_leader == Some(node.broker_id), "{node:?}");
    assert_eq!(node.brokers.len(), 1);
}

#[test]
fn a_full_disk_refuses_batches_of_the_topic() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.storage(duramen_storage::op::Done::DiskFull(Some(super::harness::SHORTAGE)));
    assert_ne!(it.produce("t", batch(&["a"])).error_code, 0);
    let rows = census(&it.node);
    let traffic = replicas(&rows, "t")[&0].traffic;
    assert_eq!((traffic.appends, traffic.appends_refused, traffic.appended_records), (1, 1, 0));
}

#[test]
fn a_census_counts_groups_and_their_offsets_once_however_many_there_are() {
    let mut it = Harness::new(&[("offsets.topic.num.partitions", "3")]);
    find(&mut it);
    let many = i32::try_from(2 * CENSUS_SLICE + 7).expect("few");
    assert_eq!(it.try_create(new_topic("many", many, &[])).topics[0].error_code, 0);
    it.create("t", &[]);
    it.produce("t", batch(&["a", "b", "c"]));
    let mut request = commit_request("large", "many", 0);
    let part =
        |partition_index| OffsetCommitRequestPartition { partition_index, ..Default::default() };
    request.topics[0].partitions = (0..many).map(part).collect();
    let id = it.send(request, 8);
    assert_eq!(committed(it.response(id)), duramen_protocol::ErrorCode::None);
    for at in 0..2 * CENSUS_SLICE {
        commit(&mut it, &format!("small-{at}"), "t", 1);
    }
    let rows = census(&it.node);
    let places: Vec<_> = offsets(&rows, "large").iter().map(|it| it.partition).collect();
    assert_eq!(places, (0..many).collect::<Vec<_>>());
    for at in 0..2 * CENSUS_SLICE {
        let group = format!("small-{at}");
        let [offset] = &offsets(&rows, &group)[..] else { panic!("{group}") };
        assert_eq!((&*offset.topic, offset.offset), ("t", 1));
        assert_eq!(offset.log, Some((it.replica("t"), 0, 3)));
    }
    let is_group = |it: &&Counted| {
        matches!(
            it,
            Counted::Group(GroupCounted { kind: "classic", state: "Empty", members: 0, .. })
        )
    };
    assert_eq!(rows.iter().filter(is_group).count(), 2 * CENSUS_SLICE + 1);
}

#[test]
fn leaders_know_who_is_in_sync_and_the_leader_of_the_metadata_who_has_no_leader() {
    let mut trio = Trio::new(&[]);
    trio.create_with("t", 6, &[("min.insync.replicas", "2")]);
    let gone = (trio.controller() + 1) % 3;
    let there: Vec<usize> = (0..3).filter(|at| *at != gone).collect();
    trio.cut.insert(gone);
    trio.pass_ms(SILENT_MS + 5000);
    let all: Vec<_> = there.iter().map(|at| census(&trio.nodes[*at].node)).collect();
    let led: Vec<Led> = all
        .iter()
        .flat_map(|rows| replicas(rows, "t").into_values().filter_map(|it| it.led))
        .collect();
    assert_eq!(led.len(), 6, "both others lead all partitions");
    assert!(led.iter().all(|it| (it.replicas, it.in_sync, it.in_sync_min) == (3, 2, 2)), "{led:?}");
    let counted: Vec<_> = all.iter().map(|rows| topic_row(rows, "t")).collect();
    assert!(counted.contains(&(0, 0, 0)), "one does not lead the metadata");
    assert!(counted.contains(&(6, 0, 2)), "another is not preferred by two: {counted:?}");
    let heard = |rows| node_row(rows).brokers.iter().filter(|it| it.2).count();
    assert!(all.iter().all(|rows| heard(rows) == 2 && node_row(rows).brokers.len() == 3));
    let leads = |rows: &&Vec<Counted>| node_row(rows).leads_metadata;
    assert_eq!(all.iter().filter(leads).count(), 1);
}
