use duramen_protocol::messages::describe_topic_partitions::{RequestCursor, TopicRequest};
use duramen_protocol::messages::{DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse};
use duramen_protocol::{ErrorCode, Response};

use super::harness::{Harness, new_topic};

fn pages(
    it: &mut Harness,
    names: &[&str],
    limit: i32,
    cursor: Option<(&str, i32)>,
) -> DescribeTopicPartitionsResponse {
    let cursor = cursor.map(|(topic, partition_index)| RequestCursor {
        topic_name: topic.to_owned(),
        partition_index,
    });
    let request = DescribeTopicPartitionsRequest {
        topics: names.iter().map(|name| TopicRequest { name: (*name).to_owned() }).collect(),
        response_partition_limit: limit,
        cursor,
    };
    match it.ask(request, 0) {
        Response::DescribeTopicPartitions(response) => response,
        other => panic!("{other:?}"),
    }
}

/// Names, and the partitions of each.
fn listed(page: &DescribeTopicPartitionsResponse) -> Vec<(&str, Vec<i32>)> {
    let topics = page.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|it| it.partition_index).collect();
        (topic.name.as_deref().expect("a name"), partitions)
    });
    topics.collect()
}

fn next(page: &DescribeTopicPartitionsResponse) -> Option<(&str, i32)> {
    page.next_cursor.as_ref().map(|it| (it.topic_name.as_str(), it.partition_index))
}

#[test]
fn topics_are_described_page_by_page_in_the_order_of_their_names() {
    let mut it = Harness::new(&[]);
    for name in ["b", "c", "a"] {
        it.try_create(new_topic(name, 2, &[]));
    }
    for names in [&[][..], &["c", "a", "b", "a"]] {
        let page = pages(&mut it, names, 3, None);
        assert_eq!(listed(&page), [("a", vec![0, 1]), ("b", vec![0])]);
        assert_eq!(next(&page), Some(("b", 1)));
        let page = pages(&mut it, names, 1, Some(("b", 1)));
        assert_eq!((listed(&page), next(&page)), (vec![("b", vec![1])], Some(("c", 0))));
        let page = pages(&mut it, names, 0, Some(("c", 0)));
        assert_eq!((listed(&page), next(&page)), (vec![("c", vec![0])], Some(("c", 1))));
        let page = pages(&mut it, names, 2000, Some(("c", 1)));
        assert_eq!((listed(&page), next(&page)), (vec![("c", vec![1])], None));
    }
    let topic = &pages(&mut it, &["b"], 2000, None).topics[0];
    let id = it.metadata(&["b"]).topics[0].topic_id;
    assert_eq!((topic.topic_id, topic.is_internal), (id, false));
    let partition = &topic.partitions[0];
    assert_eq!((partition.leader_id, &partition.isr_nodes[..]), (0, &[0][..]));
    assert_eq!(partition.eligible_leader_replicas.as_deref(), Some(&[][..]));
}

#[test]
fn a_page_never_has_more_than_two_thousand_partitions() {
    let mut it = Harness::new(&[]);
    it.try_create(new_topic("t", 2001, &[]));
    let page = pages(&mut it, &[], i32::MAX, None);
    assert_eq!((page.topics[0].partitions.len(), next(&page)), (2000, Some(("t", 2000))));
}

#[test]
fn missing_topics_and_bad_cursors_are_told_by_their_codes() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let page = pages(&mut it, &["t", "nope", "a b"], 1, None);
    let codes: Vec<_> = page.topics.iter().map(|it| (it.name.as_deref(), it.error_code)).collect();
    let invalid = ErrorCode::InvalidTopicException.code();
    let unknown = ErrorCode::UnknownTopicOrPartition.code();
    assert_eq!(codes, [(Some("a b"), invalid), (Some("nope"), unknown), (Some("t"), 0)]);
    assert_eq!(next(&page), None);
    for (names, cursor) in [(&["t"][..], ("u", 0)), (&["t"], ("t", -1)), (&[], ("t", -1))] {
        let page = pages(&mut it, names, 1, Some(cursor));
        let codes: Vec<_> = page.topics.iter().map(|it| it.error_code).collect();
        assert_eq!(codes, vec![ErrorCode::InvalidRequest.code(); names.len()]);
    }
}
