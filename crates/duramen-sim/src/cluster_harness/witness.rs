//! Judges the statements of nodes about share groups, and about groups with members of the consumer protocol. Each is
//! judged when it is made, even if nobody hears it.

use duramen_broker::ConnectionId;
use duramen_protocol::Response;
use duramen_protocol::messages::ShareFetchResponse;
use duramen_protocol::wire::Uuid;

use super::World;
use crate::failure::Failure;
use crate::node_harness::clients::{Sight, Witnessed};

impl World {
    /// Judges an answer of a machine.
    pub(super) fn witness(
        &mut self,
        at: usize,
        connection: ConnectionId,
        given: Option<&ShareFetchResponse>,
        response: &Response,
    ) -> Result<(), Failure> {
        let is_of_interest = matches!(
            response,
            Response::ShareFetch(_)
                | Response::ShareAcknowledge(_)
                | Response::ConsumerGroupHeartbeat(_)
                | Response::JoinGroup(_)
                | Response::SyncGroup(_)
                | Response::Heartbeat(_)
                | Response::LeaveGroup(_)
        );
        if !is_of_interest {
            return Ok(());
        }
        let standings: Vec<_> = self.members.iter().map(|it| it.machine.standings()).collect();
        let (most_committed, leaders) = (&self.most_committed, &self.leaders);
        let now_us = self.mono_us;
        let sight = |topic_id: Uuid, partition: i32| {
            let log = (topic_id.0, partition);
            let is_it = |topic_id: [u8; 16], partition: i32| (topic_id, partition) == log;
            let own = standings[at].iter();
            let own = own.clone().find(|it| is_it(it.topic_id, it.partition) && it.serves)?;
            let all = standings.iter().flatten().filter(|it| is_it(it.topic_id, it.partition));
            let now = all.map(|it| it.committed).max().unwrap_or(0);
            let before = most_committed.get(&log).copied().unwrap_or(0);
            let since_us = leaders.get(&(log, own.term)).map_or(now_us, |(_, since_us)| *since_us);
            Some(Sight { term: own.term, committed: now.max(before), since_us })
        };
        let answered = Witnessed { response, given, now_us };
        self.clients.witness(connection, &answered, sight)
    }
}
