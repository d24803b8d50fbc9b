use duramen_protocol::messages::fetch::PartitionData;
use duramen_protocol::wire::Uuid;
use duramen_protocol::{ErrorCode, Response};
use duramen_storage::op::{Identity, ReplicaId};
use raft::eraftpb::{Message, MessageType};

use super::harness::{Harness, batch, fetch_request, produce_request};
use crate::metadata_records::{
    Endpoint, MetadataRecord, PlacePartition, PlacedReplica, RegisterBroker,
};
use crate::partition::Partition;

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
        endpoints: vec![Endpoint { listener: "L".into(), host: "seven".into(), port: 9777 }],
        rack: Some("r".into()),
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
