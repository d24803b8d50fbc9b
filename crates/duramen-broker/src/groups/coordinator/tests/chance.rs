//! Coordinators by chance: clients, a log that takes records late or not at all and is trimmed, restarts.
//!
//! What must be so at any time: what is durable is what the log says, also when it was trimmed; it is the last value
//! that somebody wanted for each key and that the log took, whatever was written anew meanwhile; every request is
//! answered once, a fetch not before the commits that it must see.

use std::collections::BTreeSet;

use super::*;
use crate::prng::Prng;

/// What the log should say of every key, and who wrote it.
#[derive(Default)]
struct Oracle {
    durable: BTreeMap<Vec<u8>, (Ticket, GroupRecord)>,
    /// Of the appends that nothing has become of: whether they say something new.
    is_news: BTreeMap<Ticket, bool>,
}

impl Oracle {
    fn key(record: &GroupRecord) -> Vec<u8> {
        record.encode().expect("all fits").0.to_vec()
    }

    fn land(&mut self, ticket: Ticket, records: &[GroupRecord]) {
        if self.is_news.remove(&ticket) != Some(true) {
            return;
        }
        for record in records {
            let before = self.durable.insert(Self::key(record), (ticket, record.clone()));
            assert!(before.is_none_or(|(before, _)| before <= ticket));
        }
    }

    fn durable(&self) -> BTreeMap<Vec<u8>, GroupRecord> {
        let all = self.durable.iter().map(|(key, (_, record))| (key.clone(), record.clone()));
        all.filter(|(_, record)| record.has_value()).collect()
    }
}

fn said(coordinator: &Coordinator) -> BTreeMap<Vec<u8>, GroupRecord> {
    let mut said = BTreeMap::new();
    for (name, group) in &coordinator.groups {
        if let Some((_, value)) = &group.stored {
            let value = Some(value.clone());
            let record = GroupRecord::Group { group: name.clone(), value };
            said.insert(Oracle::key(&record), record);
        }
        for (topic, slots) in group.offsets.slots() {
            let committed =
                slots.iter().filter_map(|(it, slot)| Some((*it, slot.committed.as_ref()?)));
            for (partition, committed) in committed {
                let (group, topic) = (name.clone(), topic.clone());
                let key = OffsetCommitKey { group, topic, partition };
                let record = GroupRecord::Offset { key, value: Some(committed.value.clone()) };
                said.insert(Oracle::key(&record), record);
            }
        }
    }
    said
}

/// A client: its id and generation, as it was last told.
#[derive(Clone, Default)]
struct Client {
    group: String,
    id: String,
    generation: i32,
    waits_for: Option<RequestKey>,
}

struct Chaos {
    play: Play,
    oracle: Oracle,
    chance: Prng,
    clients: Vec<Client>,
    asked: BTreeSet<RequestKey>,
    /// The commits of its group that are under way when a fetch is asked for.
    owed: BTreeMap<RequestKey, Vec<Ticket>>,
}

const TOPICS: [&str; 3] = ["a", "b", "c"];

impl Chaos {
    fn new(seed: u64) -> Self {
        let client = |it: usize| Client { group: format!("g{}", it % 3), ..Client::default() };
        let mut play = Play::new();
        play.appends_at_once = false;
        play.rules.initial_delay_ms = 1000;
        Self {
            play,
            oracle: Oracle::default(),
            chance: Prng::stream(seed, 3),
            clients: (0..6).map(client).collect(),
            asked: BTreeSet::new(),
            owed: BTreeMap::new(),
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.chance.below(bound as u64)).expect("small")
    }

    /// Whatever was appended since the last call says something new, or not.
    fn note(&mut self, news: bool) {
        for (ticket, ..) in &self.play.waiting {
            self.oracle.is_news.entry(*ticket).or_insert(news);
        }
    }

    fn settle(&mut self, news: bool) {
        self.play.settle();
        self.note(news);
        let known: BTreeSet<Ticket> = self.oracle.is_news.keys().copied().collect();
        for (key, owed) in &self.owed {
            if self.play.fetched.contains_key(key) {
                assert!(owed.iter().all(|it| !known.contains(it)), "{key:?} came too early");
            }
        }
        self.owed.retain(|key, _| !self.play.fetched.contains_key(key));
    }

    fn step(&mut self) {
        match self.below(20) {
            0..4 => self.member(),
            4..8 => self.commit(),
            8 => self.fetch(),
            9 => {
                let (group, topic) = (self.group(), TOPICS[self.below(3)]);
                let partition = i32::from(self.below(2) == 0);
                let key = self.play.delete_offsets(&group, topic, partition);
                self.asked.insert(key);
            }
            10 if self.below(3) == 0 => {
                let group = self.group();
                let key = self.play.delete(&group);
                self.asked.insert(key);
            }
            11 => {
                let us = self.chance.below(30) * SECOND;
                self.play.pass(us);
            }
            12 if self.below(4) == 0 => {
                self.play.pass(12 * 3600 * SECOND);
                self.play.expire();
            }
            13 if self.below(4) == 0 => {
                self.play.coordinator.forget_topic("c", Uuid::ZERO);
            }
            14 | 15 => {
                self.settle(true);
                let before = i64::try_from(self.chance.below(self.play.end.unsigned_abs() + 1));
                let bytes_max = self.below(200);
                self.play.coordinator.renew(before.expect("small"), bytes_max);
                self.settle(false);
                self.play.trim();
            }
            16 if self.below(40) == 0 => self.restart(),
            _ => self.become_known(),
        }
        self.settle(true);
    }

    fn group(&mut self) -> String {
        let names = ["g0", "g1", "g2", "simple", "other"];
        names[self.below(names.len())].to_owned()
    }

    /// What becomes of some appends.
    fn become_known(&mut self) {
        for _ in 0..self.below(4) {
            let Some((ticket, records, _)) = self.play.waiting.front().cloned() else { return };
            if self.below(6) == 0 {
                self.oracle.is_news.remove(&ticket);
                self.play.fail(ErrorCode::NotEnoughReplicas);
            } else {
                self.oracle.land(ticket, &records);
                self.play.land();
            }
            self.settle(true);
        }
    }

    fn commit(&mut self) {
        let of_member = self.below(3) == 0;
        let client = self.below(self.clients.len());
        let client = self.clients[client].clone();
        let group = if of_member { client.group.clone() } else { self.group() };
        let value = i64::from(u32::try_from(self.play.asked).expect("few"));
        let mut offsets = Vec::new();
        for topic in TOPICS {
            if self.below(2) == 0 {
                offsets.push((topic, i32::from(self.below(2) == 0), value));
            }
        }
        let mut request = commit(&group, &offsets);
        if of_member {
            (request.member_id, request.generation_id_or_member_epoch) =
                (client.id, client.generation);
        }
        let key = self.play.commit_as(request);
        self.asked.insert(key);
    }

    fn fetch(&mut self) {
        self.settle(true);
        let name = self.group();
        let writes = |record: &GroupRecord| record.group().as_ref() == name;
        let news = &self.oracle.is_news;
        let owed = self
            .play
            .waiting
            .iter()
            .filter(|(ticket, records, _)| news[ticket] && records.iter().any(writes));
        let owed = owed.map(|(ticket, ..)| *ticket).collect();
        let key = self.play.fetch_as(&name, None);
        self.owed.insert(key, owed);
    }

    /// A client does the next thing.
    fn member(&mut self) {
        let at = self.below(self.clients.len());
        let mut client = self.clients[at].clone();
        if let Some(key) = client.waits_for {
            match self.play.replies.get(&key) {
                None => return,
                Some(Response::JoinGroup(answer)) => {
                    client.waits_for = None;
                    client.id = match code_of(answer.error_code) {
                        ErrorCode::None | ErrorCode::MemberIdRequired => answer.member_id.clone(),
                        _ => String::new(),
                    };
                    client.generation = answer.generation_id;
                }
                Some(Response::SyncGroup(_)) => client.waits_for = None,
                other => panic!("{other:?}"),
            }
        }
        match self.below(8) {
            0..4 => {
                let metadata = subscription(&[TOPICS[self.below(3)]]);
                client.waits_for =
                    Some(self.play.join(&client.group, &client.id, "consumer", metadata));
            }
            4 | 5 => {
                client.waits_for =
                    Some(self.play.sync(&client.group, &client.id, client.generation));
            }
            6 => {
                self.play.beat(&client.group, &client.id, client.generation);
            }
            _ => {
                self.play.leave(&client.group, &client.id);
            }
        }
        self.asked.extend(client.waits_for);
        self.clients[at] = client;
    }

    /// The groups are given up and read from the log again. Some of what was under way is in the log after all.
    fn restart(&mut self) {
        self.settle(true);
        self.owed.clear();
        self.play.coordinator.unload();
        self.play.settle();
        self.answered("after the end");
        for _ in 0..self.below(3) {
            let Some((ticket, records, _)) = self.play.waiting.front().cloned() else { break };
            self.oracle.land(ticket, &records);
            self.play.land();
        }
        self.play.waiting.clear();
        self.oracle.is_news.clear();
        assert_eq!(self.play.coordinator.take_outputs(), []);
        for (offset, record) in &self.play.log {
            self.play.coordinator.apply(*offset, record.clone());
        }
        self.play.coordinator.loaded(&self.play.rules, self.play.now);
        self.clients.iter_mut().for_each(|client| client.waits_for = None);
    }

    fn check(&self) {
        self.play.check_log();
        assert_eq!(said(&self.play.coordinator), self.oracle.durable());
    }

    fn answered(&self, when: &str) {
        for key in &self.asked {
            let is_told =
                self.play.replies.contains_key(key) || self.play.deleted.contains_key(key);
            assert!(is_told, "{key:?} was never answered, {when}");
        }
    }

    fn run(seed: u64) {
        let mut chaos = Self::new(seed);
        for step in 0..600 {
            chaos.step();
            if step % 5 == 0 {
                chaos.check();
            }
        }
        chaos.check();
        while !chaos.play.waiting.is_empty() {
            chaos.become_known();
        }
        chaos.play.appends_at_once = true;
        chaos.play.settle();
        chaos.play.pass(1_000 * SECOND);
        chaos.answered("in the end");
        // After so long, nothing is left but what renews itself.
        chaos.play.pass(48 * 3600 * SECOND);
        chaos.play.expire();
        chaos.play.expire();
        assert!(chaos.play.coordinator.groups.is_empty());
        chaos.play.check_log();
    }
}

#[test]
fn whatever_happens_the_log_says_what_is_durable_and_every_request_is_answered_once() {
    for seed in 0..40 {
        Chaos::run(seed);
    }
}
