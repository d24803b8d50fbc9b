use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_executor::block_on;
use rdkafka::ClientContext;
use rdkafka::admin::AdminOptions;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{
    BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance, RebalanceProtocol,
};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::Message;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use suite::{unique, until};

use crate::{PATIENCE, admin, config, must_produce, new_topic, numbered, refused};

/// What a member has, what was ever taken from it, what it has read.
#[derive(Default)]
struct Seen {
    assigned: BTreeSet<i32>,
    revoked: Vec<i32>,
    values: Vec<String>,
    errors: Vec<rdkafka::error::KafkaError>,
}

#[derive(Clone, Default)]
struct Watch(Arc<Mutex<Seen>>);

impl ClientContext for Watch {}

impl ConsumerContext for Watch {
    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let mut seen = self.0.lock().expect("no panic");
        let partitions = |list: &TopicPartitionList| {
            list.elements().iter().map(|one| one.partition()).collect::<Vec<_>>()
        };
        match rebalance {
            Rebalance::Assign(list) => {
                if !matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative) {
                    seen.assigned.clear();
                }
                seen.assigned.extend(partitions(list));
            }
            Rebalance::Revoke(list) => {
                for partition in partitions(list) {
                    seen.assigned.remove(&partition);
                    seen.revoked.push(partition);
                }
            }
            Rebalance::Error(error) => seen.errors.push(error.clone()),
        }
    }
}

/// A consumer on a thread of its own, until it leaves.
struct Member {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    running: Option<JoinHandle<()>>,
}

fn join(group: &str, topic: &str, settings: &[(&str, &str)]) -> Member {
    let watch = Watch::default();
    let fixed = [
        ("group.id", group),
        ("auto.offset.reset", "earliest"),
        ("heartbeat.interval.ms", "100"),
        ("fetch.wait.max.ms", "200"),
        ("session.timeout.ms", "10000"),
    ];
    let consumer: BaseConsumer<Watch> =
        BaseConsumer::from_config_and_context(&config(&[&fixed, settings].concat()), watch.clone())
            .expect("a consumer");
    consumer.subscribe(&[topic]).expect("subscribed");
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let seen = Arc::clone(&watch.0);
    let running = thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            match consumer.poll(Duration::from_millis(50)) {
                None => {}
                Some(Ok(message)) => {
                    let value =
                        String::from_utf8_lossy(message.payload().expect("a value")).into_owned();
                    watch.0.lock().expect("no panic").values.push(value);
                }
                Some(Err(error)) => watch.0.lock().expect("no panic").errors.push(error),
            }
        }
        // Dropping it commits, and leaves unless the member is a static one.
    });
    Member { seen, stop, running: Some(running) }
}

impl Member {
    fn leave(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.running.take().expect("it has not left").join().expect("no panic");
    }

    fn assigned(&self) -> Vec<i32> {
        self.seen.lock().expect("no panic").assigned.iter().copied().collect()
    }

    fn revoked(&self) -> Vec<i32> {
        let mut revoked = self.seen.lock().expect("no panic").revoked.clone();
        revoked.sort_unstable();
        revoked
    }

    fn all_consumed(&self, count: usize) {
        let consumed = || self.seen.lock().expect("no panic").values.len();
        until(&format!("{count} records"), || consumed() >= count);
        assert_eq!(consumed(), count, "records consumed");
    }
}

/// Waits until the members have all partitions between them, as many each as the counts say.
fn shared(members: &[&Member], counts: &[usize]) {
    until(&format!("partitions shared as {counts:?}"), || {
        let has: Vec<_> = members.iter().map(|member| member.assigned()).collect();
        let mut all = has.concat();
        all.sort_unstable();
        all == [0, 1, 2, 3] && has.iter().map(Vec::len).eq(counts.iter().copied())
    });
}

/// Produces `count` numbers to the four partitions in turn.
fn spread(topic: &str, count: usize) {
    let sent = numbered(topic, count).into_iter().enumerate();
    must_produce(
        &sent.map(|(index, one)| one.set_partition(index as i32 % 4)).collect::<Vec<_>>(),
        &[],
    );
}

#[test]
fn members_share_partitions_as_they_join_and_leave_with_every_assignor() {
    for assignor in ["range", "roundrobin", "cooperative-sticky"] {
        let (topic, group) = (new_topic(4, &[]), unique("rdkafka-group"));
        let settings = [("partition.assignment.strategy", assignor)];
        let mut first = join(&group, &topic, &settings);
        shared(&[&first], &[4]);
        let mut second = join(&group, &topic, &settings);
        shared(&[&first, &second], &[2, 2]);
        spread(&topic, 40);
        first.all_consumed(20);
        second.all_consumed(20);
        first.leave();
        shared(&[&second], &[4]);
        spread(&topic, 40);
        second.all_consumed(60);
        second.leave();
        assert!(second.seen.lock().expect("no panic").errors.is_empty(), "{assignor}");
    }
}

#[test]
fn a_cooperative_rebalance_takes_away_only_what_moves() {
    let (topic, group) = (new_topic(4, &[]), unique("rdkafka-group"));
    let settings = [("partition.assignment.strategy", "cooperative-sticky")];
    let mut first = join(&group, &topic, &settings);
    shared(&[&first], &[4]);
    let mut second = join(&group, &topic, &settings);
    shared(&[&first, &second], &[2, 2]);
    assert_eq!(first.revoked(), second.assigned());
    first.leave();
    shared(&[&second], &[4]);
    assert_eq!(second.revoked(), Vec::<i32>::new(), "taken from the one that stayed");
    second.leave();
}

/// The committed offsets of the four partitions, as a consumer outside the group's membership sees them.
fn committed(group: &str, topic: &str) -> Vec<Offset> {
    let asking: BaseConsumer = config(&[("group.id", group)]).create().expect("a consumer");
    let mut list = TopicPartitionList::new();
    list.add_partition_range(topic, 0, 3);
    let found = asking.committed_offsets(list, PATIENCE).expect("an answer");
    found.elements().iter().map(|one| one.offset()).collect()
}

#[test]
fn committed_offsets_are_found_by_the_next_member() {
    let (topic, group) = (new_topic(4, &[]), unique("rdkafka-group"));
    assert_eq!(committed(&group, &topic), [Offset::Invalid; 4]);
    spread(&topic, 40);
    let mut first = join(&group, &topic, &[("auto.commit.interval.ms", "100")]);
    first.all_consumed(40);
    until("the automatic commit", || committed(&group, &topic) == [Offset::Offset(10); 4]);
    first.leave();
    spread(&topic, 8);
    let mut second = join(&group, &topic, &[("enable.auto.commit", "false")]);
    second.all_consumed(8);
    second.leave();
    assert_eq!(committed(&group, &topic), [Offset::Offset(10); 4], "nothing was committed");

    let alone: BaseConsumer = config(&[("group.id", &group)]).create().expect("a consumer");
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&topic, 1, Offset::Offset(12)).expect("an offset");
    list.find_partition(&topic, 1).expect("it was added").set_metadata("why");
    alone.commit(&list, CommitMode::Sync).expect("committed");
    let found = alone.committed_offsets(list, PATIENCE).expect("an answer");
    assert_eq!(
        (found.elements()[0].offset(), found.elements()[0].metadata()),
        (Offset::Offset(12), "why")
    );
}

#[test]
fn a_static_member_comes_back_without_a_rebalance() {
    let (topic, group) = (new_topic(4, &[]), unique("rdkafka-group"));
    let mut stays = join(&group, &topic, &[("group.instance.id", "one")]);
    shared(&[&stays], &[4]);
    let mut goes = join(&group, &topic, &[("group.instance.id", "two")]);
    shared(&[&stays, &goes], &[2, 2]);
    let (had, revoked) = (goes.assigned(), stays.revoked());
    goes.leave();
    let mut back = join(&group, &topic, &[("group.instance.id", "two")]);
    shared(&[&stays, &back], &[2, 2]);
    assert_eq!((back.assigned(), stays.revoked()), (had, revoked));
    spread(&topic, 40);
    stays.all_consumed(20);
    back.all_consumed(20);
    stays.leave();
    back.leave();
}

#[test]
fn a_static_member_is_fenced_by_its_successor() {
    let (topic, group) = (new_topic(4, &[]), unique("rdkafka-group"));
    let older = join(&group, &topic, &[("group.instance.id", "one")]);
    shared(&[&older], &[4]);
    let newer = join(&group, &topic, &[("group.instance.id", "one")]);
    shared(&[&newer], &[4]);
    until("the older one is told", || !older.seen.lock().expect("no panic").errors.is_empty());
    let told = older.seen.lock().expect("no panic").errors[0].rdkafka_error_code();
    assert!(
        matches!(told, Some(RDKafkaErrorCode::FencedInstanceId | RDKafkaErrorCode::Fatal)),
        "{told:?}"
    );
}

#[test]
fn groups_are_listed_and_deleted() {
    let (topic, group) = (new_topic(4, &[]), unique("rdkafka-group"));
    let mut member = join(&group, &topic, &[("client.id", "the-client")]);
    shared(&[&member], &[4]);
    let asking: BaseConsumer = config(&[]).create().expect("a consumer");
    {
        let listed = asking.fetch_group_list(Some(&group), PATIENCE).expect("an answer");
        let found = &listed.groups()[0];
        assert_eq!(
            (found.state(), found.protocol(), found.protocol_type()),
            ("Stable", "range", "consumer")
        );
        assert_eq!(found.members().len(), 1);
        let only = &found.members()[0];
        assert_eq!((only.client_id(), only.client_host()), ("the-client", "/127.0.0.1"));
        assert!(only.metadata().is_some() && only.assignment().is_some());
    }
    let delete = || {
        block_on(admin().delete_groups(&[&group], &AdminOptions::new()))
            .expect("an answer")
            .remove(0)
    };
    assert_eq!(delete().expect_err("it has a member").1, RDKafkaErrorCode::NonEmptyGroup);
    member.leave();
    delete().expect("deleted");
    assert_eq!(delete().expect_err("it is gone").1, RDKafkaErrorCode::GroupIdNotFound);
    let all = asking.fetch_group_list(None, PATIENCE).expect("an answer");
    assert!(!all.groups().iter().any(|one| one.name() == group));
}

#[test]
fn members_that_do_not_fit_a_group_are_refused() {
    let (topic, group) = (new_topic(4, &[]), unique("rdkafka-group"));
    let mut member = join(&group, &topic, &[("partition.assignment.strategy", "range")]);
    shared(&[&member], &[4]);
    let refusal = |group: &str, settings: &[(&str, &str)], expected| {
        let mut other = join(group, &topic, settings);
        until("an error", || !other.seen.lock().expect("no panic").errors.is_empty());
        let error = other.seen.lock().expect("no panic").errors.remove(0);
        other.leave();
        refused::<()>(Err(error), expected);
    };
    refusal(
        &group,
        &[("partition.assignment.strategy", "roundrobin")],
        RDKafkaErrorCode::InconsistentGroupProtocol,
    );
    member.leave();
    refusal(
        &unique("g"),
        &[("session.timeout.ms", "1000")],
        RDKafkaErrorCode::InvalidSessionTimeout,
    );
}
