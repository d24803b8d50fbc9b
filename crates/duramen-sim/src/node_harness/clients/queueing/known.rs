//! Edits of one queue, as the clients know them: elements that may be gone, contents that must not be shown, fences.

use std::collections::{BTreeMap, BTreeSet};

use crate::failure::{Failure, wrong};
use crate::prng::Prng;

/// Edits of one queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Edits {
    /// Number of deletions of each element that were asked for.
    deleting: BTreeMap<i64, usize>,
    /// Elements of which a deletion was acknowledged.
    deleted: BTreeSet<i64>,
    /// Number of replacements of each element that were asked for, but for those that were refused.
    replacing: BTreeMap<i64, usize>,
    /// Offsets of the contents of each element that replaced another, as far as they were acknowledged.
    contents: BTreeMap<i64, BTreeSet<i64>>,
    /// Rewrites that were asked for, but for those that were refused.
    cuts: BTreeMap<u64, Cut>,
    /// First offset that no trim of the queue asked for, and the first behind all acknowledged ones.
    trims: (i64, i64),
    fences: Fences,
}

/// Fences of one queue.
#[derive(Clone, Debug, Default)]
struct Fences {
    /// Number of changes that were asked for.
    asked: u64,
    /// Token of each change whose outcome is not known; empty for none.
    open: BTreeMap<u64, Vec<u8>>,
    /// Token of each change that was acknowledged, by the offset at which the log says it.
    set: BTreeMap<i64, Vec<u8>>,
    /// Token of each append that was let through, by its offset.
    passed: BTreeMap<i64, Vec<u8>>,
}

impl Fences {
    fn at(&self, offset: i64) -> &[u8] {
        self.set.range(..offset).next_back().map_or(&[], |(_, token)| token)
    }

    /// Tells whether an append at an offset may have been let through with a token.
    fn may_pass(&self, offset: i64, token: &[u8]) -> bool {
        self.at(offset) == token || self.open.values().any(|it| it == token)
    }
}

/// Withdrawal of all elements behind an offset.
#[derive(Clone, Copy, Debug)]
struct Cut {
    after: i64,
    /// Offset of the entry, once a client has heard of it.
    at: Option<i64>,
}

/// Edits that were acknowledged before a question: no answer of a leader shows what they took away.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gone {
    deleted: BTreeSet<i64>,
    /// Contents that were replaced.
    replaced: BTreeSet<i64>,
    cuts: Vec<(i64, i64)>,
    /// The last offset that the queue has trimmed, or -1.
    trimmed: Option<i64>,
}

impl Gone {
    /// Adds what is gone of another queue of the same log.
    pub(super) fn add(&mut self, other: Self) {
        self.deleted.extend(other.deleted);
        self.replaced.extend(other.replaced);
    }

    /// Tells why an element with a content must not be shown, if so.
    pub(super) fn forbids(&self, element: i64, content: i64) -> Option<&'static str> {
        let is_cut = |(after, at): &(i64, i64)| *after < element && element < *at;
        if self.deleted.contains(&element) {
            Some("was deleted")
        } else if self.replaced.contains(&content) {
            Some("was replaced")
        } else if self.trimmed.is_some_and(|through| element <= through) {
            Some("was trimmed")
        } else {
            self.cuts.iter().any(is_cut).then_some("was withdrawn")
        }
    }
}

impl Edits {
    pub(super) fn ask_deletion(&mut self, element: i64) {
        *self.deleting.entry(element).or_default() += 1;
    }

    /// Returns the number of deletions of an element that were asked for.
    pub(super) fn deletions(&self, element: i64) -> usize {
        self.deleting.get(&element).copied().unwrap_or(0)
    }

    pub(super) fn ask_replacement(&mut self, element: i64) {
        *self.replacing.entry(element).or_default() += 1;
    }

    /// Notes that a replacement was refused.
    pub(super) fn drop_replacement(&mut self, element: i64) {
        *self.replacing.get_mut(&element).expect("it was asked for") -= 1;
    }

    pub(super) fn ask_cut(&mut self, number: u64, after: i64) {
        self.cuts.insert(number, Cut { after, at: None });
    }

    /// Notes that a rewrite was refused, or had nothing to do.
    pub(super) fn drop_cut(&mut self, number: u64) {
        self.cuts.remove(&number);
    }

    pub(super) fn on_deleted(&mut self, elements: &BTreeSet<i64>) {
        self.deleted.extend(elements);
    }

    pub(super) fn on_replaced(&mut self, element: i64, content: i64) {
        self.contents.entry(element).or_default().insert(content);
    }

    /// Notes the offset of a rewrite's entry.
    pub(super) fn on_cut(&mut self, number: u64, at: i64) {
        self.cuts.get_mut(&number).expect("it was asked for").at = Some(at);
    }

    /// Returns the offset behind which a rewrite withdrew.
    pub(super) fn after(&self, number: u64) -> Option<i64> {
        self.cuts.get(&number).map(|cut| cut.after)
    }

    /// Returns the element that was deleted first.
    pub(super) fn first_deleted(&self) -> Option<i64> {
        self.deleted.first().copied()
    }

    /// Returns the last acknowledged content of an element.
    pub(super) fn content(&self, element: i64) -> i64 {
        let last = self.contents.get(&element).and_then(BTreeSet::last);
        last.copied().unwrap_or(element)
    }

    /// Returns each content that replaced another, as far as it was acknowledged.
    pub(super) fn contents(&self) -> impl Iterator<Item = i64> {
        self.contents.values().flatten().copied()
    }

    /// Tells whether a rewrite may have withdrawn an element.
    pub(super) fn may_be_cut(&self, element: i64) -> bool {
        let may = |cut: &Cut| cut.after < element && cut.at.is_none_or(|at| element < at);
        self.cuts.values().any(may)
    }

    /// Returns the rewrite that withdrew an element which is gone, if no other edit can have taken the element, or
    /// the rewrite's own ones.
    pub(super) fn sole_cut(&self, element: i64) -> Option<u64> {
        let mut later = self.cuts.iter().filter(|(_, cut)| cut.at.is_none_or(|at| element < at));
        let (number, cut) = later.next().filter(|_| self.deletions(element) == 0)?;
        (later.next().is_none() && cut.after < element).then_some(*number)
    }

    /// Tells whether an element may be gone.
    pub(super) fn may_lack(&self, element: i64) -> bool {
        self.deletions(element) > 0 || self.may_be_cut(element)
    }

    /// Notes that elements up to an offset are to be trimmed.
    pub(super) fn ask_trim(&mut self, through: i64) {
        self.trims.0 = self.trims.0.max(through + 1);
    }

    /// Notes that elements up to an offset are trimmed.
    pub(super) fn on_trimmed(&mut self, through: i64) {
        self.trims.1 = self.trims.1.max(through + 1);
    }

    /// Returns the first offset that no trim of the queue asked for.
    pub(super) fn first(&self) -> i64 {
        self.trims.0
    }

    /// Notes that a token is to be the queue's, or none.
    pub(super) fn ask_fence(&mut self, number: u64, token: Vec<u8>) {
        self.fences.asked += 1;
        self.fences.open.insert(number, token);
    }

    /// Notes the outcome of a change of the fence: its offset, if the log says it.
    pub(super) fn on_fence(&mut self, number: u64, at: Option<i64>) -> Result<(), Failure> {
        let Some(token) = self.fences.open.remove(&number) else { return Ok(()) };
        let Some(at) = at else { return Ok(()) };
        self.fences.set.insert(at, token);
        let fences = &self.fences;
        let is_wrong = |(offset, token): &(&i64, &Vec<u8>)| !fences.may_pass(**offset, token);
        match fences.passed.range(at..).find(is_wrong) {
            Some((offset, token)) => {
                wrong(format!("{offset} was let through with {token:?}: {fences:?}"))
            }
            None => Ok(()),
        }
    }

    /// Returns a token for an append: mostly the last one that was acknowledged. Also the number of changes asked for,
    /// if the token is right unless there are more.
    pub(super) fn token(&self, work: &mut Prng) -> (Vec<u8>, Option<u64>) {
        let last = self.fences.at(i64::MAX).to_vec();
        if last.is_empty() || work.chance(300) {
            let known: Vec<_> = self.fences.set.values().chain(self.fences.open.values()).collect();
            let token = if known.is_empty() { b"0".to_vec() } else { (*work.pick(&known)).clone() };
            let is_right = token == last && self.fences.open.is_empty();
            return (token, is_right.then_some(self.fences.asked));
        }
        (last, self.fences.open.is_empty().then_some(self.fences.asked))
    }

    /// Judges an append that was let through with a token.
    pub(super) fn on_passed(&mut self, offset: i64, token: &[u8]) -> Result<(), Failure> {
        if !self.fences.may_pass(offset, token) {
            let fences = &self.fences;
            return wrong(format!("{offset} was let through with {token:?}: {fences:?}"));
        }
        self.fences.passed.insert(offset, token.to_vec());
        Ok(())
    }

    /// Tells whether a token that was right when there were so many changes is right still.
    pub(super) fn is_right(&self, asked: Option<u64>) -> bool {
        asked == Some(self.fences.asked)
    }

    /// Tells whether the record at an offset, an element's or a later content's, may be gone.
    pub(super) fn may_lack_content(&self, content: i64) -> bool {
        let of = self.contents.iter().find(|(_, all)| all.contains(&content));
        let element = of.map_or(content, |(element, _)| *element);
        let acked = self.contents.get(&element).map_or(0, BTreeSet::len);
        let asked = self.replacing.get(&element).copied().unwrap_or(0);
        let may_be_erased = element < self.first() || content < self.content(element);
        self.may_lack(element) || asked > acked || may_be_erased
    }

    /// Returns the records that are gone for certain, of a queue with these elements.
    pub(super) fn gone_in(&self, elements: &BTreeSet<i64>) -> Gone {
        let Gone { mut deleted, replaced, cuts, .. } = self.gone();
        for (after, at) in cuts {
            deleted.extend(elements.range(after + 1..at));
        }
        Gone { deleted, replaced, ..Gone::default() }
    }

    /// Returns what is gone for certain.
    pub(super) fn gone(&self) -> Gone {
        let mut replaced = BTreeSet::new();
        for (element, contents) in &self.contents {
            let all = [*element].into_iter().chain(contents.iter().copied());
            let last = self.content(*element);
            let is_cut = |cut: &Cut| cut.after < *element && cut.at.is_some_and(|at| *element < at);
            let goes = self.deleted.contains(element) || self.cuts.values().any(is_cut);
            replaced.extend(all.filter(|content| goes || *content < last));
        }
        let cuts = self.cuts.values().filter_map(|cut| Some((cut.after, cut.at?))).collect();
        let trimmed = Some(self.trims.1 - 1);
        Gone { deleted: self.deleted.clone(), replaced, cuts, trimmed }
    }
}
