//! Groups of the consumer protocol by chance: members that join, lag, die and come back, topics that grow, a log that
//! takes records late or not at all, coordinators that end and begin anew. In every second run some members speak the
//! classic protocol, and the group changes its kind as the others come and go.
//!
//! What must be so at any time: no two members use a partition; epochs never go back; a commit is taken only where
//! nobody else uses the partition; what is durable is what the log says; every request is answered once. And when
//! faults end, every partition is used by one member.

use duramen_protocol::messages::consumer_protocol::{
    self, ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicPartition,
};
use duramen_protocol::messages::join_group::JoinGroupResponseMember;

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
    /// When it asked first what it never heard an answer to, or a bad one: what was decided then it is told only if it
    /// says all.
    unheard_us: Option<u64>,
    topics: Vec<&'static str>,
    is_dead: bool,
    /// It speaks the classic protocol, and gives up all that it has before it joins.
    classic: Option<Classic>,
}

/// How far a classic client is in its generation, which is its epoch.
#[derive(Clone, Default)]
struct Classic {
    /// It has joined, and wants its share.
    has_joined: bool,
    /// What it says as the leader: who is to have what.
    shares: Vec<SyncGroupRequestAssignment>,
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
    asked: BTreeSet<RequestKey>,
    is_calm: bool,
}

const SESSION_US: u64 = 45 * SECOND;
const CLASSIC_SESSION_US: u64 = SESSION_MS as u64 * 1000;
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
        let client = |it: u64| {
            let classic = (seed % 2 == 1 && it > seed / 2 % 3).then(Classic::default);
            Client { classic, ..Client::default() }
        };
        let clients = (0..5).map(client).collect();
        let asked = BTreeSet::new();
        Self { play, chance, clients, made: 0, asked, is_calm: false }
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
        let classic = self.clients[at].classic.as_ref().map(|_| Classic::default());
        // A classic client is told its id.
        let id = if classic.is_some() { String::new() } else { format!("m{}", self.made) };
        self.clients[at] = Client { id, instance, topics, classic, ..Client::default() };
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
            let sent_us = question.sent_us;
            self.clients[at].unheard_us.get_or_insert(sent_us);
            self.clients[at].asked = None;
        }
        if self.clients[at].topics.is_empty() {
            self.become_somebody(at);
        }
        if self.clients[at].classic.is_some() {
            return self.act_classic(at);
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
            (client.give_up_us, client.unheard_us) = (None, None);
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
                // Too late: it is out, and will hear so.
                if client.give_up_us.is_some_and(|us| now_us >= us) {
                    client.uses.clear();
                }
                client.give_up_us = None;
            }
            let mut request = staying("g", &client.id, client.epoch);
            request.instance_id.clone_from(&client.instance);
            request.topic_partitions = Some(topic_partitions(&parts(&client.uses)));
            if client.unheard_us.is_some() || self.chance.below(10) == 0 {
                // It says all again.
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

    /// A classic client does the next thing.
    fn act_classic(&mut self, at: usize) {
        let client = self.clients[at].clone();
        let classic = client.classic.clone().expect("it is one");
        let key = if !self.is_calm && self.chance.below(40) == 0 {
            self.clients[at].uses.clear();
            if self.chance.below(2) == 0 {
                self.play.leave_in_time("g", &client.id);
            }
            self.clients[at].is_dead = true;
            return;
        } else if classic.has_joined {
            self.play.sync_as("g", &client.id, client.epoch, classic.shares)
        } else if client.is_in {
            self.play.ask_beat("g", &client.id, client.epoch)
        } else {
            self.clients[at].uses.clear();
            let subscription = ConsumerProtocolSubscription {
                topics: client.topics.iter().map(|it| (*it).to_owned()).collect(),
                ..ConsumerProtocolSubscription::default()
            };
            let metadata = consumer_protocol::encode(&subscription, 1).expect("all fits");
            self.play.join("g", &client.id, "consumer", metadata)
        };
        self.asked.insert(key);
        let question = Question { key, sent_us: self.now_us(), is_leaving: false };
        self.clients[at].asked = Some(question);
    }

    fn hear_classic(&mut self, at: usize) {
        let Some(question) = self.clients[at].asked.clone() else { return };
        let Some(answer) = self.play.replies.get(&question.key).cloned() else { return };
        let now_us = self.now_us();
        let client = &mut self.clients[at];
        client.asked = None;
        let classic = client.classic.as_mut().expect("it is one");
        let code = match &answer {
            Response::JoinGroup(answer) => answer.error_code,
            Response::SyncGroup(answer) => answer.error_code,
            Response::Heartbeat(answer) => answer.error_code,
            other => panic!("{other:?}"),
        };
        // Members that wait for others send no heartbeats: their session begins with the answer.
        let begins_us =
            if matches!(answer, Response::Heartbeat(_)) { question.sent_us } else { now_us };
        match (code_of(code), answer) {
            (ErrorCode::None, Response::JoinGroup(answer)) => {
                client.id.clone_from(&answer.member_id);
                client.epoch = answer.generation_id;
                classic.has_joined = true;
                classic.shares = shared_out(&answer.members, &self.play.image);
                (client.is_in, client.valid_us) = (true, begins_us + CLASSIC_SESSION_US);
            }
            (ErrorCode::None, Response::SyncGroup(answer)) => {
                *classic = Classic::default();
                client.valid_us = begins_us + CLASSIC_SESSION_US;
                client.uses = used(&answer.assignment, &self.play.image);
                client.wanted.clone_from(&client.uses);
            }
            (ErrorCode::None, _) => {
                client.valid_us = begins_us + CLASSIC_SESSION_US;
                // The answer may be old: it cannot know what became of its share.
                if now_us >= client.valid_us {
                    client.is_in = false;
                    client.uses.clear();
                }
            }
            (ErrorCode::MemberIdRequired, Response::JoinGroup(answer)) => {
                client.id = answer.member_id;
            }
            (ErrorCode::RebalanceInProgress | ErrorCode::IllegalGeneration, _) => {
                *classic = Classic::default();
                client.is_in = false;
                client.uses.clear();
            }
            (ErrorCode::UnknownMemberId | ErrorCode::InconsistentGroupProtocol, _) => {
                *classic = Classic::default();
                (client.is_in, client.id) = (false, String::new());
                client.uses.clear();
            }
            (ErrorCode::CoordinatorNotAvailable | ErrorCode::NotCoordinator, answer) => {
                if !matches!(answer, Response::Heartbeat(_)) {
                    *classic = Classic::default();
                    client.is_in = false;
                    client.uses.clear();
                }
            }
            (other, _) => panic!("{other:?}"),
        }
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
            if self.clients[at].classic.is_some() {
                self.hear_classic(at);
                continue;
            }
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
                    let since_us = client.unheard_us.take().unwrap_or(question.sent_us);
                    if let Some(assignment) = answer.assignment {
                        let topics = assignment.topic_partitions.into_iter();
                        client.wanted = topics
                            .flat_map(|it| {
                                it.partitions.into_iter().map(move |part| (it.topic_id, part))
                            })
                            .collect();
                        client.uses.extend(client.wanted.iter().copied());
                        if client.uses != client.wanted {
                            client.give_up_us.get_or_insert(since_us + REBALANCE_US);
                        }
                    }
                    // The answer may be old.
                    if now_us >= client.valid_us {
                        client.uses.clear();
                    }
                }
                ErrorCode::CoordinatorNotAvailable | ErrorCode::NotCoordinator => {
                    client.unheard_us.get_or_insert(question.sent_us);
                }
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
        let outputs = self.play.coordinator.ledger.outputs();
        let taken = outputs.iter().any(|it| matches!(it, Output::Append(..)));
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
        assert!(described.assignment_epoch <= described.group_epoch);
    }

    /// The log says what is durable, and epochs never go back while there is a group of this kind.
    fn check_log(&self) {
        self.play.check_log();
        let mut last = 0;
        for record in self.play.log.values() {
            let GroupRecord::Consumer { fact: Fact::Epoch, value, .. } = record else { continue };
            last = match value {
                Some(FactValue::Epoch(value)) => {
                    assert!(value.epoch >= last, "the group's epoch went back");
                    value.epoch
                }
                _ => 0,
            };
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
                // Who waits for others asks nothing else.
                if self.clients[at].classic.is_none() {
                    self.clients[at].asked = None;
                    let now_us = self.now_us();
                    self.clients[at].unheard_us.get_or_insert(now_us);
                }
                self.act(at);
                self.hear_all();
                self.check();
            }
            self.play.pass(3 * SECOND);
            self.hear_all();
        }
        for key in &self.asked {
            assert!(self.play.replies.contains_key(key), "{key:?} was never answered");
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
        self.check_log();
    }

    fn run(seed: u64) {
        let mut chaos = Self::new(seed);
        for step in 0..400 {
            chaos.step();
            if step % 10 == 0 {
                chaos.check_log();
            }
        }
        chaos.calm_down();
    }
}

/// What the leader of a classic group decides: each topic's partitions in turn.
fn shared_out(
    members: &[JoinGroupResponseMember],
    image: &Metadata,
) -> Vec<SyncGroupRequestAssignment> {
    let mut shares: Vec<BTreeMap<String, Vec<i32>>> = vec![BTreeMap::new(); members.len()];
    let mut wanted: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, member) in members.iter().enumerate() {
        let subscription: ConsumerProtocolSubscription =
            consumer_protocol::decode(member.metadata.clone()).expect("a subscription");
        for topic in subscription.topics {
            wanted.entry(topic).or_default().push(at);
        }
    }
    for (topic, them) in wanted {
        let count = image.topic_named(&topic).map_or(0, |it| it.partitions.len());
        for (partition, at) in (0..).zip(them.iter().cycle().take(count)) {
            shares[*at].entry(topic.clone()).or_default().push(partition);
        }
    }
    let assignment = |(member, share): (&JoinGroupResponseMember, BTreeMap<String, Vec<i32>>)| {
        let part = |(topic, partitions)| TopicPartition { topic, partitions };
        let assigned_partitions = share.into_iter().map(part).collect();
        let share = ConsumerProtocolAssignment { assigned_partitions, user_data: None };
        let assignment = consumer_protocol::encode(&share, 1).expect("all fits");
        SyncGroupRequestAssignment { member_id: member.member_id.clone(), assignment }
    };
    members.iter().zip(shares).map(assignment).collect()
}

fn used(assignment: &Bytes, image: &Metadata) -> Used {
    let share: ConsumerProtocolAssignment =
        consumer_protocol::decode(assignment.clone()).expect("an assignment");
    let known = share.assigned_partitions.into_iter().filter_map(|it| {
        let id = image.topic_named(&it.topic)?.id;
        Some(it.partitions.into_iter().map(move |part| (id, part)))
    });
    known.flatten().collect()
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
