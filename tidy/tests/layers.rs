//! Imports go one way. Imports that do not yet are listed here, and the lists may only shrink.

use std::collections::BTreeSet;

use duramen_tidy::{Imports, Source, root, sources};

/// The order of one package.
struct Rule {
    package: &'static str,
    /// Modules at its root; each imports only modules before it.
    rooms: &'static str,
    /// Imports that lead up all the same.
    upward: &'static [(&'static str, &'static str)],
    /// Files of its largest circle of imports; 0 without one.
    circle: usize,
}

const RULES: [Rule; 6] = [
    Rule {
        package: "duramen_protocol",
        rooms: "compression wire sasl messages error_code partitioner api response request batch records lib",
        upward: &[],
        circle: 0,
    },
    Rule {
        package: "duramen_storage",
        rooms: "descriptor sabotage disk entry history op options format encoding error keys journal manifest \
                replica_state record sync catalog holds replica reader indexing reserve describe checkpoint fuzzing \
                compaction set_aside recovery staging storage backup mending scrub lib",
        upward: &[],
        circle: 0,
    },
    Rule {
        package: "duramen_broker",
        rooms: "limits prng acls recompression configs ledger metadata_records users guard checked_batch native access api_versions login session peer event raft internal_topics shares partition \
                fetch_sessions quotas controller audit survivor describe groups transactions restoration core node api \
                turn read_plan lib",
        upward: &[],
        circle: 8,
    },
    Rule {
        package: "duramen_client",
        rooms: "tls node_id options backoff assignors error call connection client admin appender \
                fast cluster fetcher offsets groups shares member transactions users acls lib",
        upward: &[],
        circle: 0,
    },
    Rule {
        package: "duramen",
        rooms: "telemetry config proto server cli main",
        upward: &[],
        circle: 2,
    },
    Rule {
        package: "duramen_sim",
        rooms: "prng failure trace report batch disk model planted storage_harness compacting waits machine erased node_harness \
                cluster_harness scenario lib main",
        upward: &[],
        circle: 5,
    },
];

fn room_of(source: &Source) -> &str {
    let root = if source.path.ends_with("main.rs") { "main" } else { "lib" };
    source.module.first().map_or(root, String::as_str)
}

#[test]
fn rooms_import_only_rooms_below_them() {
    let sources = sources(&root());
    let imports = Imports::of(&sources);
    let ruled: BTreeSet<&str> = RULES.iter().map(|rule| rule.package).collect();
    let packages: BTreeSet<&str> = sources.iter().map(|source| source.package.as_str()).collect();
    assert_eq!(ruled, packages, "each package under crates/ has a rule");
    for rule in &RULES {
        let package = rule.package;
        let rooms: Vec<&str> = rule.rooms.split_whitespace().collect();
        let floor = |source: &Source| {
            let at = rooms.iter().position(|room| *room == room_of(source));
            at.unwrap_or_else(|| panic!("{} has no place in `rooms` of {package}", source.path))
        };
        let mut upward = BTreeSet::new();
        for (from, to) in imports.arrows() {
            let (from, to) = (&sources[from], &sources[to]);
            if from.package == package && to.package == package && floor(from) < floor(to) {
                println!("upward: {} imports {}", from.path, to.path);
                upward.insert((room_of(from), room_of(to)));
            }
        }
        let listed: BTreeSet<_> = rule.upward.iter().copied().collect();
        assert_eq!(
            upward, listed,
            "{package}: mend what is new, and strike from `upward` what is mended"
        );
    }
}

#[test]
fn circles_of_imports_only_shrink() {
    let sources = sources(&root());
    let circles = Imports::of(&sources).circles();
    for circle in &circles {
        let first = &sources[circle[0]].path;
        println!("{} files import each other in a loop, {first} among them", circle.len());
        for at in circle {
            println!("  {}", sources[*at].path);
        }
    }
    for Rule { package, circle, .. } in &RULES {
        let of_it = circles.iter().filter(|circle| sources[circle[0]].package == *package);
        let largest = of_it.map(Vec::len).max().unwrap_or(0);
        assert_eq!(
            largest, *circle,
            "{package}: the largest circle; set a smaller number, or open the loop"
        );
    }
}
