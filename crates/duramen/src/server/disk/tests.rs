//! Tests of the real disk on the file systems at hand. They run the suite of the simulated disk, and look for the
//! mistakes that only a real one can make.

use super::*;

fn on_every_file_system(test: impl Fn(&RealDisk, &Path)) {
    // The second is tmpfs on most machines, which refuses direct reads.
    for parent in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        if parent.is_dir() {
            let directory = tempfile::tempdir_in(parent).unwrap();
            let disk = RealDisk::open(directory.path()).unwrap();
            test(&disk, directory.path());
        }
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * 7 + i / 251) % 256).unwrap()).collect()
}

#[test]
fn the_real_disk_behaves_as_the_simulated_one() {
    on_every_file_system(|disk, _| duramen_sim::disk_suite::behaves(disk));
}

#[test]
fn all_buffers_of_a_write_land_in_order() {
    on_every_file_system(|disk, _| {
        let bytes = pattern(3 * WRITE_BUFS_MAX * 5 + 3);
        let bufs: Vec<&[u8]> = bytes.chunks(5).collect();
        let file = disk.create("a").unwrap();
        disk.write_at(&file, &[b"0123456789"], 0).unwrap();
        disk.write_at(&file, &bufs, 7).unwrap();
        disk.write_at(&file, &[b"", b"", b""], 3).unwrap();
        assert_eq!(disk.len(&file).unwrap(), 7 + bytes.len() as u64);
        let mut back = vec![0; bytes.len() + 7];
        assert_eq!(disk.read_at(&file, &mut back, 0).unwrap(), back.len());
        assert_eq!(&back[..7], b"0123456");
        assert_eq!(&back[7..], bytes);
    });
}

#[test]
fn reads_are_short_only_at_the_end() {
    on_every_file_system(|disk, _| {
        let bytes = pattern(10_000);
        let file = disk.create("a").unwrap();
        disk.write_at(&file, &[&bytes], 0).unwrap();
        let mut buf = vec![0; 6_000];
        assert_eq!(disk.read_at(&file, &mut buf, 6_000).unwrap(), 4_000);
        assert_eq!(&buf[..4_000], &bytes[6_000..]);
        assert_eq!(disk.read_at(&file, &mut buf, 10_000).unwrap(), 0);
        assert_eq!(disk.read_at(&file, &mut buf, 90_000).unwrap(), 0);
    });
}

#[test]
fn the_medium_gives_what_was_written_at_any_alignment() {
    on_every_file_system(|disk, _| {
        let bytes = pattern(20_001);
        let file = disk.create("a").unwrap();
        disk.write_at(&file, &[&bytes], 0).unwrap();
        for at in [0, 1, 511, 4_095, 4_096, 4_097, 19_999, 20_000, 20_001, 24_576, 100_000] {
            for len in [0, 1, 512, 4_096, 4_097, 12_288, 20_001, 40_000] {
                let start = at.min(bytes.len());
                let end = (at + len).min(bytes.len());
                let read = disk.read_medium(&file, at as u64, len).unwrap();
                assert_eq!(read, &bytes[start..end], "{len} bytes at {at}");
            }
        }
    });
}

#[test]
fn the_medium_gives_a_removed_file_too() {
    on_every_file_system(|disk, _| {
        let bytes = pattern(9_000);
        let file = disk.create("a").unwrap();
        disk.write_at(&file, &[&bytes], 0).unwrap();
        disk.remove_file("a").unwrap();
        assert_eq!(disk.read_medium(&file, 0, 9_000).unwrap(), bytes);
        let mut buf = vec![0; 9_000];
        assert_eq!(disk.read_at(&file, &mut buf, 0).unwrap(), 9_000);
        assert_eq!(buf, bytes);
    });
}

#[test]
fn paths_stay_inside_the_directory() {
    on_every_file_system(|disk, _| {
        for path in ["/etc/passwd", "../a", "t/../../a"] {
            assert_eq!(disk.open(path).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            assert!(disk.create(path).is_err());
        }
        assert!(disk.remove_dir("").is_err());
    });
}

#[test]
fn two_owners_cannot_have_one_directory() {
    on_every_file_system(|disk, path| {
        assert_eq!(RealDisk::open(path).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        assert!(disk.available().unwrap() > 0);
    });
}

#[test]
fn a_lock_ends_with_its_owner() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("made/on/the/way");
    drop(RealDisk::open(&path).unwrap());
    RealDisk::open(&path).unwrap();
}

#[test]
fn a_loaded_range_is_resident() {
    let directory = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(directory.path()).unwrap();
    let len = 3 * PROBE_STEP + 17;
    let file = disk.create("a").unwrap();
    disk.write_at(&file, &[&pattern(usize::try_from(len).unwrap())], 0).unwrap();
    disk.sync(&file).unwrap();
    assert!(file.is_resident(0, len));
    assert!(file.is_resident(5, 0));
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    file.load(0, len, 0).unwrap();
    assert!(file.is_resident(0, len));
    assert!(file.load(len, 10, 0).is_err());
}
