//! # Room card: process
//!
//! Purpose:    metrics of the process and of its disk, as other programs name them.
//! Owns:       the standard `process_*` metrics, the version, and the space of the data directory.
//! Interface:  [`Process`], [`DEFS`].
//! Invariants: everything is read at the scrape, on a thread that may wait. What the machine does not tell is left out.
//! Never:      the node.
//! Tests:      below; `tests/server.rs`.
//! Start at:   [`Process::tables`].
//!
//! The files of `/proc` are read here and not by a crate: two of their lines are all that is needed.

use std::fs::{read_dir, read_to_string};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::exposition::{Def, Kind, Labels, Table, Value, label};
use crate::server::disk::RealDisk;

/// The metrics of this room.
pub(crate) static DEFS: [Def; 12] = [
    Def {
        name: "duramen_build_info",
        kind: Kind::Gauge,
        labels: &["version"],
        help: "1, with the version of this program",
    },
    Def {
        name: "process_cpu_seconds",
        kind: Kind::Counter,
        labels: &[],
        help: "Time of processors that the process used, in seconds",
    },
    Def {
        name: "process_resident_memory_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Memory of the process that is in RAM, in bytes",
    },
    Def {
        name: "process_virtual_memory_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Address space of the process, in bytes",
    },
    Def { name: "process_threads", kind: Kind::Gauge, labels: &[], help: "Threads of the process" },
    Def {
        name: "process_start_time_seconds",
        kind: Kind::Gauge,
        labels: &[],
        help: "Time of the process's start, in seconds since 1970",
    },
    Def {
        name: "process_open_fds",
        kind: Kind::Gauge,
        labels: &[],
        help: "Open file descriptors of the process",
    },
    Def {
        name: "process_max_fds",
        kind: Kind::Gauge,
        labels: &[],
        help: "Most file descriptors that the process may open",
    },
    Def {
        name: "duramen_process_read_bytes",
        kind: Kind::Counter,
        labels: &[],
        help: "Bytes that the process caused to be read from disks",
    },
    Def {
        name: "duramen_process_written_bytes",
        kind: Kind::Counter,
        labels: &[],
        help: "Bytes that the process caused to be written to disks",
    },
    Def {
        name: "duramen_disk_total_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Size of the file system of the data directory, in bytes",
    },
    Def {
        name: "duramen_disk_free_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Free space on the file system of the data directory, in bytes",
    },
];

/// The process, and the disk of its data directory once that is open.
#[derive(Debug)]
pub(crate) struct Process {
    disk: OnceLock<RealDisk>,
    /// Time of its start, in seconds since 1970.
    started: Option<f64>,
}

/// One reading of `/proc/self/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    /// Time of processors, in ticks.
    cpu_ticks: u64,
    threads: u64,
    /// Start, in ticks since the machine's.
    started_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Process {
    pub(crate) fn new() -> Self {
        let stat = read_to_string("/proc/self/stat").ok().and_then(|text| parse_stat(&text));
        Self { disk: OnceLock::new(), started: stat.map(started) }
    }

    /// Sets the disk whose space is shown.
    pub(crate) fn set_disk(&self, disk: RealDisk) {
        let _ = self.disk.set(disk);
    }

    /// Reads everything. Counting descriptors takes longer the more of them are open.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let mut version = Table::of(&DEFS[0]);
        let labels: Labels = [label(env!("CARGO_PKG_VERSION"))].into();
        version.push(&labels, Value::Whole(1));
        let stat = read_to_string("/proc/self/stat").ok().and_then(|text| parse_stat(&text));
        let io = read_to_string("/proc/self/io").ok();
        let io = |name: &str| field_of(io.as_deref()?, name);
        // The directory that is being read has a descriptor, too.
        let descriptors = read_dir("/proc/self/fd").ok().map(|all| all.count().saturating_sub(1));
        let volume = self.disk.get().and_then(|disk| disk.volume().ok());
        let bytes = |bytes: i64| Value::Whole(u64::try_from(bytes).unwrap_or(0));
        let values = [
            stat.map(|it| Value::Real(it.cpu_ticks as f64 / clock_ticks_per_second() as f64)),
            stat.map(|it| Value::Whole(it.resident_pages * page_size() as u64)),
            stat.map(|it| Value::Whole(it.virtual_bytes)),
            stat.map(|it| Value::Whole(it.threads)),
            self.started.map(Value::Real),
            descriptors.map(|count| Value::Whole(count as u64)),
            getrlimit(Resource::Nofile).current.map(Value::Whole),
            io("read_bytes").map(Value::Whole),
            io("write_bytes").map(Value::Whole),
            volume.map(|(total, _)| bytes(total)),
            volume.map(|(_, free)| bytes(free)),
        ];
        let rest = DEFS[1..].iter().zip(values);
        let rest = rest.filter_map(|(def, value)| Some(Table::one(def, value?)));
        std::iter::once(version).chain(rest).collect()
    }
}

/// Parses a line of `/proc/PID/stat`. The program's name in it may hold spaces and parentheses.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // The first field here is the third of the line.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Stat {
        cpu_ticks: number(14)? + number(15)?,
        threads: number(20)?,
        started_ticks: number(22)?,
        virtual_bytes: number(23)?,
        resident_pages: number(24)?,
    })
}

fn field_of(text: &str, name: &str) -> Option<u64> {
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    lines.into_iter().find(|(key, _)| *key == name)?.1.parse().ok()
}

/// Returns the time of the process's start, in seconds since 1970.
fn started(stat: Stat) -> f64 {
    let read = clock_gettime(ClockId::Boottime);
    let since_boot = read.tv_sec as f64 + read.tv_nsec as f64 / 1e9;
    let age = since_boot - stat.started_ticks as f64 / clock_ticks_per_second() as f64;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_secs_f64() - age
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_proc_is_read_whatever_the_program_is_called() {
        let text = "7 (a) b (c) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 9 0 1234 4096 55 1";
        let wanted = Stat {
            cpu_ticks: 300,
            threads: 9,
            started_ticks: 1234,
            virtual_bytes: 4096,
            resident_pages: 55,
        };
        assert_eq!(parse_stat(text), Some(wanted));
        assert_eq!(parse_stat("7 (a) S 1"), None);
        assert_eq!(field_of("rchar: 1\nread_bytes: 20\n", "read_bytes"), Some(20));
    }

    #[test]
    fn the_process_shows_itself() {
        let process = Process::new();
        let tables = process.tables();
        let value = |name: &str| {
            let table = tables.iter().find(|it| it.name == name);
            match table.expect(name).rows[0].1 {
                Value::Whole(number) => number as f64,
                Value::Real(number) => number,
                Value::Spread(_) => unreachable!("no histogram is here"),
            }
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - value("process_start_time_seconds");
        assert!((0.0..3600.0).contains(&age), "it started {age} seconds ago");
        assert!(value("process_resident_memory_bytes") < value("process_virtual_memory_bytes"));
        assert!((3.0..value("process_max_fds")).contains(&value("process_open_fds")));
        assert!(value("process_threads") >= 1.0);
        assert!(value("process_cpu_seconds") <= age * 1024.0);
        assert!(tables.iter().all(|it| !it.name.contains("disk_")), "no directory is open");
    }
}
