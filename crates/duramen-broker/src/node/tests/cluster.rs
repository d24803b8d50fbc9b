//! What administrators ask of the cluster.

use duramen_protocol::messages::alter_partition_reassignments::{
    ReassignablePartition, ReassignableTopic,
};
use duramen_protocol::messages::alter_replica_log_dirs::{
    AlterReplicaLogDir, AlterReplicaLogDirTopic,
};
use duramen_protocol::messages::describe_log_dirs::DescribableLogDirTopic;
use duramen_protocol::messages::describe_producers::{ProducerState, TopicRequest};
use duramen_protocol::messages::describe_quorum::{RequestPartitionData, RequestTopicData};
use duramen_protocol::messages::describe_user_scram_credentials::UserName;
use duramen_protocol::messages::elect_leaders::TopicPartitions;
use duramen_protocol::messages::update_features::FeatureUpdateKey;
use duramen_protocol::messages::{
    AlterPartitionReassignmentsRequest, AlterReplicaLogDirsRequest, CreateAclsRequest,
    DescribeLogDirsRequest, DescribeProducersRequest, DescribeQuorumRequest,
    DescribeUserScramCredentialsRequest, ElectLeadersRequest, ListConfigResourcesRequest,
    UnregisterBrokerRequest, UpdateFeaturesRequest, create_acls,
};
use duramen_protocol::{ErrorCode, Response};
use duramen_storage::op::Done;

use super::harness::{Harness, WALL_MS, batch, builder, idempotent, new_topic};

macro_rules! answer {
    ($it:expr, $request:expr, $version:literal, $api:ident) => {
        match $it.ask($request, $version) {
            Response::$api(response) => response,
            other => panic!("{other:?}"),
        }
    };
}

const LOG: &str = "__cluster_metadata";
const UNKNOWN: i16 = ErrorCode::UnknownTopicOrPartition.code();

/// Topic, partition, bytes.
fn sizes(it: &mut Harness, topics: Option<&[(&str, &[i32])]>) -> Vec<(String, i32, i64)> {
    let topic = |(topic, partitions): &(&str, &[i32])| DescribableLogDirTopic {
        topic: (*topic).to_owned(),
        partitions: partitions.to_vec(),
    };
    let topics = topics.map(|topics| topics.iter().map(topic).collect());
    let mut response = answer!(it, DescribeLogDirsRequest { topics }, 5, DescribeLogDirs);
    assert_eq!(response.results.len(), 1);
    let dir = response.results.remove(0);
    assert_eq!((dir.error_code, dir.log_dir.as_str()), (0, "/data"));
    let rows = dir.topics.iter().flat_map(|topic| {
        topic
            .partitions
            .iter()
            .map(|it| (topic.name.clone(), it.partition_index, it.partition_size))
    });
    rows.collect()
}

#[test]
fn directories_tell_the_bytes_of_each_partition() {
    let mut it = Harness::new(&[]);
    it.try_create(new_topic("t", 2, &[]));
    it.create("u", &[]);
    let (first, second) = (batch(&["a"]), batch(&["bb", "ccc"]));
    let bytes = i64::try_from(first.len() + second.len()).expect("small");
    it.produce("t", first);
    it.produce("t", second);
    let all = [("t".to_owned(), 0, bytes), ("t".to_owned(), 1, 0), ("u".to_owned(), 0, 0)];
    assert_eq!(sizes(&mut it, None), all);
    assert_eq!(sizes(&mut it, Some(&[("t", &[1, 0, 9]), ("no", &[0]), ("u", &[7])])), all[..2]);
    assert_eq!(sizes(&mut it, Some(&[])), []);
    it.restart(&[], 2);
    assert_eq!(sizes(&mut it, None), all, "as storage knows it");
}

#[test]
fn replicas_stay_in_the_only_directory() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let not_found = ErrorCode::LogDirNotFound.code();
    for (path, name, partition, code) in [
        ("/data", "t", 0, 0),
        ("/data", "t", 1, UNKNOWN),
        ("/data", "no", 0, UNKNOWN),
        ("/other", "t", 0, not_found),
        ("/other", "no", 0, not_found),
    ] {
        let topic = AlterReplicaLogDirTopic { name: name.to_owned(), partitions: vec![partition] };
        let dirs = vec![AlterReplicaLogDir { path: path.to_owned(), topics: vec![topic] }];
        let request = AlterReplicaLogDirsRequest { dirs };
        let response = answer!(it, request, 2, AlterReplicaLogDirs);
        assert_eq!(response.results[0].partitions[0].error_code, code, "{path} {name} {partition}");
    }
}

fn producers(it: &mut Harness, name: &str, index: i32) -> Result<Vec<ProducerState>, i16> {
    let topic = TopicRequest { name: name.to_owned(), partition_indexes: vec![index] };
    let request = DescribeProducersRequest { topics: vec![topic] };
    let mut response = answer!(it, request, 0, DescribeProducers);
    let partition = response.topics.remove(0).partitions.remove(0);
    match partition.error_code {
        0 => Ok(partition.active_producers),
        code => Err(code),
    }
}

#[test]
fn active_producers_are_described_and_outlive_images() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.produce("t", idempotent(7, 1, 0, &["a", "b"]));
    let later = builder(&["c"], WALL_MS + 5).producer(7, 1, 2).build().expect("a good batch");
    it.produce("t", later);
    it.produce("t", idempotent(4, 0, 0, &["a"]));
    it.produce("t", batch(&["by nobody"]));
    let active = |producer_id, producer_epoch, last_sequence, last_timestamp| ProducerState {
        producer_id,
        producer_epoch,
        last_sequence,
        last_timestamp,
        coordinator_epoch: -1,
        current_txn_start_offset: -1,
    };
    let expected = [active(4, 0, 0, WALL_MS), active(7, 1, 2, WALL_MS + 5)];
    assert_eq!(producers(&mut it, "t", 0).expect("served"), expected);
    let replica = it.replica("t");
    it.storage(Done::WantImage { replica });
    it.restart(&[], 2);
    assert_eq!(producers(&mut it, "t", 0).expect("served"), expected);
    assert_eq!(producers(&mut it, "t", 1), Err(UNKNOWN));
    assert_eq!(producers(&mut it, "no", 0), Err(UNKNOWN));
    assert_eq!(producers(&mut it, "a b", 0), Err(ErrorCode::InvalidTopicException.code()));
}

#[test]
fn answers_do_not_grow_with_what_is_named_again_and_again() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    it.produce("t", idempotent(7, 1, 0, &["a"]));
    let topic = TopicRequest { name: "t".to_owned(), partition_indexes: vec![0; 1000] };
    let request = DescribeProducersRequest { topics: vec![topic.clone(), topic] };
    let response = answer!(it, request, 0, DescribeProducers);
    let told: Vec<usize> = response.topics.iter().map(|topic| topic.partitions.len()).collect();
    assert_eq!(told, [1, 0]);
    assert_eq!(response.topics[0].partitions[0].active_producers.len(), 1);

    let topic = "n".repeat(30_000);
    let named = TopicPartitions { topic: topic.clone(), partitions: vec![0; 1000] };
    let topic_partitions = Some(vec![named]);
    let request = ElectLeadersRequest { topic_partitions, timeout_ms: 1, ..Default::default() };
    let response = answer!(it, request, 2, ElectLeaders);
    let rows = &response.replica_election_results[0].partition_result;
    assert_eq!(rows.len(), 1000);
    assert!(rows.iter().all(|row| !row.error_message.as_ref().unwrap().contains(&topic)));
}

#[test]
fn partitions_of_one_node_need_no_election() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let mut elect = |election_type, topics: Option<&[(&str, i32)]>, timeout_ms| {
        let topic = |(topic, partition): &(&str, i32)| TopicPartitions {
            topic: (*topic).to_owned(),
            partitions: vec![*partition],
        };
        let topic_partitions = topics.map(|topics| topics.iter().map(topic).collect());
        let request = ElectLeadersRequest { election_type, topic_partitions, timeout_ms };
        let response = answer!(it, request, 2, ElectLeaders);
        let rows = response.replica_election_results.iter().flat_map(|it| &it.partition_result);
        (response.error_code, rows.map(|row| row.error_code).collect::<Vec<_>>())
    };
    let not_needed = ErrorCode::ElectionNotNeeded.code();
    let (invalid, late) = (ErrorCode::InvalidRequest.code(), ErrorCode::RequestTimedOut.code());
    let asked = Some(&[("t", 0), ("t", 1), ("no", 0)][..]);
    assert_eq!(elect(0, asked, 1), (0, vec![not_needed, UNKNOWN, UNKNOWN]));
    assert_eq!(elect(1, asked, 1), (0, vec![not_needed, UNKNOWN, UNKNOWN]));
    assert_eq!(elect(5, asked, 1), (invalid, vec![invalid; 3]));
    assert_eq!(elect(0, asked, 0), (late, vec![late; 3]));
    assert_eq!(elect(0, None, 1), (0, vec![]));
    assert_eq!(elect(5, None, 1), (invalid, vec![]));
    assert_eq!(elect(5, Some(&[]), 1), (0, vec![]));
}

#[test]
fn partitions_of_one_node_are_moved_nowhere() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let bad = ErrorCode::InvalidReplicaAssignment.code();
    for (name, partition, replicas, code) in [
        ("t", 0, Some(vec![0]), 0),
        ("t", 0, Some(vec![]), bad),
        ("t", 0, Some(vec![7]), bad),
        ("t", 0, Some(vec![0, 0]), bad),
        ("t", 0, None, ErrorCode::NoReassignmentInProgress.code()),
        ("t", 1, None, UNKNOWN),
        ("no", 0, Some(vec![0]), UNKNOWN),
    ] {
        let row = ReassignablePartition { partition_index: partition, replicas };
        let topics =
            vec![ReassignableTopic { name: name.to_owned(), partitions: vec![row.clone()] }];
        let mut request = AlterPartitionReassignmentsRequest { topics, ..Default::default() };
        let response = answer!(it, request.clone(), 1, AlterPartitionReassignments);
        let told = (response.error_code, response.responses[0].partitions[0].error_code);
        assert_eq!(told, (0, code), "{name} {row:?}");
        request.timeout_ms = 0;
        let response = answer!(it, request, 1, AlterPartitionReassignments);
        assert_eq!(response.error_code, ErrorCode::RequestTimedOut.code());
    }
}

#[test]
fn the_metadata_log_is_described_and_no_other() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let mut quorum = |asked: &[(&str, &[i32])]| {
        let partition = |&partition_index: &i32| RequestPartitionData { partition_index };
        let topic = |(name, indexes): &(&str, &[i32])| RequestTopicData {
            topic_name: (*name).to_owned(),
            partitions: indexes.iter().map(partition).collect(),
        };
        let request = DescribeQuorumRequest { topics: asked.iter().map(topic).collect() };
        answer!(it, request, 2, DescribeQuorum)
    };
    let response = quorum(&[(LOG, &[0])]);
    let partition = &response.topics[0].partitions[0];
    assert_eq!((partition.error_code, partition.leader_id), (0, 0));
    let voter = &partition.current_voters[0];
    assert_eq!(voter.log_end_offset, partition.high_watermark);
    // The registration, and a topic of one partition.
    assert_eq!(partition.high_watermark, 3);
    assert_eq!((voter.replica_directory_id.0, voter.last_fetch_timestamp), ([9; 16], WALL_MS));
    assert_eq!(response.nodes[0].listeners[0].host, "node.example");
    for asked in
        [&[("t", &[0][..])][..], &[(LOG, &[1])], &[(LOG, &[0, 1])], &[(LOG, &[0]), ("t", &[0])]]
    {
        let response = quorum(asked);
        let mut rows = response.topics.iter().flat_map(|topic| &topic.partitions);
        assert!(rows.all(|row| row.error_code == UNKNOWN), "{response:?}");
        assert!(response.nodes.is_empty());
    }
}

#[test]
fn features_brokers_and_users_that_are_not_there_are_told_so() {
    let mut it = Harness::new(&[]);
    for (feature, max_version_level, code) in [
        ("f", 1, ErrorCode::InvalidUpdateVersion),
        ("transaction.version", 1, ErrorCode::InvalidUpdateVersion),
        ("transaction.version", 2, ErrorCode::None),
    ] {
        let feature = feature.to_owned();
        let update = FeatureUpdateKey { feature, max_version_level, ..Default::default() };
        let request = UpdateFeaturesRequest { feature_updates: vec![update], ..Default::default() };
        let response = answer!(it, request, 1, UpdateFeatures);
        assert_eq!(response.error_code, code.code());
        assert_eq!(response.results.len(), usize::from(code == ErrorCode::None), "v1 has results");
    }
    let response = answer!(it, UpdateFeaturesRequest::default(), 2, UpdateFeatures);
    assert_eq!(response.error_code, 0);
    let response = answer!(it, UnregisterBrokerRequest { broker_id: 7 }, 0, UnregisterBroker);
    assert_eq!(response.error_code, ErrorCode::BrokerIdNotRegistered.code());
    let response = answer!(it, UnregisterBrokerRequest { broker_id: 0 }, 0, UnregisterBroker);
    assert_eq!(response.error_code, ErrorCode::InvalidRequest.code());
    let users = ["a", "b", "a"].map(|name| UserName { name: name.to_owned() });
    let request = DescribeUserScramCredentialsRequest { users: Some(users.to_vec()) };
    let response = answer!(it, request, 0, DescribeUserScramCredentials);
    let told: Vec<_> = response.results.iter().map(|it| (&it.user[..], it.error_code)).collect();
    let twice = ErrorCode::DuplicateResource.code();
    assert_eq!(told, [("a", twice), ("b", ErrorCode::ResourceNotFound.code())]);
    let creations = vec![create_acls::AclCreation::default(); 2];
    let response = answer!(it, CreateAclsRequest { creations }, 3, CreateAcls);
    let codes: Vec<_> = response.results.iter().map(|it| it.error_code).collect();
    assert_eq!(codes, [ErrorCode::SecurityDisabled.code(); 2]);
}

#[test]
fn resources_with_settings_are_listed_by_type() {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let mut listed = |resource_types: &[i8], version: i16| {
        let request = ListConfigResourcesRequest { resource_types: resource_types.to_vec() };
        let response = match it.ask(request, version) {
            Response::ListConfigResources(response) => response,
            other => panic!("{other:?}"),
        };
        let rows = response.config_resources.into_iter();
        (
            response.error_code,
            rows.map(|it| (it.resource_type, it.resource_name)).collect::<Vec<_>>(),
        )
    };
    let rows =
        |rows: &[(i8, &str)]| rows.iter().map(|(kind, name)| (*kind, (*name).to_owned())).collect();
    assert_eq!(listed(&[], 1), (0, rows(&[(2, "t"), (4, "0"), (8, "0")])));
    assert_eq!(listed(&[4, 32], 1), (0, rows(&[(4, "0")])));
    assert_eq!(listed(&[2, 9], 1), (ErrorCode::UnsupportedVersion.code(), vec![]));
    assert_eq!(listed(&[], 0), (0, vec![]));
}
