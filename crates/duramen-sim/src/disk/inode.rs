//! # Room card: inode
//!
//! Purpose:    one file's bytes, on the medium and in the page cache.
//! Owns:       which bytes a crash may leave behind.
//! Interface:  [`Inode`].
//! Invariants: a page without an entry in `pages` is the same in the cache and on the medium.
//!             Only [`Inode::sync`] and [`Inode::power_loss`] change what is durable.
//! Never:      names, faults by schedule.
//! Tests:      `tests/promises/disk.rs`.
//! Start at:   [`Inode::power_loss`].

use std::collections::BTreeMap;

use crate::prng::Prng;

/// The page cache's unit, and that of an unsynced write's survival.
pub(crate) const PAGE: usize = 4096;
/// The device's unit: a page is torn between sectors, never inside one.
pub(crate) const SECTOR: usize = 512;
/// Versions of a page kept between two syncs; the oldest are forgotten.
const VERSIONS_MAX: usize = 4;

/// A page that is not simply durable.
#[derive(Clone, Debug, Default)]
struct Page {
    /// The cache is newer than the medium, and the kernel knows it.
    dirty: bool,
    /// Versions written back since the last sync, oldest first: the device may hold any of them in its volatile cache.
    /// A direct read returns the last.
    versions: Vec<Vec<u8>>,
}

/// Share of the unsynced data that survives a power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Luck {
    /// Nothing.
    None,
    /// Everything.
    All,
    /// Each piece with this chance in a thousand.
    Some(u64),
}

impl Luck {
    pub(crate) fn draw(prng: &mut Prng) -> Self {
        match prng.below(8) {
            0 => Self::None,
            1 => Self::All,
            2 => Self::Some(100),
            3 => Self::Some(900),
            _ => Self::Some(500),
        }
    }

    pub(crate) fn holds(self, prng: &mut Prng) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Some(per_mille) => prng.chance(per_mille),
        }
    }
}

/// One file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inode {
    /// Bytes that reads through the page cache see.
    visible: Vec<u8>,
    /// Bytes that a power loss leaves if nothing unsynced survives.
    durable: Vec<u8>,
    /// Pages that differ, or may.
    pages: BTreeMap<usize, Page>,
    /// Lengths since the last sync, oldest first, without the durable one.
    lengths: Vec<usize>,
    /// Pages that take space.
    allocated: Vec<bool>,
    /// True if a name leads here; without one, and without handles, the file takes no space.
    pub(crate) linked: bool,
    /// Counts failed write-backs.
    pub(crate) errors: u64,
    /// True if a sync has returned the last error.
    pub(crate) error_seen: bool,
    /// Open handles of the living process.
    pub(crate) handles: u32,
}

fn page_of(bytes: &[u8], page: usize) -> Vec<u8> {
    let mut copy = vec![0; PAGE];
    let from = (page * PAGE).min(bytes.len());
    let to = (from + PAGE).min(bytes.len());
    copy[..to - from].copy_from_slice(&bytes[from..to]);
    copy
}

fn put_page(bytes: &mut [u8], page: usize, content: &[u8]) {
    let from = (page * PAGE).min(bytes.len());
    let to = (from + PAGE).min(bytes.len());
    bytes[from..to].copy_from_slice(&content[..to - from]);
}

impl Inode {
    pub(crate) fn len(&self) -> usize {
        self.visible.len()
    }

    pub(crate) fn visible(&self) -> &[u8] {
        &self.visible
    }

    pub(crate) fn space(&self) -> u64 {
        (self.allocated.iter().filter(|used| **used).count() * PAGE) as u64
    }

    /// Returns the bytes of new space that the pages of a write take.
    pub(crate) fn needs(&self, at: usize, len: usize) -> u64 {
        let pages = at / PAGE..(at + len).div_ceil(PAGE);
        (pages.filter(|page| !self.allocated.get(*page).copied().unwrap_or(false)).count() * PAGE)
            as u64
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.pages.values().any(|page| page.dirty)
    }

    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = at + bytes.len();
        if end > self.visible.len() {
            self.extend(end);
        }
        self.visible[at..end].copy_from_slice(bytes);
        for page in at / PAGE..end.div_ceil(PAGE) {
            self.pages.entry(page).or_default().dirty = true;
            if self.allocated.len() <= page {
                self.allocated.resize(page + 1, false);
            }
            self.allocated[page] = true;
        }
    }

    pub(crate) fn set_len(&mut self, len: usize) {
        if len > self.visible.len() {
            self.extend(len);
        } else if len < self.visible.len() {
            self.visible.truncate(len);
            self.lengths.push(len);
            self.allocated.truncate(len.div_ceil(PAGE));
            for (_, page) in self.pages.range_mut(len.div_ceil(PAGE)..) {
                page.dirty = false;
            }
            if !len.is_multiple_of(PAGE) {
                self.pages.entry(len / PAGE).or_default().dirty = true;
            }
        }
    }

    /// Grows the file with zeros; where an unsynced cut had taken bytes away, they may still be
    /// on the medium.
    fn extend(&mut self, len: usize) {
        let old = self.visible.len();
        self.visible.resize(len, 0);
        self.lengths.push(len);
        for page in old / PAGE..len.div_ceil(PAGE) {
            if self.pages.contains_key(&page) || page * PAGE < self.durable.len() {
                self.pages.entry(page).or_default().dirty = true;
            }
        }
    }

    /// Writes one dirty page to the device's volatile cache.
    fn write_back_page(&mut self, number: usize) {
        let content = page_of(&self.visible, number);
        let page = self.pages.get_mut(&number).expect("the caller found it");
        page.dirty = false;
        page.versions.push(content);
        if page.versions.len() > VERSIONS_MAX {
            page.versions.remove(0);
        }
    }

    /// Writes some dirty pages back, as the kernel does when it likes.
    pub(crate) fn write_back(&mut self, luck: Luck, prng: &mut Prng) {
        for number in self.dirty_pages() {
            if luck.holds(prng) {
                self.write_back_page(number);
            }
        }
    }

    fn dirty_pages(&self) -> Vec<usize> {
        let dirty = self.pages.iter().filter(|(_, page)| page.dirty);
        dirty.map(|(number, _)| *number).collect()
    }

    /// Fails a write-back: each dirty page is marked clean; it reached the device whole, in part, or not at all. The
    /// cache keeps the new bytes.
    pub(crate) fn fail_write_back(&mut self, prng: &mut Prng) {
        for number in self.dirty_pages() {
            match prng.below(4) {
                0 => self.write_back_page(number),
                1 => {
                    let old = self.direct_page(number);
                    let torn = mix_sectors(&old, &page_of(&self.visible, number), prng);
                    let page = self.pages.get_mut(&number).expect("it is dirty");
                    page.dirty = false;
                    page.versions.push(torn);
                }
                _ => self.pages.get_mut(&number).expect("it is dirty").dirty = false,
            }
        }
        self.errors += 1;
        self.error_seen = false;
    }

    /// Returns the bytes that the device holds of a page, its volatile cache included.
    fn direct_page(&self, number: usize) -> Vec<u8> {
        match self.pages.get(&number).and_then(|page| page.versions.last()) {
            Some(version) => version.clone(),
            None => page_of(&self.durable, number),
        }
    }

    /// Reads directly: dirty pages of the range go to the device first. Pages that a failed write-back left marked
    /// clean give the device's bytes.
    pub(crate) fn read_direct(&mut self, at: usize, len: usize) -> Vec<u8> {
        let end = (at + len).min(self.visible.len());
        if at >= end {
            return Vec::new();
        }
        let mut out = self.visible[at..end].to_vec();
        let first = at / PAGE;
        let within: Vec<usize> =
            self.pages.range(first..end.div_ceil(PAGE)).map(|(number, _)| *number).collect();
        for number in within {
            if self.pages[&number].dirty {
                self.write_back_page(number);
            }
            let content = self.direct_page(number);
            let from = (number * PAGE).max(at);
            let to = (number * PAGE + PAGE).min(end);
            out[from - at..to - at]
                .copy_from_slice(&content[from - number * PAGE..to - number * PAGE]);
        }
        out
    }

    /// Syncs with success. Pages that an earlier failure marked clean are not written again.
    pub(crate) fn sync(&mut self) {
        self.durable.resize(self.visible.len(), 0);
        self.lengths.clear();
        let end = self.visible.len().div_ceil(PAGE);
        self.pages.split_off(&end);
        let mut pages = std::mem::take(&mut self.pages);
        pages.retain(|number, page| {
            let now = page_of(&self.visible, *number);
            if page.dirty {
                put_page(&mut self.durable, *number, &now);
            } else if let Some(version) = page.versions.last() {
                put_page(&mut self.durable, *number, version);
            }
            *page = Page::default();
            page_of(&self.durable, *number) != now
        });
        self.pages = pages;
    }

    /// Drops clean pages from the cache whose bytes never reached the device.
    pub(crate) fn evict(&mut self, luck: Luck, prng: &mut Prng) {
        let clean: Vec<usize> =
            self.pages.iter().filter(|(_, page)| !page.dirty).map(|(number, _)| *number).collect();
        for number in clean {
            if number * PAGE < self.visible.len() && luck.holds(prng) {
                let content = self.direct_page(number);
                put_page(&mut self.visible, number, &content);
                if self.pages[&number].versions.is_empty() {
                    self.pages.remove(&number);
                }
            }
        }
    }

    /// Cuts the power. The length is one of those since the last sync. Each unsynced page is one of its versions, or a
    /// mixture of two, sector by sector.
    pub(crate) fn power_loss(&mut self, length: Luck, page: Luck, prng: &mut Prng) {
        let mut len = self.durable.len();
        if let Some(last) = self.lengths.last() {
            len = match length {
                Luck::None => len,
                Luck::All => *last,
                Luck::Some(_) => {
                    let at = prng.index(self.lengths.len() + 1);
                    self.lengths.get(at).copied().unwrap_or(len)
                }
            };
        }
        let mut survived = vec![0; len];
        let kept = len.min(self.durable.len());
        survived[..kept].copy_from_slice(&self.durable[..kept]);
        for (number, state) in &self.pages {
            let mut candidates = vec![page_of(&self.durable, *number)];
            candidates.extend(state.versions.iter().cloned());
            if state.dirty {
                candidates.push(page_of(&self.visible, *number));
            }
            put_page(&mut survived, *number, &choose(&candidates, page, prng));
        }
        self.visible.clone_from(&survived);
        self.durable = survived;
        self.pages.clear();
        self.lengths.clear();
        self.allocated.resize(len.div_ceil(PAGE), true);
        self.errors = 0;
        self.error_seen = false;
        self.handles = 0;
    }

    /// Gives the file these bytes, all of them durable.
    pub(crate) fn put(&mut self, bytes: Vec<u8>) {
        self.durable.clone_from(&bytes);
        self.allocated = vec![true; bytes.len().div_ceil(PAGE)];
        self.visible = bytes;
        self.pages.clear();
        self.lengths.clear();
        self.linked = true;
    }

    /// Flips one bit of bytes at rest, as rot does.
    pub(crate) fn flip(&mut self, at: usize, bit: u8) {
        assert!(!self.pages.contains_key(&(at / PAGE)), "only what is durable can rot at rest");
        self.visible[at] ^= 1 << bit;
        self.durable[at] ^= 1 << bit;
    }

    /// Tells whether a byte is on the medium and the same in the cache.
    pub(crate) fn is_at_rest(&self, at: usize) -> bool {
        at < self.durable.len() && at < self.visible.len() && !self.pages.contains_key(&(at / PAGE))
    }
}

fn choose(candidates: &[Vec<u8>], luck: Luck, prng: &mut Prng) -> Vec<u8> {
    let last = candidates.len() - 1;
    match luck {
        Luck::None => candidates[0].clone(),
        Luck::All => candidates[last].clone(),
        Luck::Some(_) if !luck.holds(prng) => candidates[0].clone(),
        Luck::Some(_) => {
            let one = prng.index(candidates.len());
            if prng.chance(300) {
                let other = prng.index(candidates.len());
                mix_sectors(&candidates[other], &candidates[one.max(1).min(last)], prng)
            } else {
                candidates[one.max(1).min(last)].clone()
            }
        }
    }
}

fn mix_sectors(old: &[u8], new: &[u8], prng: &mut Prng) -> Vec<u8> {
    let mut mixed = old.to_vec();
    for sector in (0..PAGE).step_by(SECTOR) {
        if prng.chance(500) {
            mixed[sector..sector + SECTOR].copy_from_slice(&new[sector..sector + SECTOR]);
        }
    }
    mixed
}
