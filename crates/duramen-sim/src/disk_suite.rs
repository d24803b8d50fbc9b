//! # Room card: disk suite
//!
//! Purpose:    what every [`Disk`] must do when nothing goes wrong, simulated or real.
//! Owns:       the shared behaviour tests of the seam.
//! Interface:  [`behaves`].
//! Invariants: it needs an empty data directory.
//! Never:      crashes: what survives one is `tests/promises/disk.rs`, for the simulated disk alone.
//! Tests:      `tests/promises/disk.rs`, and `server/disk/tests.rs` of the binary.
//! Start at:   [`behaves`].

use std::io::ErrorKind;

use duramen_storage::Disk;
use duramen_storage::disk::Unsynced;

/// Panics at the first thing that `disk` does otherwise than the contract says.
pub fn behaves<D: Disk>(disk: &D) {
    files_are_written_and_read(disk);
    names_are_made_moved_and_removed(disk);
    removed_files_stay_readable_while_held(disk);
    each_of_many_syncs_has_its_own_outcome(disk);
    for name in disk.list("").expect("lists") {
        disk.remove_file(&name).or_else(|_| disk.remove_dir(&name)).expect("cleans up");
    }
}

fn files_are_written_and_read<D: Disk>(disk: &D) {
    let file = disk.create("bytes").expect("creates");
    assert_eq!(
        disk.create("bytes").err().map(|error| error.kind()),
        Some(ErrorKind::AlreadyExists),
        "a file is created once"
    );
    disk.write_at(&file, &[b"hello, ", b"", b"world"], 5000).expect("writes");
    assert_eq!(disk.len(&file).expect("measures"), 5012, "writing past the end extends");
    let mut buf = [7; 20];
    assert_eq!(disk.read_at(&file, &mut buf, 4998).expect("reads"), 14, "short only at the end");
    assert_eq!(&buf[..14], b"\0\0hello, world", "holes are zeros");
    assert_eq!(disk.read_at(&file, &mut buf, 6000).expect("reads"), 0, "nothing past the end");
    assert_eq!(
        disk.read_medium(&file, 5001, 3).expect("reads"),
        b"ell",
        "a direct read sees unsynced bytes, unaligned"
    );
    assert_eq!(disk.read_medium(&file, 5007, 99).expect("reads"), b"world", "up to the end");
    disk.set_len(&file, 5003).expect("cuts");
    disk.set_len(&file, 5010).expect("extends");
    assert_eq!(
        disk.read_medium(&file, 5000, 99).expect("reads"),
        b"hel\0\0\0\0\0\0\0",
        "what was cut does not come back"
    );
    disk.start_writeback(&file, 0, 5010).expect("starts write-back");
    disk.sync(&file).expect("syncs");
    let again = disk.open("bytes").expect("opens");
    assert_eq!(disk.len(&again).expect("measures"), 5010, "two handles, one file");
    assert!(disk.available().expect("measures") > 0, "there is room");
}

fn names_are_made_moved_and_removed<D: Disk>(disk: &D) {
    assert_eq!(
        disk.open("missing").err().map(|error| error.kind()),
        Some(ErrorKind::NotFound),
        "what is not there is not opened"
    );
    disk.create_dir("dir").expect("creates");
    disk.create_dir("dir").expect("a directory that exists is no error");
    let file = disk.create("dir/b").expect("creates");
    disk.write_at(&file, &[b"b"], 0).expect("writes");
    disk.create("dir/a").expect("creates");
    assert_eq!(disk.list("dir").expect("lists"), ["a", "b"], "sorted");
    disk.rename("dir/b", "dir/a").expect("renames");
    assert_eq!(disk.list("dir").expect("lists"), ["a"], "the new name is replaced");
    let moved = disk.open("dir/a").expect("opens");
    assert_eq!(disk.read_medium(&moved, 0, 9).expect("reads"), b"b", "by the renamed file");
    disk.sync_dir("dir").expect("syncs");
    disk.rename("dir", "other").expect("renames a directory");
    disk.sync_dir("").expect("syncs the data directory");
    assert_eq!(disk.list("other").expect("lists"), ["a"], "with what is in it");
    assert!(disk.list("dir").is_err(), "the old name is gone");
    assert!(disk.sync_dir("dir").is_err(), "and cannot be synced");
    disk.remove_dir("other").expect("removes a directory that is not empty");
    assert!(!disk.list("").expect("lists").contains(&"other".to_owned()));
}

fn each_of_many_syncs_has_its_own_outcome<D: Disk>(disk: &D) {
    let unsynced: Vec<Unsynced<D::File>> = (0..200)
        .map(|number| {
            let dir = format!("many-{number}");
            if number % 7 != 3 {
                disk.create_dir(&dir).expect("creates");
            }
            Unsynced { files: Vec::new(), dir: Some(dir) }
        })
        .collect();
    let failed = disk.sync_each(&unsynced).into_iter().map(|result| result.is_err());
    let missing: Vec<bool> = (0..200).map(|number| number % 7 == 3).collect();
    assert_eq!(failed.collect::<Vec<bool>>(), missing);
    assert!(disk.sync_each(&[]).is_empty());
}

fn removed_files_stay_readable_while_held<D: Disk>(disk: &D) {
    let file = disk.create("held").expect("creates");
    disk.write_at(&file, &[b"still here"], 0).expect("writes");
    disk.remove_file("held").expect("removes");
    assert!(disk.open("held").is_err());
    let mut buf = [0; 10];
    assert_eq!(disk.read_at(&file, &mut buf, 0).expect("reads"), 10);
    assert_eq!(&buf, b"still here", "a sender may hold it");
}
