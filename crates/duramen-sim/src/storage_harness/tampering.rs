//! # Room card: tampering
//!
//! Purpose:    harm whole files between two starts, as an interrupted copy or a careless restore does.
//! Owns:       which files are harmed, and how; what a start may then say.
//! Interface:  [`World::remember_files`], [`World::tamper`].
//! Invariants: one harm a run; its choices come from a stream of their own.
//! Never:      harm that no start can notice: see `docs/testing.md`.
//! Tests:      with the harness; `tests/promises/tampering.rs` has every file and every harm of one directory.
//! Start at:   [`World::tamper`].

use bytes::Bytes;
use duramen_protocol::batch::batches;
use duramen_storage::Storage;
use duramen_storage::storage::Error;

use super::checks::Places;
use super::{Files, World};
use crate::failure::{Failure, wrong};
use crate::trace::tell;

/// Copies of all files that a run keeps.
const COPIES_MAX: usize = 3;

/// Harm done to a file.
#[derive(Debug)]
enum Harm {
    /// The file ends earlier.
    Cut(String, usize),
    Lost(String),
    Swapped(String, String),
    /// The first takes the place of the second.
    Copied(String, String),
    /// The file is as it was.
    Restored(String, Vec<u8>),
}

/// A file's new bytes, if it is still there, and its path.
type Touched = (Option<Vec<u8>>, String);

fn is_journal(path: &str) -> bool {
    path.starts_with("journal/")
}

/// Returns the end offset of the batch that ends at this byte of a segment, if one does.
fn end_offset_at(segment: &[u8], at: usize) -> Option<i64> {
    let batches = batches(Bytes::copy_from_slice(segment.get(..at)?));
    let ends: Result<Vec<i64>, _> =
        batches.map(|it| it.map(|it| it.header().end_offset())).collect();
    ends.ok()?.last().copied()
}

impl World {
    /// Keeps a copy of all files, now and then.
    pub(super) fn remember_files(&mut self) {
        if self.profile.rots && self.copies.len() < COPIES_MAX && self.tampering.chance(8) {
            self.copies.push(self.files_now());
        }
    }

    fn files_now(&self) -> Files {
        let files = self.disk.files().into_iter();
        files.filter_map(|(path, _)| Some((path.clone(), self.disk.contents(&path)?))).collect()
    }

    fn pick_harm(&mut self, files: &Files, is_closed: bool) -> Option<Harm> {
        let chance = &mut self.tampering;
        let all: Vec<&String> =
            files.iter().filter(|(_, it)| !it.is_empty()).map(|(path, _)| path).collect();
        let path = (*chance.pick(&all)).clone();
        // A second file of the same kind, mostly: it has the form that is expected.
        let kind = |path: &str| (is_journal(path), path.rsplit('.').next().map(str::to_owned));
        let alike = chance.chance(800);
        let others: Vec<&&String> = all
            .iter()
            .filter(|other| ***other != path && (!alike || kind(other) == kind(&path)))
            .collect();
        match chance.below(5) {
            0 => Some(Harm::Cut(path.clone(), chance.index(files[&path].len()))),
            1 => Some(Harm::Lost(path)),
            // The end of the journal is known for sure only of a process that ended in good order.
            _ if is_journal(&path) && !is_closed => None,
            2 | 3 if others.is_empty() => None,
            2 => Some(Harm::Swapped(path, (**chance.pick(&others)).clone())),
            3 => Some(Harm::Copied((**chance.pick(&others)).clone(), path)),
            _ if self.copies.is_empty() => None,
            _ => {
                let old = chance.pick(&self.copies).get(&path)?.clone();
                (old != files[&path]).then_some(Harm::Restored(path, old))
            }
        }
    }

    /// Harms a file while no process runs. The next start finds all acknowledged records, or says which it misses.
    pub(super) fn tamper(&mut self, is_closed: bool) -> Result<(), Failure> {
        let files = self.files_now();
        let Some(harm) = self.pick_harm(&files, is_closed) else { return self.reopen() };
        let name = match &harm {
            Harm::Restored(path, _) => format!("{path} restored"),
            other => format!("{other:?}"),
        };
        tell(|| name.clone());
        let touched: Vec<Touched> = match harm {
            Harm::Cut(path, len) => vec![(Some(files[&path][..len].to_vec()), path)],
            Harm::Lost(path) => vec![(None, path)],
            Harm::Swapped(one, other) => {
                let (of_one, of_other) = (files[&one].clone(), files[&other].clone());
                vec![(Some(of_other), one), (Some(of_one), other)]
            }
            Harm::Copied(from, to) => vec![(Some(files[&from].clone()), to)],
            Harm::Restored(path, old) => vec![(Some(old), path)],
        };
        let timely = !touched.iter().any(|(_, path)| path.ends_with("index"));
        let segments = touched.iter().filter(|(_, path)| path.rsplit('.').next() == Some("log"));
        let directories = |touched: Vec<&Touched>| {
            let named = touched.into_iter().filter_map(|(_, path)| path.split_once('/'));
            named.map(|(directory, _)| directory.to_owned()).collect()
        };
        let is_alike = |(bytes, path): &&Touched| {
            let (own, len) = (&files[path], files[path].len());
            let end = end_offset_at(own, len);
            end.is_some() && bytes.as_ref().is_some_and(|it| end_offset_at(it, len) == end)
        };
        let alike = directories(segments.clone().filter(is_alike).collect());
        let places = Places { timely, foreign: directories(segments.collect()), alike };
        for (bytes, path) in touched {
            self.disk.put(&path, bytes);
        }
        self.judge_start(&name, &places)
    }

    /// Judges a start over harm that may be noticed.
    pub(super) fn judge_start(&mut self, name: &str, places: &Places) -> Result<(), Failure> {
        match Storage::open(self.disk.clone(), self.options.clone()) {
            Err(Error::Damaged { .. } | Error::Foreign(_)) => Ok(()),
            Err(error) => wrong(format!("{name}: {}", super::chain(&error))),
            Ok((storage, found)) => {
                self.storage = Some(storage);
                let outcome =
                    self.adopt_rotten(&found).and_then(|()| self.check_rotten_reads(places));
                outcome.map_err(|failure| Failure::correctness(format!("{name}: {}", failure.what)))
            }
        }
    }
}
