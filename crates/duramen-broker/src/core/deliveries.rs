//! Batches of a node's own for partitions that any node leads: dead letters, and the records of the access log. The
//! sender gets one result a batch, or none if that is lost on the way: then it sends the batch again.

use bytes::{Bytes, BytesMut};
use duramen_protocol::ErrorCode;
use duramen_protocol::wire::Uuid;
use duramen_storage::op::ReplicaId;

use super::Core;
use crate::partition::{Appended, Sender, Slot};
use crate::peer::{Delivered, Delivery};

impl Core {
    /// Gives a batch to the leader of a partition. An error is the result; otherwise the result comes later.
    pub(crate) fn deliver(
        &mut self,
        (topic_id, partition): (Uuid, i32),
        nonce: u64,
        batch: &Bytes,
    ) -> Result<(), ErrorCode> {
        let topic = self.controller.image.topic(topic_id);
        let topic = topic.ok_or(ErrorCode::UnknownTopicOrPartition)?;
        let leader = self.leader_of(topic, partition);
        let (leader, _) = leader.ok_or(ErrorCode::LeaderNotAvailable)?;
        if leader != self.options.facts.broker_id {
            let delivery = Delivery { nonce, topic_id, partition, batch: batch.clone() };
            self.peers.frame_to(leader).deliveries.push(delivery);
            return Ok(());
        }
        let replica = self.local_replica(topic, partition);
        let replica = replica.ok_or(ErrorCode::NotLeaderOrFollower)?;
        self.append_delivery(replica, batch, Sender::Own { nonce })
    }

    /// Appends a batch that another node delivers.
    pub(crate) fn on_delivery(&mut self, broker_id: i32, delivery: &Delivery) {
        let sender = Sender::Node { broker_id, nonce: delivery.nonce };
        let topic = self.controller.image.topic(delivery.topic_id);
        let here = topic.and_then(|topic| self.serving(topic, delivery.partition).ok());
        let replica = here.map(|partition| partition.group.id());
        let replica = replica.ok_or(ErrorCode::NotLeaderOrFollower);
        let appended = replica.and_then(|it| self.append_delivery(it, &delivery.batch, sender));
        if let Err(code) = appended {
            self.tell_delivered(broker_id, delivery.nonce, code);
        }
    }

    /// Sends a node the result of its delivery.
    pub(crate) fn tell_delivered(&mut self, broker_id: i32, nonce: u64, code: ErrorCode) {
        let delivered = Delivered { nonce, error_code: code.code() };
        self.peers.frame_to(broker_id).delivered.push(delivered);
    }

    fn append_delivery(
        &mut self,
        replica: ReplicaId,
        batch: &Bytes,
        sender: Sender,
    ) -> Result<(), ErrorCode> {
        if self.is_disk_full() {
            return Err(ErrorCode::KafkaStorageError);
        }
        match self.append_own(replica, BytesMut::from(&batch[..]), Slot::Delivery(sender)) {
            Appended::Refused(code, _) => Err(code),
            _ => Ok(()),
        }
    }
}
