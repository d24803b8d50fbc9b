//! Groups of the consumer protocol by chance: members that join, lag, die and come back, topics that grow, a log that
//! takes records late or not at all, coordinators that end and begin anew.
//!
//! What must be so at any time: no two members use a partition; epochs never go back; a commit is taken only where
//! nobody else uses the partition; what is durable is what the log says; every request is answered once. And when
//! faults end, every partition is used by one member.

use super::consumers::{Parts, joining, staying, topic_partitions};
use super::*;
use crate::prng::Prng;

type Used = BTreeSet<(Uuid, i32)>;

/// A consumer: what it was told, and what it uses.
#[derive(Clone, Default)]
struct Client {
    id: String,
    instance: Option<String>,
    epoch: i32,
    is_in: bool,
    uses: Used,
    /// What it was told to use.
    wanted: Used,
    asked: Option<Question>,
    /// Until when it can know that nobody else uses what it uses: its session, and the time to give something up.
    valid_us: u64,
    give_up_us: Option<u64>,
    topics: Vec<&'static str>,
    is_dead: bool,
}

/// A heartbeat on its way.
#[derive(Clone)]
struct Question {
    key: RequestKey,
    sent_us: u64,
    is_leaving: bool,
}

struct Chaos {
    play: Play,
    chance: Prng,
    clients: Vec<Client>,
    made: u64,
    group_epoch: i32,
    asked: BTreeSet<RequestKey>,
    is_calm: bool,
}

const SESSION_US: u64 = 45 * SECOND;
const REBALANCE_US: u64 = 60 * SECOND;

impl Chaos {
    fn new(seed: u64) -> Self {
        let mut play = Play::new();
        play.appends_at_once = false;
        let mut chance = Prng::stream(seed, 9);
        play.make_topic("t", 5);
        play.make_topic("u", 3);
        play.rules.consumer.assignment_interval_ms = if chance.below(2) == 0 { 0 } else { 1_000 };
        if chance.below(3) == 0 {
            play.rules.consumer.assignors.reverse();
        }
        let clients = (0..5).map(|_| Client::default()).collect();
        let asked = BTreeSet::new();
        Self { play, chance, clients, made: 0, group_epoch: 0, asked, is_calm: false }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.chance.below(bound)
    }

    fn now_us(&self) -> u64 {
        self.play.now.mono_us
    }

    fn step(&mut self) {
        match self.below(24) {
            0..12 => {
                let at = usize::try_from(self.below(5)).expect("small");
                self.act(at);
            }
            12..17 => self.become_known(),
            17 | 18 => {
                let us = self.below(4_000_000);
                self.play.pass(us);
            }
            19 if self.below(4) == 0 => self.play.pass(20 * SECOND),
            20 if self.below(12) == 0 => {
                let more = i32::try_from(4 + self.below(6)).expect("small");
                self.play.make_topic("u", more);
            }
            20 if self.below(12) == 0 => self.play.delete_topic("u"),
            21 if self.below(10) == 0 => self.restart(),
            22 => {
                let before = self.below(self.play.end.unsigned_abs() + 1);
                self.play.coordinator.renew(before.cast_signed(), 300);
                self.play.settle();
                self.play.trim();
            }
            23 => self.commit(),
            _ => {}
        }
        self.hear_all();
        self.check();
    }

    fn become_known(&mut self) {
        for _ in 0..=self.below(3) {
            if self.play.waiting.is_empty() {
                return;
            }
            if self.below(12) == 0 {
                self.play.fail(ErrorCode::NotEnoughReplicas);
            } else {
                self.play.land();
                self.play.settle();
            }
        }
    }

    /// Some of what was under way is in the log, and the coordinator begins anew. Whoever asked is told nothing.
    fn restart(&mut self) {
        self.play.coordinator.unload();
        self.play.settle();
        for _ in 0..self.below(3) {
            if !self.play.waiting.is_empty() {
                self.play.land();
            }
        }
        self.play.waiting.clear();
        self.play.coordinator = self.play.reloaded();
        self.play.coordinator.loaded(&self.play.rules, self.play.now);
        self.play.settle();
    }

    fn become_somebody(&mut self, at: usize) {
        self.made += 1;
        let instance = self.clients[at].instance.clone();
        let instance = instance.or_else(|| (at == 0).then(|| "static".to_owned()));
        let topics = match self.below(3) {
            0 => vec!["t"],
            _ => vec!["t", "u"],
        };
        self.clients[at] =
            Client { id: format!("m{}", self.made), instance, topics, ..Client::default() };
    }

    /// A client does the next thing.
    fn act(&mut self, at: usize) {
        let now_us = self.now_us();
        if self.clients[at].is_dead {
            if self.is_calm || self.below(6) == 0 {
                self.become_somebody(at);
            }
            return;
        }
        if let Some(question) = &self.clients[at].asked {
            // It does not wait for ever: what it says next may overtake the answer.
            if now_us < question.sent_us + 30 * SECOND {
                return;
            }
            self.clients[at].asked = None;
        }
        if self.clients[at].id.is_empty() {
            self.become_somebody(at);
        }
        let client = &self.clients[at];
        if !self.is_calm && self.chance.below(40) == 0 {
            // It dies, and uses nothing any more; nobody is told.
            self.clients[at].is_dead = true;
            self.clients[at].uses.clear();
            return;
        }
        let request = if !client.is_in {
            let client = &mut self.clients[at];
            client.uses.clear();
            client.wanted.clear();
            client.give_up_us = None;
            let mut request = joining("g", &client.id, &client.topics);
            request.instance_id.clone_from(&client.instance);
            request
        } else if !self.is_calm && self.chance.below(30) == 0 {
            self.leaving(at)
        } else {
            let client = &mut self.clients[at];
            // It gives up what it is told to, sooner or later, and takes what it is told to at once.
            if self.is_calm || self.chance.below(3) == 0 {
                client.uses.retain(|it| client.wanted.contains(it));
                client.give_up_us = None;
            }
            let mut request = staying("g", &client.id, client.epoch);
            request.instance_id.clone_from(&client.instance);
            request.topic_partitions = Some(topic_partitions(&parts(&client.uses)));
            if self.chance.below(10) == 0 {
                // It says all again, as after an error.
                let all = joining("g", &client.id, &client.topics);
                request.rebalance_timeout_ms = all.rebalance_timeout_ms;
                request.subscribed_topic_names = all.subscribed_topic_names;
            }
            request
        };
        let is_leaving = request.member_epoch < 0;
        let key = self.play.ask(request);
        self.asked.insert(key);
        self.clients[at].asked = Some(Question { key, sent_us: now_us, is_leaving });
    }

    fn leaving(&mut self, at: usize) -> duramen_protocol::messages::ConsumerGroupHeartbeatRequest {
        let client = &mut self.clients[at];
        client.uses.clear();
        let for_good = client.instance.is_none() || self.chance.below(2) == 0;
        let mut request = staying("g", &client.id, if for_good { -1 } else { -2 });
        request.instance_id.clone_from(&client.instance);
        request
    }

    fn hear_all(&mut self) {
        for at in 0..self.clients.len() {
            let Some(question) = self.clients[at].asked.clone() else { continue };
            let Some(answer) = self.play.heard(question.key).cloned() else { continue };
            let now_us = self.now_us();
            let client = &mut self.clients[at];
            client.asked = None;
            if question.is_leaving {
                *client = Client {
                    is_dead: true,
                    instance: client.instance.clone(),
                    ..Client::default()
                };
                continue;
            }
            match code_of(answer.error_code) {
                ErrorCode::None => {
                    assert!(
                        !client.is_in || answer.member_epoch >= client.epoch,
                        "an epoch went back"
                    );
                    client.epoch = answer.member_epoch;
                    client.is_in = true;
                    client.valid_us = question.sent_us + SESSION_US;
                    if let Some(assignment) = answer.assignment {
                        let topics = assignment.topic_partitions.into_iter();
                        client.wanted = topics
                            .flat_map(|it| {
                                it.partitions.into_iter().map(move |part| (it.topic_id, part))
                            })
                            .collect();
                        client.uses.extend(client.wanted.iter().copied());
                        if client.uses != client.wanted {
                            client.give_up_us.get_or_insert(question.sent_us + REBALANCE_US);
                        }
                    }
                    // The answer may be old.
                    if now_us >= client.valid_us {
                        client.uses.clear();
                    }
                }
                ErrorCode::CoordinatorNotAvailable | ErrorCode::NotCoordinator => {}
                ErrorCode::UnknownMemberId
                | ErrorCode::FencedMemberEpoch
                | ErrorCode::UnreleasedInstanceId
                | ErrorCode::FencedInstanceId
                | ErrorCode::GroupIdNotFound => {
                    (client.is_in, client.epoch) = (false, 0);
                    client.uses.clear();
                }
                other => panic!("{other:?}: {:?}", answer.error_message),
            }
        }
    }

    /// Whether a client can still know that what it uses is its own.
    fn is_valid(&self, client: &Client) -> bool {
        let now_us = self.now_us();
        client.is_in
            && !client.is_dead
            && now_us < client.valid_us
            && client.give_up_us.is_none_or(|us| now_us < us)
    }

    fn commit(&mut self) {
        let at = usize::try_from(self.below(5)).expect("small");
        let client = self.clients[at].clone();
        let Some(&(topic_id, partition)) = client.uses.first() else { return };
        let Some(topic) = self.play.image.topic(topic_id) else { return };
        let mut request = commit("g", &[(&topic.name.clone(), partition, 1)]);
        request.topics[0].topic_id = topic_id;
        (request.member_id, request.generation_id_or_member_epoch) = (client.id, client.epoch);
        let key = self.play.key();
        self.play.coordinator.offset_commit(
            &self.play.rules,
            key,
            9,
            request,
            |_, _| None,
            self.play.now,
        );
        let taken = self.play.coordinator.outputs.iter().any(|it| matches!(it, Output::Append(..)));
        self.play.settle();
        if taken {
            for (other, them) in self.clients.iter().enumerate().filter(|(other, _)| *other != at) {
                let uses = them.uses.contains(&(topic_id, partition)) && self.is_valid(them);
                assert!(!uses, "{other} uses what {at} commits for: {topic_id}-{partition}");
            }
        }
    }

    fn check(&mut self) {
        let mut users: BTreeMap<(Uuid, i32), &str> = BTreeMap::new();
        for client in self.clients.iter().filter(|it| self.is_valid(it)) {
            for partition in &client.uses {
                let other = users.insert(*partition, &client.id);
                assert_eq!(other, None, "{} uses {partition:?}, too", client.id);
            }
        }
        let described = self.play.describe_consumers("g");
        if described.error_code == 0 {
            assert!(described.group_epoch >= self.group_epoch, "the group's epoch went back");
            assert!(described.assignment_epoch <= described.group_epoch);
            self.group_epoch = described.group_epoch;
        }
    }

    /// No faults any more: soon everything is as it should be.
    fn calm_down(&mut self) {
        self.is_calm = true;
        for _ in 0..60 {
            while !self.play.waiting.is_empty() {
                self.play.land();
                self.play.settle();
            }
            self.play.appends_at_once = true;
            self.play.settle();
            self.hear_all();
            for at in 0..self.clients.len() {
                self.clients[at].asked = None;
                self.act(at);
                self.hear_all();
                self.check();
            }
            self.play.pass(3 * SECOND);
        }
        for key in &self.asked {
            assert!(self.play.heard(*key).is_some(), "{key:?} was never answered");
        }
        let described = self.play.describe_consumers("g");
        assert_eq!(described.group_state, "Stable");
        let used: usize = self.clients.iter().map(|client| client.uses.len()).sum();
        let names: BTreeSet<&str> = self.clients.iter().flat_map(|it| it.topics.clone()).collect();
        let topics = names.iter().filter_map(|name| self.play.image.topic_named(name));
        let there: usize = topics.map(|topic| topic.partitions.len()).sum();
        assert_eq!(used, there, "every partition is used by one");
        for client in &self.clients {
            assert!(client.is_in && client.uses == client.wanted, "{} has not arrived", client.id);
        }
        self.play.check_log();
    }

    fn run(seed: u64) {
        let mut chaos = Self::new(seed);
        for step in 0..400 {
            chaos.step();
            if step % 10 == 0 {
                chaos.play.check_log();
            }
        }
        chaos.calm_down();
    }
}

fn parts(used: &Used) -> Parts {
    let mut parts: BTreeMap<Uuid, Vec<i32>> = BTreeMap::new();
    for (topic, part) in used {
        parts.entry(*topic).or_default().push(*part);
    }
    parts.into_iter().collect()
}

#[test]
fn whatever_happens_a_partition_has_one_user_and_in_the_end_all_are_used() {
    for seed in 0..120 {
        Chaos::run(seed);
    }
}
