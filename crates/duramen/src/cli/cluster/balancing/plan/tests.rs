use super::*;

/// Seeded chance (`SplitMix64`).
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((word ^ (word >> 31)) % end as u64).expect("below the end")
    }
}

type Sites = BTreeMap<NodeId, Option<String>>;

/// Nodes from 1 on, with racks of one letter; a dot is no rack.
fn sites(racks: &str) -> Sites {
    let rack = |letter: char| (letter != '.').then(|| letter.to_string());
    (1..).zip(racks.chars().map(rack)).collect()
}

fn free(nodes: &[NodeId], bytes: u64) -> Replicas {
    Replicas { nodes: nodes.to_vec(), bytes, is_free: true }
}

fn after(there: &[Replicas], changes: &[Change]) -> Vec<Replicas> {
    let mut there = there.to_vec();
    for change in changes {
        there[change.at].nodes.clone_from(&change.after);
    }
    there
}

fn counts(sites: &Sites, there: &[Replicas]) -> (Vec<usize>, Vec<usize>) {
    let count = |is: &dyn Fn(&Replicas, NodeId) -> bool| {
        let of = |id: &NodeId| there.iter().filter(|it| is(it, *id)).count();
        sites.keys().map(of).collect::<Vec<_>>()
    };
    (count(&|it, id| it.nodes.contains(&id)), count(&|it, id| it.nodes[0] == id))
}

fn range(counts: &[usize]) -> usize {
    counts.iter().max().expect("a node") - counts.iter().min().expect("a node")
}

/// Counts the racks of a partition's replicas.
fn racks_of(sites: &Sites, nodes: &[NodeId]) -> usize {
    nodes.iter().filter_map(|id| sites.get(id)).collect::<BTreeSet<_>>().len()
}

fn new_replicas(before: &[Replicas], changes: &[Change]) -> usize {
    let new = |change: &Change| {
        let before = &before[change.at].nodes;
        change.after.iter().filter(|id| !before.contains(id)).count()
    };
    changes.iter().map(new).sum()
}

#[test]
fn a_fourth_node_gets_its_share_of_replicas_and_leaders() {
    let there: Vec<_> = (0..24).map(|n| free(&[n % 3 + 1, (n + 1) % 3 + 1], 10)).collect();
    let sites = sites("....");
    let changes = plan(&sites, &there, usize::MAX);
    let (replicas, leaders) = counts(&sites, &after(&there, &changes));
    assert_eq!((replicas, leaders), (vec![12; 4], vec![6; 4]));
    assert_eq!(new_replicas(&there, &changes), 12, "and nothing moves between the others");
    assert!(changes.iter().all(|it| it.why != Why::Racks));
}

#[test]
fn leaders_of_a_survivor_are_spread_by_order_alone() {
    let there: Vec<_> = (0..9).map(|_| free(&[1, 2, 3], 1 << 30)).collect();
    let sites = sites("...");
    let changes = plan(&sites, &there, 0);
    assert_eq!(counts(&sites, &after(&there, &changes)), (vec![9; 3], vec![3; 3]));
    assert_eq!(changes.len(), 6);
    assert!(changes.iter().all(|it| it.why == Why::Leaders));
}

#[test]
fn small_partitions_move_rather_than_large_ones() {
    let there: Vec<_> = (0..4).map(|n| free(&[1], 1000 - n)).collect();
    let changes = plan(&sites(".."), &there, usize::MAX);
    assert_eq!(changes.iter().map(|it| it.at).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn of_several_nodes_that_need_nothing_the_cheapest_gets_a_replica() {
    let there = [free(&[1, 2], 1), free(&[1], 100), free(&[1], 100), free(&[3], 50)];
    let changes = plan(&sites("..."), &there, usize::MAX);
    let moved = changes.iter().filter(|it| it.why == Why::Replicas).map(|it| it.at);
    assert_eq!(moved.collect::<Vec<_>>(), [0], "node 2 could take a large one only");
}

#[test]
fn a_replica_goes_through_a_third_node_where_it_cannot_go_straight() {
    // Node 1 has nothing that node 3 lacks, and node 2 has.
    let mut there = vec![free(&[1, 3], 1), free(&[1, 3], 1), free(&[1, 2], 5), free(&[1, 2], 5)];
    there.push(free(&[2], 1));
    there[2].is_free = false;
    there[3].is_free = false;
    let sites = sites("...");
    assert_eq!(counts(&sites, &there).0, [4, 3, 2]);
    let changes = plan(&sites, &there, usize::MAX);
    assert_eq!(counts(&sites, &after(&there, &changes)).0, [3, 3, 3]);
    assert_eq!(new_replicas(&there, &changes), 2);
    let changes = plan(&sites, &there, 1);
    assert_eq!(new_replicas(&there, &changes), 0, "half of it would only move the surplus");
}

#[test]
fn racks_come_before_numbers() {
    // Rack b has one node, which needs a replica of all.
    let there: Vec<_> = (0..6).map(|n| free(&[n % 3 + 1, (n + 1) % 3 + 1], 10)).collect();
    let sites = sites("aaab");
    let changes = plan(&sites, &there, usize::MAX);
    let there = after(&there, &changes);
    assert_eq!(counts(&sites, &there), (vec![2, 2, 2, 6], vec![1, 2, 2, 1]));
    assert!(changes.iter().all(|it| it.why == Why::Racks));
    assert_eq!(plan(&sites, &there, usize::MAX), []);
}

#[test]
fn a_partition_with_a_replica_elsewhere_stays_and_counts() {
    // Node 4 is no site: it is down.
    let mut there: Vec<_> = (0..4).map(|_| free(&[1, 4], 1)).collect();
    there.extend((0..4).map(|_| free(&[1], 1)));
    let sites = sites("..");
    let changes = plan(&sites, &there, usize::MAX);
    assert_eq!(changes.iter().map(|it| it.at).collect::<Vec<_>>(), [4, 5, 6, 7]);
    assert!(changes.iter().all(|it| it.after == [2]), "node 1 has four already: {changes:?}");
    assert_eq!(plan(&BTreeMap::new(), &there, usize::MAX), []);
}

/// A cluster by chance: nodes with racks or without, of which some hold nothing, some are down, and partitions of all
/// sizes, some of which may not change.
fn any_cluster(chance: &mut Chance) -> (Sites, Vec<Replicas>) {
    let nodes = 1 + chance.below(7);
    let racks = 1 + chance.below(4);
    let letter = |chance: &mut Chance| char::from(b"abc."[chance.below(racks)]);
    let racks: String = (0..nodes).map(|_| letter(chance)).collect();
    let mut sites = sites(&racks);
    let fresh = chance.below(nodes);
    let pinned = chance.below(3) == 0;
    let partition = |chance: &mut Chance| {
        let factor = 1 + chance.below((nodes - fresh).min(4));
        let mut nodes: Vec<NodeId> = (1..).take(nodes - fresh).collect();
        let skew = 1 + chance.below(nodes.len());
        let mut chosen = Vec::new();
        while chosen.len() < factor {
            chosen.push(nodes.remove(chance.below(skew.min(nodes.len()))));
        }
        let bytes = if chance.below(3) == 0 { 0 } else { chance.below(1 << 20) as u64 };
        let is_free = !pinned || chance.below(3) > 0;
        Replicas { nodes: chosen, bytes, is_free }
    };
    let there = (0..chance.below(40)).map(|_| partition(chance)).collect();
    if nodes > 2 && chance.below(4) == 0 {
        sites.remove(&1);
    }
    (sites, there)
}

fn check(seed: u64, sites: &Sites, there: &[Replicas], moves_max: usize) {
    let changes = plan(sites, there, moves_max);
    assert_eq!(changes, plan(sites, there, moves_max), "seed {seed}: the same plan each time");
    let moved = changes.iter().filter(|it| it.why != Why::Leaders).count();
    assert!(moved <= moves_max, "seed {seed}: {moved} moves of {moves_max}");
    for change in &changes {
        let before = &there[change.at];
        assert!(before.is_free, "seed {seed}: {change:?}");
        assert!(before.nodes.iter().chain(&change.after).all(|id| sites.contains_key(id)));
        assert_ne!(before.nodes, change.after, "seed {seed}");
        let (one, other): (BTreeSet<_>, BTreeSet<_>) =
            (before.nodes.iter().collect(), change.after.iter().collect());
        assert_eq!(other.len(), change.after.len(), "seed {seed}: two on a node: {change:?}");
        assert_eq!(before.nodes.len(), change.after.len(), "seed {seed}: {change:?}");
        assert_eq!(one == other, change.why == Why::Leaders, "seed {seed}: {change:?}");
        let racks = [&before.nodes, &change.after].map(|nodes| racks_of(sites, nodes));
        assert!(racks[1] >= racks[0], "seed {seed}: fewer racks: {change:?}");
    }
    let done = after(there, &changes);
    let (before, now) = (counts(sites, there), counts(sites, &done));
    let squares = |counts: &[usize]| counts.iter().map(|it| it * it).sum::<usize>();
    let is_by_racks = changes.iter().any(|it| it.why == Why::Racks);
    assert!(
        is_by_racks || squares(&now.0) <= squares(&before.0),
        "seed {seed}: {before:?} {now:?}"
    );
    if moves_max < usize::MAX {
        return;
    }
    assert_eq!(plan(sites, &done, moves_max), [], "seed {seed}: a balanced cluster stays");
    let is_free =
        there.iter().all(|it| it.is_free && it.nodes.iter().all(|id| sites.contains_key(id)));
    let racks: BTreeSet<_> = sites.values().collect();
    if is_free && racks.len() == 1 {
        assert!(range(&now.0) <= 1, "seed {seed}: {:?}", now.0);
    }
    for one in done.iter().filter(|_| is_free) {
        let most = racks.len().min(one.nodes.len());
        assert_eq!(racks_of(sites, &one.nodes), most, "seed {seed}: {one:?}");
    }
}

#[test]
fn plans_of_any_cluster_keep_what_has_to_be_kept_and_end() {
    for seed in 0..800 {
        let mut chance = Chance(seed);
        let (sites, there) = any_cluster(&mut chance);
        check(seed, &sites, &there, usize::MAX);
        check(seed, &sites, &there, chance.below(6));
    }
}

#[test]
fn no_more_replicas_move_than_have_to() {
    let mut moved = 0;
    for seed in 0..800 {
        let mut chance = Chance(seed);
        let (sites, mut there) = any_cluster(&mut chance);
        let sites: Sites = sites.into_keys().map(|id| (id, None)).collect();
        there.retain(|it| it.nodes.iter().all(|id| sites.contains_key(id)));
        for one in &mut there {
            (one.is_free, one.bytes) = (true, 7);
        }
        let changes = plan(&sites, &there, usize::MAX);
        let (replicas, _) = counts(&sites, &there);
        let (least, most) = {
            let all: usize = replicas.iter().sum();
            (all / sites.len(), all.div_ceil(sites.len()))
        };
        let over: usize = replicas.iter().map(|it| it.saturating_sub(most)).sum();
        let under: usize = replicas.iter().map(|it| least.saturating_sub(*it)).sum();
        assert_eq!(new_replicas(&there, &changes), over.max(under), "seed {seed}: {replicas:?}");
        moved += over.max(under);
    }
    assert!(moved > 2000, "{moved} is not much");
}

/// What a plan costs, against all plans of a small cluster with one replica a partition.
#[test]
fn few_bytes_move() {
    for seed in 0..100 {
        let mut chance = Chance(seed);
        let there: Vec<_> = (0..6)
            .map(|_| {
                let node = NodeId::try_from(1 + chance.below(2)).expect("small");
                free(&[node], chance.below(100) as u64)
            })
            .collect();
        let sites = sites("...");
        let cost = |nodes: &[NodeId]| {
            let moved = there.iter().zip(nodes).filter(|(it, node)| it.nodes[0] != **node);
            moved.map(|(it, _)| it.bytes).sum::<u64>()
        };
        let all = (0..3_usize.pow(6)).filter_map(|mut number| {
            let nodes: Vec<NodeId> = (0..6)
                .map(|_| {
                    let node = NodeId::try_from(number % 3 + 1).expect("small");
                    number /= 3;
                    node
                })
                .collect();
            let is_even = (1..=3).all(|id| nodes.iter().filter(|it| **it == id).count() == 2);
            is_even.then(|| cost(&nodes))
        });
        let done = after(&there, &plan(&sites, &there, usize::MAX));
        let nodes: Vec<NodeId> = done.iter().map(|it| it.nodes[0]).collect();
        assert_eq!(cost(&nodes), all.min().expect("there is one"), "seed {seed}: {there:?}");
    }
}

#[test]
fn thousands_of_partitions_are_planned_at_once() {
    let mut chance = Chance(7);
    let partition = |chance: &mut Chance| {
        let first = chance.below(9);
        let nodes = (0..3).map(|n| NodeId::try_from((first + n) % 9 + 1).expect("small"));
        free(&nodes.collect::<Vec<_>>(), chance.below(1 << 30) as u64)
    };
    let there: Vec<_> = (0..3000).map(|_| partition(&mut chance)).collect();
    let sites = sites("aaabbbccc...");
    let changes = plan(&sites, &there, usize::MAX);
    let done = after(&there, &changes);
    assert!(range(&counts(&sites, &done).1) <= 1);
    assert_eq!(plan(&sites, &done, usize::MAX), []);
}
