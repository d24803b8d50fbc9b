//! Nodes that form a cluster, with messages in any order, lost or twice, and nodes that die at any point.

use std::collections::BTreeSet;

use duramen_sim::Prng;

use super::*;

/// Durable state of one directory, and the process over it, if one runs.
struct Node {
    durable: Identity,
    running: Option<Forming>,
    refused: Option<String>,
    starts: u64,
}

/// Nodes 1, 2, 3 (or more) and what is on its way between them. A message to a process that has ended is gone with the
/// connection; one *from* a process that has ended may still arrive.
struct World {
    nodes: Vec<Node>,
    on_the_way: Vec<(usize, u64, Greeting)>,
    listed: Vec<i32>,
    directories: u8,
    clusters: u8,
    /// All memberships that there ever were: cluster and directories.
    memberships: BTreeSet<([u8; 16], Vec<[u8; 16]>)>,
}

impl World {
    fn new(count: i32) -> Self {
        let listed: Vec<i32> = (1..=count).collect();
        let mut world = Self {
            nodes: Vec::new(),
            on_the_way: Vec::new(),
            listed: listed.clone(),
            directories: 0,
            clusters: 0,
            memberships: BTreeSet::new(),
        };
        for id in listed {
            let durable = world.fresh(id);
            world.nodes.push(Node { durable, running: None, refused: None, starts: 0 });
        }
        for at in 0..world.nodes.len() {
            world.start(at);
        }
        world
    }

    fn fresh(&mut self, broker_id: i32) -> Identity {
        self.directories += 1;
        let directory_id = [self.directories; 16];
        Identity { broker_id, directory_id, cluster_id: None, voters: Vec::new() }
    }

    fn start(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.starts += 1;
        node.refused = None;
        node.running = Some(Forming::new(node.durable.clone(), self.listed.clone()));
    }

    fn stop(&mut self, at: usize) {
        self.nodes[at].running = None;
    }

    fn wipe(&mut self, at: usize) {
        self.stop(at);
        self.nodes[at].durable = self.fresh(self.listed[at]);
        self.start(at);
    }

    /// Makes a node greet another one.
    fn say(&mut self, from: usize, to: usize) {
        let Some(running) = &self.nodes[from].running else { return };
        let greeting =
            Greeting { to: self.listed[to], from: running.own().clone(), nodes: Vec::new() };
        let encoded = Greeting::decode(greeting.encode());
        self.on_the_way.push((to, self.nodes[to].starts, encoded.expect("it reads back")));
    }

    fn hear(&mut self, message: usize, keep: bool) {
        let (to, start, greeting) = self.on_the_way[message].clone();
        if !keep {
            self.on_the_way.swap_remove(message);
        }
        let node = &mut self.nodes[to];
        if let Some(running) = node.running.as_mut().filter(|_| node.starts == start) {
            running.hear(greeting);
        }
    }

    /// Makes a node do its next step: first on disk, then, unless it dies between, in memory.
    fn work(&mut self, at: usize, dies: bool) {
        let Some(running) = &self.nodes[at].running else { return };
        let step = match running.next() {
            Ok(Some(step)) => step,
            Ok(None) => return,
            Err(why) => {
                self.nodes[at].refused = Some(why);
                return self.stop(at);
            }
        };
        let node = &mut self.nodes[at];
        match step {
            Step::Promise(voters) => {
                assert!(node.durable.voters.is_empty(), "a second promise");
                node.durable.voters.clone_from(&voters);
                node.running.as_mut().expect("it runs").promised(voters);
            }
            Step::Join(known, founders) => {
                let cluster_id = known.unwrap_or_else(|| {
                    self.clusters += 1;
                    [100 + self.clusters; 16]
                });
                node.durable.cluster_id = Some(cluster_id);
                node.durable.voters.clone_from(&founders);
                node.running.as_mut().expect("it runs").joined(cluster_id, founders);
                let directories = node.durable.voters.iter().map(|it| it.directory_id).collect();
                self.memberships.insert((cluster_id, directories));
            }
        }
        if dies {
            self.stop(at);
        }
    }

    /// Lets all speak and listen until nothing is left to do.
    fn settle(&mut self) {
        for at in 0..self.nodes.len() {
            if self.nodes[at].running.is_none() && self.nodes[at].refused.is_none() {
                self.start(at);
            }
        }
        self.on_the_way.clear();
        for _ in 0..6 {
            for from in 0..self.nodes.len() {
                (0..self.nodes.len()).filter(|to| *to != from).for_each(|to| self.say(from, to));
            }
            while !self.on_the_way.is_empty() {
                self.hear(0, false);
            }
            (0..self.nodes.len()).for_each(|at| self.work(at, false));
        }
    }

    /// Checks the directories that are members now, by cluster.
    fn check(&self) {
        for (cluster, directories) in &self.memberships {
            for (other, others) in &self.memberships {
                let share = directories.iter().any(|it| others.contains(it));
                assert!(
                    !share || (cluster, directories) == (other, others),
                    "two clusters share a directory"
                );
            }
        }
    }

    fn members(&self) -> usize {
        self.nodes.iter().filter(|node| node.durable.cluster_id.is_some()).count()
    }
}

/// Makes some chaos; `wipes` is the number of directories lost in it.
fn chaos(world: &mut World, chance: &mut Prng, wipes: u64) {
    let mut wipes = wipes;
    for _ in 0..chance.between(5, 400) {
        let at = chance.index(world.nodes.len());
        match chance.between(0, 19) {
            0..=8 => {
                let to = chance.index(world.nodes.len());
                if to != at {
                    world.say(at, to);
                }
            }
            9..=13 if !world.on_the_way.is_empty() => {
                let message = chance.index(world.on_the_way.len());
                world.hear(message, chance.chance(200));
            }
            14..=16 => world.work(at, chance.chance(200)),
            17 => world.stop(at),
            18 => {
                world.stop(at);
                world.start(at);
            }
            19 if wipes > 0 && chance.chance(150) => {
                wipes -= 1;
                world.wipe(at);
            }
            _ => {}
        }
        world.check();
    }
}

#[test]
fn nodes_that_hear_each_other_become_one_cluster() {
    for count in [2, 3, 5] {
        let mut world = World::new(count);
        world.settle();
        assert_eq!(world.members(), world.nodes.len());
        assert_eq!(world.memberships.len(), 1);
        let peers: Vec<u64> = world.nodes[0].durable.voters.iter().map(|it| it.peer_id).collect();
        assert_eq!(peers, (1..=u64::try_from(count).expect("small")).collect::<Vec<_>>());
    }
}

#[test]
fn a_cluster_waits_for_all_that_are_listed() {
    let mut world = World::new(3);
    world.stop(2);
    world.nodes[2].refused = Some("it is down".to_owned());
    world.settle();
    assert_eq!(world.members(), 0);
    assert!(world.nodes[0].durable.voters.is_empty(), "not even a promise");
    let waits = world.nodes[0].running.as_ref().expect("it runs").waits_for();
    assert_eq!(waits, "nodes [3] have not been heard yet");
    world.start(2);
    world.settle();
    assert_eq!(world.members(), 3);
}

#[test]
fn whatever_is_lost_late_or_interrupted_there_is_one_cluster_in_the_end() {
    for seed in 0..3000 {
        let mut chance = Prng::new(seed, "forming");
        let mut world = World::new(3);
        chaos(&mut world, &mut chance, 0);
        world.settle();
        world.check();
        assert_eq!((world.members(), world.memberships.len()), (3, 1), "seed {seed}");
    }
}

#[test]
fn wiped_directories_never_lead_to_a_second_cluster() {
    let (mut refused, mut stuck, mut formed) = (0, 0, 0);
    for seed in 0..6000 {
        let mut chance = Prng::new(seed, "forming with wiped directories");
        let mut world = World::new(3);
        if chance.chance(300) {
            world.settle();
        }
        chaos(&mut world, &mut chance, 2);
        world.settle();
        world.check();
        for node in &world.nodes {
            if let Some(why) = &node.refused {
                assert!(why.contains("was to form another one"), "seed {seed}: {why}");
                assert_eq!(node.durable.cluster_id, None);
                refused += 1;
            }
            let waits = node.running.as_ref().filter(|it| it.own().cluster_id.is_none());
            if let Some(forming) = waits {
                let why = forming.waits_for();
                assert!(
                    why.contains("remove their data directories") || why.contains("not been heard"),
                    "seed {seed}: {why}"
                );
                stuck += 1;
            }
            formed += usize::from(node.durable.cluster_id.is_some());
        }
    }
    assert!(refused == 0 && stuck > 50 && formed > 5000, "{refused} {stuck} {formed}");
}

#[test]
fn a_directory_that_was_wiped_after_the_forming_joins_and_founds_nothing() {
    for at in 0..3 {
        let mut world = World::new(3);
        world.settle();
        let founders = world.nodes[at].durable.voters.clone();
        world.wipe(at);
        world.settle();
        assert_eq!((world.members(), world.memberships.len()), (3, 1));
        let durable = &world.nodes[at].durable;
        assert_eq!(durable.voters, founders);
        assert!(founders.iter().all(|it| it.directory_id != durable.directory_id));
    }
}

#[test]
fn a_node_that_is_not_listed_joins_and_one_that_is_alone_waits() {
    let mut world = World::new(3);
    let durable = world.fresh(4);
    let mut running = Forming::new(durable.clone(), world.listed.clone());
    assert_eq!(running.next(), Ok(None));
    assert!(running.waits_for().contains("no member was heard yet"));
    let from = world.nodes[0].durable.clone();
    running.hear(Greeting { to: 4, from, nodes: Vec::new() });
    assert_eq!(running.next(), Ok(None), "no cluster is there yet");
    world.settle();
    let from = world.nodes[1].durable.clone();
    running.hear(Greeting { to: 4, from: from.clone(), nodes: Vec::new() });
    assert_eq!(running.next(), Ok(Some(Step::Join(from.cluster_id, from.voters))));
}

#[test]
fn a_member_listens_only_to_its_cluster() {
    let mut world = World::new(3);
    world.settle();
    let own = world.nodes[0].durable.clone();
    let good = Greeting { to: 1, from: world.nodes[1].durable.clone(), nodes: Vec::new() };
    assert_eq!(judge(&own, &good), Ok(()));
    let mut late = good.clone();
    late.from.cluster_id = None;
    assert_eq!(judge(&own, &late), Ok(()), "it has to hear of its cluster");
    let refuse = |change: &dyn Fn(&mut Greeting), part: &str| {
        let mut bad = good.clone();
        change(&mut bad);
        let why = judge(&own, &bad).expect_err("it is not of this cluster");
        assert!(why.contains(part), "{why}");
    };
    refuse(&|it| it.to = 3, "leads to the wrong node");
    refuse(&|it| it.from.broker_id = 1, "node.id of its own");
    refuse(&|it| it.from.cluster_id = Some([77; 16]), "another cluster");
}
