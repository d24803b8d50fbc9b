use clap::Parser;
use duramen_protocol::wire::Uuid;

use super::super::overview::Node;
use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    command: Balance,
}

/// Nodes 1 to 4, of which some are up, and partitions of the topics `a` and `b` in turn, led by their first replica.
fn overview(up: &[NodeId], replicas: &[&[NodeId]]) -> Overview {
    let node = |id: NodeId| Node {
        address: String::new(),
        rack: None,
        is_live: up.contains(&id),
        answers: up.contains(&id),
    };
    let partition = |(at, replicas): (usize, &&[NodeId])| Partition {
        topic: ["a", "b"][at % 2].into(),
        topic_id: Uuid::ZERO,
        index: i32::try_from(at / 2).expect("small"),
        leader: Some(replicas[0]),
        replicas: replicas.to_vec(),
        in_sync: replicas.to_vec(),
        is_confirmed: true,
    };
    Overview {
        cluster_id: String::new(),
        nodes: (1..=4).map(|id| (id, node(id))).collect(),
        partitions: replicas.iter().enumerate().map(partition).collect(),
        moving: BTreeMap::new(),
    }
}

fn sizes_of(overview: &Overview) -> Sizes {
    let of = |it: &Partition| it.replicas.iter().map(|id| (*id, 100)).collect();
    let all = overview.partitions.iter();
    all.map(|it| ((it.topic.clone(), it.index), of(it))).collect()
}

fn report(overview: &Overview, line: &str) -> anyhow::Result<Report> {
    let words = ["balance"].into_iter().chain(line.split_whitespace());
    Line::try_parse_from(words)?.command.plan(overview, &sizes_of(overview))
}

fn shifts(report: &Report, of: impl Fn(&NodeRow) -> Shift) -> Vec<(u64, u64)> {
    report.nodes.iter().map(|row| (of(row).before, of(row).after)).collect()
}

#[test]
fn a_node_that_is_down_gets_nothing_and_partitions_there_stay() {
    let there = overview(&[1, 2, 3], &[&[1, 2], &[1, 2], &[1, 2], &[1, 2], &[1, 2], &[1, 4]]);
    let report = report(&there, "").expect("possible");
    let replicas = shifts(&report, |row| row.replicas);
    assert_eq!(replicas, [(6, 4), (5, 4), (0, 3), (1, 1)]);
    assert_eq!(shifts(&report, |row| row.bytes)[2..], [(0, 300), (100, 100)]);
    assert_eq!(shifts(&report, |row| row.leaders), [(6, 2), (0, 2), (0, 2), (0, 0)]);
    assert_eq!((report.held, report.nodes[3].is_up), (1, false));
    assert!(report.moves.iter().all(|row| row.bytes == 100 * u64::from(row.change.copies())));
    let text = report.text();
    assert!(text.contains("4 (down)") && text.contains("6 -> 4"), "{text}");
    let summary = report.summary(Duration::ZERO);
    assert!(summary.starts_with("3 partitions would move (300 B), "), "{summary}");
    assert!(summary.contains("1 partition left out"), "{summary}");
}

#[test]
fn a_node_that_others_do_not_hear_or_that_does_not_respond_is_left_out() {
    for (is_live, answers) in [(true, false), (false, true)] {
        let mut there = overview(&[1, 2], &[&[1], &[1]]);
        let node = there.nodes.get_mut(&3).expect("it is known");
        (node.is_live, node.answers) = (is_live, answers);
        let report = report(&there, "").expect("possible");
        assert_eq!(shifts(&report, |row| row.replicas), [(2, 1), (0, 1), (0, 0), (0, 0)]);
    }
}

#[test]
fn only_the_partitions_of_a_topic_change_and_no_more_than_allowed() {
    let there = overview(&[1, 2, 3, 4], &[&[1], &[1], &[1], &[1], &[1], &[1]]);
    let of = |line: &str| {
        let report = report(&there, line).expect("possible");
        let moves = report.moves.into_iter().map(|row| (row.change.topic, row.change.partition));
        moves.collect::<Vec<_>>()
    };
    assert_eq!(of("").len(), 4);
    assert!(of("--topic b").iter().all(|(topic, _)| topic == "b"));
    assert_eq!(of("--topic b").len(), 3);
    assert_eq!(of("--max-moves 1").len(), 1);
    assert_eq!(of("--max-moves 0"), []);
    let refused = report(&there, "--topic c").expect_err("refused").to_string();
    assert!(refused.contains("no topic c"), "{refused}");
    for line in ["--throttle 5", "--at-once 5", "--execute --throttle 0"] {
        report(&there, line).expect_err("refused");
    }
}

#[test]
fn partitions_that_move_or_that_nobody_leads_stay() {
    let mut there = overview(&[1, 2, 3, 4], &[&[1], &[1], &[1]]);
    let moving =
        duramen_client::Moving { replicas: vec![2, 1], adding: vec![2], removing: vec![1] };
    there.moving.insert(("a".into(), 0), moving);
    there.partitions[1].leader = None;
    let report = report(&there, "").expect("possible");
    assert_eq!(report.held, 2);
    assert_eq!(shifts(&report, |row| row.replicas), [(2, 1), (1, 1), (0, 1), (0, 0)]);
    let moves = report.moves.iter().map(|row| (&*row.change.topic, row.change.partition));
    assert_eq!(moves.collect::<Vec<_>>(), [("a", 1)]);
}

#[test]
fn a_balanced_cluster_is_left_as_it_is_and_leaders_that_are_elsewhere_are_counted() {
    let mut there = overview(&[1, 2, 3], &[&[1, 2], &[2, 3], &[3, 1]]);
    assert_eq!(
        report(&there, "").expect("possible").summary(Duration::ZERO),
        "the cluster is balanced: nothing to do"
    );
    there.partitions[2].leader = Some(1);
    let report = report(&there, "").expect("possible");
    assert_eq!((report.moves.len(), report.elections), (0, 1));
}
