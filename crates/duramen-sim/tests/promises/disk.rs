//! What the simulated disk lets survive, and what not.

use duramen_sim::{Faults, Sabotage, SimDisk, disk_suite};
use duramen_storage::Disk;

const SEEDS: u64 = 300;

fn read(disk: &SimDisk, path: &str) -> Option<Vec<u8>> {
    disk.contents(path)
}

/// A synced file of three pages of ones.
fn ones(disk: &SimDisk) -> <SimDisk as Disk>::File {
    let file = disk.create("f").expect("creates");
    disk.write_at(&file, &[&[1; 3 * 4096]], 0).expect("writes");
    disk.sync(&file).expect("syncs");
    disk.sync_dir("").expect("syncs");
    file
}

#[test]
fn the_simulated_disk_behaves_like_a_disk() {
    disk_suite::behaves(&SimDisk::new(1));
}

#[test]
fn what_is_synced_survives_a_power_loss() {
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        ones(&disk);
        let disk = disk.power_loss();
        assert_eq!(read(&disk, "f"), Some(vec![1; 3 * 4096]), "seed {seed}");
    }
}

#[test]
fn everything_visible_survives_the_death_of_the_process() {
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        let file = ones(&disk);
        disk.write_at(&file, &[b"new"], 5000).expect("writes");
        disk.create("g").expect("creates");
        let before = read(&disk, "f");
        let disk = disk.kill();
        assert_eq!(read(&disk, "f"), before);
        assert_eq!(read(&disk, "g"), Some(Vec::new()));
    }
}

#[test]
fn unsynced_pages_survive_in_any_subset_and_torn_at_sectors() {
    let (mut none, mut all, mut some, mut torn) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        let file = ones(&disk);
        disk.write_at(&file, &[&[2; 3 * 4096]], 0).expect("writes");
        let disk = disk.power_loss();
        let bytes = read(&disk, "f").expect("the file was durable");
        for sector in bytes.chunks(512) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "no sector is torn");
        }
        let pages: Vec<bool> = bytes.chunks(4096).map(|page| page == [2; 4096]).collect();
        none += u32::from(bytes.iter().all(|byte| *byte == 1));
        all += u32::from(pages.iter().all(|new| *new));
        some += u32::from(pages.iter().any(|new| *new) && pages.iter().any(|new| !*new));
        torn += u32::from(bytes.chunks(4096).any(|p| p.contains(&1) && p.contains(&2)));
    }
    assert!(none > 10 && all > 10 && some > 10 && torn > 10, "{none} {all} {some} {torn}");
}

#[test]
fn unsynced_lengths_survive_or_not_whatever_the_pages_do() {
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        let file = ones(&disk);
        disk.set_len(&file, 100).expect("cuts");
        disk.write_at(&file, &[&vec![2; 20_000]], 100).expect("writes");
        let disk = disk.power_loss();
        let bytes = read(&disk, "f").expect("the file was durable");
        assert!(bytes[..100].iter().all(|byte| *byte == 1), "what was never changed stays");
        assert!(bytes.iter().all(|byte| *byte <= 2));
        lengths.insert(bytes.len());
    }
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [100, 3 * 4096, 20_100]);
}

#[test]
fn a_file_sync_does_not_make_its_name_durable() {
    let (mut kept, mut lost) = (0, 0);
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        let file = disk.create("f").expect("creates");
        disk.write_at(&file, &[b"bytes"], 0).expect("writes");
        disk.sync(&file).expect("syncs");
        match read(&disk.power_loss(), "f") {
            Some(bytes) => {
                assert_eq!(bytes, b"bytes", "if the name is there, the synced bytes are too");
                kept += 1;
            }
            None => lost += 1,
        }
    }
    assert!(kept > 10 && lost > 10, "{kept} {lost}");
}

#[test]
fn a_directory_sync_does_not_make_bytes_durable() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        let file = disk.create("f").expect("creates");
        disk.write_at(&file, &[b"bytes"], 0).expect("writes");
        disk.sync_dir("").expect("syncs");
        outcomes.insert(read(&disk.power_loss(), "f").expect("the name was durable"));
    }
    let expected = [Vec::new(), vec![0; 5], b"bytes".to_vec()];
    assert_eq!(outcomes.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn a_rename_happens_or_leaves_the_old_name() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        for name in ["old", "new"] {
            let file = disk.create(name).expect("creates");
            disk.write_at(&file, &[name.as_bytes()], 0).expect("writes");
            disk.sync(&file).expect("syncs");
        }
        disk.sync_dir("").expect("syncs");
        disk.rename("old", "new").expect("renames");
        let disk = disk.power_loss();
        seen.insert((read(&disk, "old"), read(&disk, "new")));
    }
    let (old, new) = (Some(b"old".to_vec()), Some(b"new".to_vec()));
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(None, old.clone()), (old, new)]);
}

#[test]
fn removals_come_back_unless_the_directory_was_synced() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        disk.create_dir("d").expect("creates");
        disk.create("d/a").expect("creates");
        disk.create("d/b").expect("creates");
        disk.sync_dir("d").expect("syncs");
        disk.sync_dir("").expect("syncs");
        disk.remove_dir("d").expect("removes");
        if seed % 2 == 0 {
            disk.sync_dir("").expect("syncs");
        }
        let disk = disk.power_loss();
        let files: Vec<String> = disk.files().into_iter().map(|(path, _)| path).collect();
        assert!(seed % 2 == 1 || files.is_empty(), "a synced removal is for ever");
        seen.insert(files.len());
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_failed_sync_leaves_good_pages_in_the_cache_and_old_ones_on_the_medium() {
    let (mut apart, mut lost) = (0, 0);
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        let file = ones(&disk);
        disk.write_at(&file, &[&[2; 4096]], 0).expect("writes");
        disk.set_faults(Faults { sync_fails: 1000, ..Faults::default() });
        disk.sync(&file).expect_err("it fails");
        disk.set_faults(Faults::default());
        disk.doom();
        assert!(disk.write_at(&file, &[b"x"], 0).is_err(), "nothing is written after that");
        assert_eq!(disk.violations().len(), 1, "and whoever tries is noticed");
        let disk = disk.kill();
        let file = disk.open("f").expect("opens");
        let mut cached = vec![0; 4096];
        disk.read_at(&file, &mut cached, 0).expect("reads");
        let medium = disk.read_medium(&file, 0, 4096).expect("reads");
        apart += u32::from(cached == [2; 4096] && medium == [1; 4096]);
        disk.sync(&file).expect("a second sync has nothing to write");
        let disk = disk.power_loss();
        lost += u32::from(read(&disk, "f").expect("it is there")[..4096] == [1; 4096]);
    }
    assert!(apart > 20 && lost > 20, "{apart} {lost}");
}

#[test]
fn rewriting_a_page_that_was_marked_clean_makes_it_durable() {
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        let file = ones(&disk);
        disk.write_at(&file, &[&[2; 4096]], 0).expect("writes");
        disk.set_faults(Faults { sync_fails: 1000, ..Faults::default() });
        disk.sync(&file).expect_err("it fails");
        disk.set_faults(Faults::default());
        let disk = disk.kill();
        let file = disk.open("f").expect("opens");
        disk.write_at(&file, &[&[2; 4096]], 0).expect("writes");
        disk.sync(&file).expect("syncs");
        assert_eq!(read(&disk.power_loss(), "f").expect("it is there")[..4096], [2; 4096]);
    }
}

#[test]
fn a_background_failure_is_heard_by_the_handle_that_was_open_and_by_no_later_one() {
    let always = Faults { write_back: 1000, write_back_fails: 1000, ..Faults::default() };
    let open = SimDisk::new(1);
    let file = ones(&open);
    open.write_at(&file, &[b"x"], 0).expect("writes");
    open.set_faults(always);
    assert!(open.sync(&file).is_err(), "its pages were lost on the way");
    let closed = SimDisk::new(1);
    let file = ones(&closed);
    closed.write_at(&file, &[b"x"], 0).expect("writes");
    drop(file);
    closed.set_faults(always);
    assert!(closed.list("").is_ok(), "a call during which the kernel fails");
    closed.set_faults(Faults::default());
    let file = closed.open("f").expect("opens");
    closed.sync(&file).expect("hazard 2 (c): nobody is told");
}

#[test]
fn zombies_are_noticed() {
    let disk = SimDisk::new(1);
    let file = ones(&disk);
    let next = disk.kill();
    assert!(disk.write_at(&file, &[b"x"], 0).is_err());
    assert!(disk.list("").is_err());
    assert_eq!(next.violations().len(), 2);
    assert!(next.open("f").is_ok());
}

#[test]
fn a_process_dies_in_the_middle_of_a_write() {
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        let file = ones(&disk);
        disk.crash_in(Some(2));
        disk.write_at(&file, &[&[2; 4096]], 3 * 4096).expect("the first goes through");
        disk.write_at(&file, &[&[3; 8192]], 4 * 4096).expect_err("the second does not");
        assert!(disk.is_dead());
        disk.sync(&file).expect_err("and nothing after it");
        let disk = disk.kill();
        lengths.insert(read(&disk, "f").expect("it is there").len() / 4096);
        assert!(disk.violations().is_empty(), "a process cannot help being killed");
    }
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [4, 5, 6]);
}

#[test]
fn a_full_disk_takes_some_pages_and_says_so() {
    let disk = SimDisk::new(1);
    let file = ones(&disk);
    disk.set_capacity(disk.used() + 2 * 4096);
    assert_eq!(disk.available().expect("measures"), 8192);
    let error = disk.write_at(&file, &[&[2; 4 * 4096]], 3 * 4096).expect_err("no room");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    assert!(disk.len(&file).expect("measures") <= 5 * 4096);
    disk.write_at(&file, &[&[3; 4096]], 0).expect("what has its space can be written again");
    disk.set_capacity(disk.used());
    assert!(disk.create("g").is_err());
    disk.remove_file("f").expect("removes");
    assert_eq!(disk.available().expect("measures"), 0, "held open, it takes its space");
    drop(file);
    assert!(disk.available().expect("measures") >= 3 * 4096);
}

#[test]
fn rot_is_seen_by_both_kinds_of_read() {
    let disk = SimDisk::new(1);
    let file = ones(&disk);
    assert!(disk.flip("f", 4097, 3));
    assert!(!disk.flip("f", 3 * 4096, 3), "nothing there");
    assert_eq!(disk.read_medium(&file, 4097, 1).expect("reads"), [9]);
    assert_eq!(read(&disk.power_loss(), "f").expect("it is there")[4097], 9);
}

#[test]
fn a_dropped_sync_is_a_lie() {
    let mut lost = 0;
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        disk.set_sabotage(Some(Sabotage::FileSyncDropped));
        ones(&disk);
        lost += u32::from(read(&disk.power_loss(), "f") != Some(vec![1; 3 * 4096]));
    }
    assert!(lost > 100, "{lost}");
}
