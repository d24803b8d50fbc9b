use duramen_protocol::messages::fetch::PartitionData;
use duramen_protocol::messages::metadata::MetadataRequestTopic;
use duramen_protocol::messages::{DescribeClusterRequest, MetadataRequest};
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Response};
use duramen_storage::op::{Identity, ReplicaId};
use raft::eraftpb::{Message, MessageType};

use super::harness::{Harness, ONE, batch, fetch_request, produce_request};
use crate::metadata_records::{
    Endpoint, MetadataRecord, PlacePartition, PlacedReplica, RegisterBroker,
};
use crate::partition::Partition;
use crate::session::Session;

/// The topic `t` of a node whose replica follows one on node 7, in term 9.
fn follower() -> Harness {
    let mut it = Harness::new(&[]);
    it.create("t", &[]);
    let topic = it.metadata(&["t"]).topics[0].topic_id;
    let (own, peer) = (900, 901);
    let image = &mut it.node.core.controller.image;
    image.apply(MetadataRecord::RegisterBroker(RegisterBroker {
        broker_id: 7,
        directory_id: Uuid::from_u128(77),
        incarnation: 1,
        endpoints: vec![Endpoint {
            listener: "PLAINTEXT".into(),
            host: "seven".into(),
            port: 9777,
        }],
        rack: Some("r".into()),
        kinds: 3,
    }));
    let placed =
        |peer_id, broker_id, directory_id| PlacedReplica { peer_id, broker_id, directory_id };
    let replicas = vec![placed(own, 0, Uuid([9; 16])), placed(peer, 7, Uuid::from_u128(77))];
    let placement = PlacePartition { topic_id: topic, partition: 0, replicas };
    image.apply(MetadataRecord::PlacePartition(placement));
    let identity = Identity { topic: "t".into(), topic_id: topic.0, partition: 0 };
    let old = it.node.core.partitions.values().next().expect("there");
    let settings = old.settings.clone();
    let mut partition = Partition::create(ReplicaId(own), identity, &[own, peer], settings, 1);
    let mut heartbeat = Message::default();
    heartbeat.set_msg_type(MessageType::MsgHeartbeat);
    (heartbeat.from, heartbeat.to, heartbeat.term) = (peer, own, 9);
    partition.group.on_message(heartbeat, Vec::new());
    it.node.core.partitions.insert(ReplicaId(own), Box::new(partition));
    it.node.quiescence.begin(ReplicaId(own));
    it
}

#[test]
fn a_producer_at_the_wrong_node_is_told_who_leads() {
    let mut it = follower();
    for (version, is_told) in [(9, false), (12, true)] {
        let id = it.send(produce_request("t", batch(&["a"]), -1), version);
        let Some(Response::Produce(response)) = it.response(id) else { panic!("not answered") };
        let part = &response.responses[0].partition_responses[0];
        assert_eq!(part.error_code, ErrorCode::NotLeaderOrFollower.code());
        let leader = (part.current_leader.leader_id, part.current_leader.leader_epoch);
        assert_eq!(leader, if is_told { (7, 9) } else { (-1, -1) });
        let endpoints = response.node_endpoints.iter();
        let endpoints: Vec<_> =
            endpoints.map(|it| (it.node_id, it.host.as_str(), it.port)).collect();
        assert_eq!(endpoints.first(), is_told.then_some(&(7, "seven", 9777)));
    }
}

#[test]
fn a_consumer_in_another_epoch_is_told_who_leads() {
    let mut it = follower();
    let leader = |data: &PartitionData| {
        assert_eq!(data.error_code, ErrorCode::FencedLeaderEpoch.code());
        (data.current_leader.leader_id, data.current_leader.leader_epoch)
    };
    let ask = |name: &str| {
        let mut request = fetch_request(name, 0);
        request.topics[0].partitions[0].current_leader_epoch = 3;
        request
    };
    let Response::Fetch(response) = it.ask(ask("t"), 12) else { panic!("other") };
    assert_eq!(leader(&response.responses[0].partitions[0]), (7, 9));
    let topic_id = it.metadata(&["t"]).topics[0].topic_id;
    let mut request = ask("");
    request.topics[0].topic_id = topic_id;
    let Response::Fetch(response) = it.ask(request, 16) else { panic!("other") };
    assert_eq!(leader(&response.responses[0].partitions[0]), (7, 9));
    assert_eq!(response.node_endpoints[0].rack.as_deref(), Some("r"));
    let Response::Fetch(old) = it.ask(ask("t"), 11) else { panic!("other") };
    assert_eq!(old.responses[0].partitions[0].current_leader.leader_id, -1);
    // One that does not know of other replicas is sent to the leader, too.
    let Response::Fetch(old) = it.ask(fetch_request("t", 0), 10) else { panic!("other") };
    let code = ErrorCode::NotLeaderOrFollower.code();
    assert_eq!(old.responses[0].partitions[0].error_code, code);
}

/// Node 7 has no listener of the client's name.
#[test]
fn a_client_learns_the_addresses_of_its_own_listener() {
    let mut it = follower();
    let endpoint = |listener: &str, port| Endpoint {
        listener: listener.to_owned(),
        host: "own".to_owned(),
        port,
    };
    it.node.core.controller.image.apply(MetadataRecord::RegisterBroker(RegisterBroker {
        broker_id: 0,
        directory_id: Uuid([9; 16]),
        incarnation: 1,
        endpoints: vec![endpoint("PLAINTEXT", 1), endpoint("OTHER", 2)],
        rack: None,
        kinds: 3,
    }));
    let leader = |it: &mut Harness, version| {
        let topics = vec![MetadataRequestTopic { name: Some("t".into()), ..Default::default() }];
        let request = MetadataRequest { topics: Some(topics), ..Default::default() };
        let Response::Metadata(told) = it.ask(request, version) else { panic!("other") };
        let brokers = told.brokers.iter();
        let brokers: Vec<_> = brokers.map(|it| (it.node_id, it.host.clone(), it.port)).collect();
        let part = &told.topics[0].partitions[0];
        (brokers, part.error_code, part.leader_id)
    };
    let node = |id: i32, host: &str, port: i32| (id, host.to_owned(), port);
    assert_eq!(leader(&mut it, 12), (vec![node(0, "own", 1), node(7, "seven", 9777)], 0, 7));
    it.disconnect(ONE);
    let (user, host) = ("User:ANONYMOUS".into(), "/127.0.0.1".into());
    it.sessions.insert(ONE, Session::new(ONE, user, "OTHER".into(), host));
    for (version, code) in [(5, ErrorCode::LeaderNotAvailable), (6, ErrorCode::ListenerNotFound)] {
        assert_eq!(leader(&mut it, version), (vec![node(0, "own", 2)], code.code(), -1));
    }
    let Response::DescribeCluster(told) =
        it.ask(DescribeClusterRequest { endpoint_type: 1, ..Default::default() }, 1)
    else {
        panic!("other")
    };
    let brokers = told.brokers.iter();
    let brokers: Vec<_> = brokers.map(|it| (it.broker_id, it.host.clone(), it.port)).collect();
    assert_eq!(brokers, [node(0, "own", 2)]);
    let id = it.send(produce_request("t", batch(&["a"]), -1), 12);
    let Some(Response::Produce(response)) = it.response(id) else { panic!("not answered") };
    assert!(response.node_endpoints.is_empty(), "it has no address that the client could use");
}
