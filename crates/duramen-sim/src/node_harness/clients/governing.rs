//! Requests of an operator: topics are made and deleted, partitions moved, a node is taken out.

use duramen_protocol::ErrorCode;
use duramen_protocol::messages::create_topics::CreatableTopicResult;

use super::super::oracle::Standing;
use super::answers::expect_one_of;
use super::removing::{self, Remover};
use super::requests::Asking;
use super::{Asked, Clients, PARTITIONS, TOPICS, keyed, native, requests};
use crate::failure::Failure;
use crate::trace::tell;

/// Replicas of a partition, where there are several nodes.
const REPLICAS: i16 = 3;

const CREATE_CODES: [ErrorCode; 4] = [
    ErrorCode::None,
    ErrorCode::TopicAlreadyExists,
    ErrorCode::RequestTimedOut,
    ErrorCode::NotController,
];
const DELETE_CODES: [ErrorCode; 5] = [
    ErrorCode::None,
    ErrorCode::UnknownTopicOrPartition,
    ErrorCode::UnknownTopicId,
    ErrorCode::RequestTimedOut,
    ErrorCode::NotController,
];

impl Clients {
    /// Makes and deletes topics as client 0, and takes a node out.
    pub(super) fn govern(&mut self) -> Option<Asking<Asked>> {
        if let Some(remover) = &mut self.remover
            && let Some((question, request, version)) =
                remover.choose(&mut self.work, self.last_phase)
        {
            let asked = match question {
                removing::Question::Move => Asked::Move,
                question => Asked::Remove(question),
            };
            return Some((asked, request, version));
        }
        let name = (*self.work.pick(&TOPICS)).to_owned();
        let standing = self.oracle.topics[&name].standing;
        match standing {
            Standing::Absent | Standing::Creating => Some(self.create(name)),
            Standing::Deleting => Some(self.delete(name)),
            Standing::Live if self.last_phase || self.deletes == 0 => None,
            Standing::Live if self.natives.is_some() && name == native::TOPIC => None,
            Standing::Live if self.goes_by_id() && self.oracle.id_of(&name).is_none() => None,
            Standing::Live => self.work.chance(self.deletes).then(|| self.delete(name)),
        }
    }

    fn create(&mut self, name: String) -> Asking<Asked> {
        self.oracle.on_create_sent(&name);
        let replicas = if self.many { REPLICAS } else { 1 };
        let configs = match (self.oracle.is_keyed(&name), self.many) {
            (false, _) => &[],
            (true, false) => &keyed::CONFIGS[..],
            (true, true) if self.to_the_end => &keyed::CONFIGS_TO_THE_END[..],
            (true, true) => &keyed::CONFIGS_OF_MANY[..],
        };
        let request = requests::create(&name, PARTITIONS, replicas, configs);
        let life = self.oracle.topics[&name].life;
        (Asked::Create { name, life }, request, 7)
    }

    fn delete(&mut self, name: String) -> Asking<Asked> {
        self.oracle.on_delete_sent(&name);
        let id = self.oracle.id_of(&name).filter(|_| self.goes_by_id());
        let (request, version) = requests::delete(&name, id);
        (Asked::Delete { name }, request, version)
    }

    /// Moves a partition, maybe one that is not there, to other nodes.
    pub(super) fn move_somewhere(&mut self) -> Asking<Asked> {
        let place = ((*self.work.pick(&TOPICS)).to_owned(), i32::from(self.work.chance(500)));
        let avoided = self.remover.as_ref().and_then(Remover::avoids);
        let mut brokers: Vec<i32> = (1..=self.nodes).filter(|id| Some(*id) != avoided).collect();
        let spared = brokers.len() - usize::try_from(self.replicas_min).expect("small");
        for _ in 0..self.work.below(u64::try_from(spared).expect("small") + 1) {
            let at = self.work.index(brokers.len());
            brokers.swap_remove(at);
        }
        let brokers = (!self.work.chance(150)).then_some(brokers);
        (Asked::Move, requests::move_to(&place, brokers), 1)
    }

    pub(super) fn on_created(
        &mut self,
        name: &str,
        life: u32,
        topic: &CreatableTopicResult,
    ) -> Result<(), Failure> {
        let code = topic.error_code;
        tell(|| format!("  created {name}: {code}"));
        // Not all nodes may be registered yet.
        if !self.many || code != ErrorCode::InvalidReplicationFactor.code() {
            expect_one_of(code, &CREATE_CODES, "CreateTopics")?;
        }
        if code == 0 || code == ErrorCode::TopicAlreadyExists.code() {
            self.oracle.on_decided(name, code != 0, true)?;
            self.oracle.on_created(name, code == 0);
        }
        if code == 0 { self.oracle.on_new_id(name, life, topic.topic_id) } else { Ok(()) }
    }

    pub(super) fn on_deleted(&mut self, name: &str, code: i16) -> Result<(), Failure> {
        tell(|| format!("  deleted {name}: {code}"));
        expect_one_of(code, &DELETE_CODES, "DeleteTopics")?;
        let is_gone =
            [ErrorCode::None, ErrorCode::UnknownTopicOrPartition, ErrorCode::UnknownTopicId];
        if is_gone.iter().any(|it| it.code() == code) {
            self.oracle.on_decided(name, code == 0, false)?;
            self.oracle.on_deleted(name);
            self.through.retain(|(topic, _), _| topic != name);
        }
        Ok(())
    }
}
