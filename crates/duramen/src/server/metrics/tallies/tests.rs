use super::*;

fn replica(id: u64, topic: &str, records: u64, led: bool) -> ReplicaCounted {
    let traffic = Traffic { appended_records: records, appends: records, ..Traffic::default() };
    let led = led.then_some(Led { replicas: 3, in_sync: 2, in_sync_min: 2, is_preferred: false });
    ReplicaCounted {
        replica: ReplicaId(id),
        topic: topic.to_owned(),
        partition: 0,
        log_start: 5,
        high_watermark: 17,
        bytes: 100,
        segments: 1,
        traffic,
        is_failed: false,
        led,
    }
}

fn node(leads_metadata: bool) -> Counted {
    Counted::Node(NodeCounted {
        broker_id: 7,
        leads_metadata,
        metadata_leader: None,
        metadata_term: 4,
        metadata_end: 9,
        brokers: vec![(7, "a:9092".to_owned(), true), (8, "b:9092".to_owned(), false)],
    })
}

/// Gives a census, and returns its rows: name, labels, value.
fn census(tallies: &Tallies, rows: Vec<Counted>) -> BTreeMap<String, i64> {
    let mut draft = Draft::default();
    draft.take(rows);
    *tallies.turn.blocking_lock() = None;
    let turn = Turn(tallies.turn.blocking_lock());
    tallies.finish(draft, turn);
    let mut all = BTreeMap::new();
    for table in tallies.tables() {
        for (labels, value) in &table.rows {
            let key = format!("{}{{{}}}", table.name, labels.join(","));
            let value = match value {
                Value::Whole(number) => i64::try_from(*number).unwrap(),
                Value::Real(number) => number.to_string().parse().unwrap(),
                Value::Spread(_) => unreachable!("no histogram is here"),
            };
            assert!(all.insert(key.clone(), value).is_none(), "{key} comes once");
        }
    }
    all
}

#[test]
fn a_topics_sums_rise_although_replicas_come_and_go() {
    let tallies = Tallies::default();
    let records = |rows: Vec<ReplicaCounted>| {
        let apart = |it: ReplicaCounted| {
            let partition = i32::try_from(it.replica.0).unwrap();
            Counted::Replica(ReplicaCounted { partition, ..it })
        };
        let rows = rows.into_iter().map(apart).chain([node(false)]).collect();
        census(&tallies, rows)["duramen_topic_in_records{t}"]
    };
    assert_eq!(records(vec![replica(1, "t", 5, true), replica(2, "t", 7, true)]), 12);
    assert_eq!(records(vec![replica(1, "t", 6, true), replica(2, "t", 7, true)]), 13);
    assert_eq!(records(vec![replica(1, "t", 6, true)]), 13, "the other one moved away");
    assert_eq!(records(vec![replica(1, "t", 6, true), replica(3, "t", 2, true)]), 15);
}

#[test]
fn topics_above_the_bound_share_a_row_that_only_rises() {
    let tallies = Tallies::default();
    let rows = |records: u64, gone: usize| {
        let many = METRIC_TOPICS_MAX + 3;
        let row = |at: usize| {
            Counted::Replica(replica(at as u64 + 1, &format!("t{at:06}"), records, true))
        };
        (gone..many).map(row).chain([node(false)]).collect::<Vec<_>>()
    };
    let first = census(&tallies, rows(5, 0));
    assert_eq!(first["duramen_topic_in_records{…}"], 15);
    assert_eq!(first["duramen_topics_without_row{}"], 3);
    assert_eq!(first["duramen_topic_log_bytes{…}"], 300);
    let in_records = first.keys().filter(|it| it.starts_with("duramen_topic_in_records"));
    assert_eq!(in_records.count(), METRIC_TOPICS_MAX + 1);
    // Two topics go: two of the rest get rows, which begin with what comes from now on.
    let second = census(&tallies, rows(6, 2));
    assert_eq!(second["duramen_topic_in_records{…}"], 16);
    let moved = format!("duramen_topic_in_records{{t{METRIC_TOPICS_MAX:06}}}");
    assert_eq!(second[&moved], 1);
    assert!(!second.contains_key("duramen_topic_in_records{t000000}"));
    // Metrics by partition are bounded, too.
    let rows = (0..METRIC_PARTITIONS_MAX as u64 + 5).map(|id| replica(id + 1, "t", 0, true));
    let third = census(
        &tallies,
        rows.map(|mut it| {
            it.partition = i32::try_from(it.replica.0).unwrap();
            Counted::Replica(it)
        })
        .chain([node(false)])
        .collect(),
    );
    let by_partition = third.keys().filter(|it| it.starts_with("duramen_partition_leader{"));
    assert_eq!(by_partition.count(), METRIC_PARTITIONS_MAX);
    assert_eq!(third["duramen_partitions_without_row{}"], 5);
    assert_eq!(
        third["duramen_partitions_led{}"],
        i64::try_from(METRIC_PARTITIONS_MAX).unwrap() + 5
    );
}

#[test]
fn a_partitions_figures_come_from_its_leader_and_the_clusters_from_that_of_the_metadata() {
    let tallies = Tallies::default();
    let rows = vec![
        node(false),
        Counted::Replica(replica(1, "led", 0, true)),
        Counted::Replica(replica(2, "followed", 0, false)),
    ];
    let all = census(&tallies, rows.clone());
    assert_eq!(all["duramen_partition_high_watermark{led,0}"], 17);
    assert_eq!(all["duramen_partition_leader{led,0}"], 7);
    assert!(!all.contains_key("duramen_partition_high_watermark{followed,0}"));
    assert_eq!(all["duramen_partition_log_bytes{followed,0}"], 100);
    assert_eq!(all["duramen_partitions_at_min_isr{}"], 1);
    assert_eq!(all["duramen_metadata_leader{}"], -1);
    assert!(!all.keys().any(|it| it.starts_with("duramen_cluster_")), "{all:?}");
    let part = |partitions, leaderless| {
        let topic = "t".to_owned();
        Counted::Topic(TopicCounted { topic, partitions, leaderless, not_preferred: 0 })
    };
    let all = census(&tallies, vec![node(true), part(100, 1), part(20, 2)]);
    assert_eq!(all["duramen_topic_partitions{t}"], 120);
    assert_eq!(all["duramen_cluster_partitions_leaderless{}"], 3);
    assert_eq!(all["duramen_cluster_nodes_unheard{}"], 1);
    assert_eq!(all["duramen_cluster_node_info{8,b:9092}"], 1);
}

#[test]
fn bytes_that_are_sent_are_of_their_replicas_topic() {
    let tallies = Tallies::default();
    tallies.note_sent(ReplicaId(1), 10);
    tallies.note_sent(ReplicaId(1), 5);
    tallies.note_sent(ReplicaId(9), 1);
    let rows = || vec![node(false), Counted::Replica(replica(1, "t", 0, false))];
    assert_eq!(census(&tallies, rows())["duramen_topic_out_bytes{t}"], 15);
    tallies.note_sent(ReplicaId(1), 1);
    assert_eq!(census(&tallies, rows())["duramen_topic_out_bytes{t}"], 16);
    assert_eq!(tallies.sent.read().unwrap().len(), 1, "replicas that are not here are forgotten");
}
