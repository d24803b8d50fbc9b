//! Reads of queues: pages of elements, a queue's extent, lists of queues.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::BatchView;
use duramen_protocol::records::{ID_HEADER, Record, Records, Schedule};
use duramen_storage::keys::{
    Index, IndexError, Masks, NamedQueue, Replaced, Said, Standing, is_replacement,
};
use duramen_storage::op::ReplicaId;
use duramen_storage::reader::ReadError;
use duramen_storage::sabotage::{self, Bug};
use duramen_storage::{Disk, Reader};

use crate::checked_batch::digest_of;
use crate::event::{FoundElement, FoundElements, QueueLook, WantedElements};
use crate::limits::{
    DECOMPRESSED_BYTES_MAX, QUEUE_MASKS_MAX, QUEUE_PAGE_BATCHES, QUEUES_SAID_AGAIN,
};
use crate::native::{Pointer, Position, Repeat, Span, Trimmed};
use crate::partition::pointers::pointer_of;

/// Why a queue was not read.
#[derive(Debug)]
pub enum QueueError<E> {
    /// The index is not there, is behind, or is damaged: the node has to order it anew, and the read comes again.
    Index,
    /// The log cannot be read there.
    Log(ReadError),
    /// The batch that begins at this offset is none, or its records are none.
    Unreadable(i64),
    /// The queue is trimmed behind the place where the read begins: the first offset that is left, and the pointer.
    Trimmed(i64, Option<Pointer>),
    /// The taker's own.
    Taker(E),
}

impl<E> QueueError<E> {
    fn of_index(error: &IndexError) -> Self {
        tracing::warn!(%error, "a queue index is made anew");
        Self::Index
    }
}

/// Verdict of a page's taker on an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The page goes on.
    More,
    /// The page ends with this element.
    Last,
}

/// End of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageEnd {
    /// The last position that was looked at; `None` if the log has none.
    pub next: Option<Position>,
    /// True if there may be more elements now.
    pub more: bool,
    /// True if the page passed elements that the queue has trimmed, and says so.
    pub has_skipped: bool,
}

/// Extent of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Position of its first element.
    pub first: Option<Position>,
    /// Position of the element that was appended last and not withdrawn by a rewrite, deleted or not. A guard names it.
    pub last: Option<Position>,
    /// About the number of its elements: those that are gone, trimmed or aborted may be counted.
    pub about_elements: u64,
    /// Its fence; empty for none.
    pub fence: Bytes,
    /// Pointer that its latest trim kept.
    pub pointer: Option<Pointer>,
}

/// Edits of a queue, as the log says them below the cursor of its index.
#[derive(Debug, Default)]
struct Edits {
    /// Position of each element that has another content than its first, and the offset of that.
    contents: BTreeMap<i64, (Position, i64)>,
    /// Offsets between which all elements were withdrawn.
    cuts: Vec<(i64, i64)>,
    /// Elements that were deleted one by one.
    deleted: BTreeSet<i64>,
    standing: Standing,
    /// Masks of the same moment: a replaced element's old content is masked, and its new one is not.
    masks: Arc<Masks>,
}

impl Edits {
    fn of<D: Disk, E>(index: &Index<D>, span: &Span) -> Result<Self, QueueError<E>> {
        let found = index.facts(&span.name);
        let (facts, masks, cursor) = found.map_err(|error| QueueError::of_index(&error))?;
        if cursor < span.end {
            return Err(QueueError::Index);
        }
        let mut edits = Self { masks, ..Self::default() };
        let standing = Standing::of(&facts).map_err(|_| QueueError::Unreadable(cursor));
        edits.standing = standing?;
        for fact in facts {
            let said = Said::of(&fact).map_err(|_| QueueError::Unreadable(fact.offset))?;
            match said {
                Said::Deleted(it) => edits.deleted.extend(it.elements),
                Said::Trimmed { .. } | Said::Fenced { .. } => {}
                Said::Cut { after, .. } => edits.cuts.push((after, fact.offset)),
                Said::Gone(_) => edits.cuts.push((-1, fact.offset)),
                // Of an element's contents all but the last are masked.
                Said::Replaced(_) if edits.masks.hides(fact.offset) => {}
                Said::Replaced(Replaced { term, entry, offset, .. }) => {
                    let position = Position { term, entry, offset };
                    edits.contents.insert(offset, (position, fact.offset));
                }
            }
        }
        Ok(edits)
    }

    /// Returns the first offset of elements that the queue has not trimmed.
    fn first(&self) -> i64 {
        self.standing.trim().map_or(0, |(through, _)| through + 1)
    }

    /// Tells whether a rewrite withdrew the element at an offset.
    fn is_cut(&self, offset: i64) -> bool {
        self.cuts.iter().any(|(after, at)| *after < offset && offset < *at)
    }
}

/// Hands the elements of a queue in a part of a log to `take`, in order.
pub fn queue_page<D: Disk, E>(
    reader: &Reader<D>,
    span: &Span,
    mut take: impl FnMut(&Records, &Record<'_>, Position) -> Result<Taken, E>,
) -> Result<PageEnd, QueueError<E>> {
    page(reader, span, Which::Shown, |records, record, position| {
        let has_ended = Schedule::of(record).expires_ms <= span.ended_ms;
        if has_ended { Ok(Taken::More) } else { take(records, record, position) }
    })
}

/// Elements that a read is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// Those that are not deleted.
    Shown,
    /// All that were appended and are not erased, each with its first content.
    All,
}

fn page<D: Disk, E>(
    reader: &Reader<D>,
    span: &Span,
    which: Which,
    mut take: impl FnMut(&Records, &Record<'_>, Position) -> Result<Taken, E>,
) -> Result<PageEnd, QueueError<E>> {
    if span.is_empty() {
        // A replica that is behind the reader's position has none to go on behind.
        let last = Some(span.end - 1).filter(|last| *last >= 0 && span.end == span.from);
        let next = last.map(|last| position_at(reader, span, last)).transpose()?;
        return Ok(PageEnd { next: next.flatten(), more: !span.is_whole, has_skipped: false });
    }
    let index = index_of(reader, span)?;
    let (edits, first, has_skipped) = opened(&index, span, which)?;
    let masks = &edits.masks;
    let from = span.from.max(first);
    let found = index.postings(&span.name, from, QUEUE_PAGE_BATCHES);
    let (postings, cursor) = found.map_err(|error| QueueError::of_index(&error))?;
    if cursor < span.end {
        return Err(QueueError::Index);
    }
    let mut contents = edits.contents.range(from..span.end.max(from)).peekable();
    let is_full = postings.len() == QUEUE_PAGE_BATCHES;
    let is_cut = is_full && postings.last().is_some_and(|it| it.base_offset < span.end);
    let mut last = None;
    for posting in postings {
        if posting.base_offset >= span.end {
            break;
        }
        let batch = batch_at(reader, span.replica, (posting.base_offset, span.end))?;
        // If the batch was erased, this is another one, which has a posting of its own.
        let is_it = |it: &BatchView| it.header().base_offset == posting.base_offset;
        let Some(batch) = batch.filter(is_it) else { continue };
        let header = batch.header();
        let at = |offset| Position {
            term: header.partition_leader_epoch,
            entry: header.base_offset,
            offset,
        };
        last = Some(at(header.last_offset().min(span.end - 1))).filter(|it| it.offset >= span.from);
        if is_aborted(span, &batch) {
            continue;
        }
        let unreadable = |_| QueueError::Unreadable(header.base_offset);
        let records = Records::of(&batch, DECOMPRESSED_BYTES_MAX).map_err(unreadable)?;
        for record in &records {
            let record = record.map_err(unreadable)?;
            let offset = records.offset(&record);
            let is_here = from <= offset && offset < span.end;
            if !is_here || record.key != Some(&span.name[..]) {
                continue;
            }
            // Its first content may be erased, and with it every trace of the element at this place.
            while let Some(content) = contents.next_if(|(element, _)| **element <= offset) {
                if let Some(end) = take_content(reader, span, *content.1, &mut take)? {
                    return Ok(PageEnd { has_skipped, ..end });
                }
            }
            if masks.hides(offset) || is_replacement(&record) {
                continue;
            }
            if take(&records, &record, at(offset)).map_err(QueueError::Taker)? == Taken::Last {
                return Ok(PageEnd { next: Some(at(offset)), more: true, has_skipped });
            }
        }
    }
    let looked = if is_cut { last.map_or(span.from - 1, |last| last.offset) } else { i64::MAX };
    while let Some(content) = contents.next_if(|(element, _)| **element <= looked) {
        if let Some(end) = take_content(reader, span, *content.1, &mut take)? {
            return Ok(PageEnd { has_skipped, ..end });
        }
    }
    if is_cut {
        return Ok(PageEnd { next: last, more: true, has_skipped });
    }
    let next = position_at(reader, span, span.end - 1)?;
    Ok(PageEnd { next, more: !span.is_whole, has_skipped })
}

/// Returns the edits of a queue for a page, and the first offset that the page shows. True if the page says that it
/// passed trimmed elements.
fn opened<D: Disk, E>(
    index: &Index<D>,
    span: &Span,
    which: Which,
) -> Result<(Edits, i64, bool), QueueError<E>> {
    if which == Which::All {
        return Ok((Edits::default(), 0, false));
    }
    let edits = Edits::of(index, span)?;
    let first = if span.trimmed == Trimmed::Shown { 0 } else { edits.first() };
    let is_trimmed = span.from < first;
    if is_trimmed && span.trimmed == Trimmed::Refused {
        let pointer = edits.standing.trim().and_then(|(_, pointer)| pointer_of(pointer));
        return Err(QueueError::Trimmed(first, pointer));
    }
    Ok((edits, first, is_trimmed && span.trimmed == Trimmed::Skipped))
}

/// Hands an element over whose content is at another offset. Returns the end of a page that ends with it.
fn take_content<D: Disk, E>(
    reader: &Reader<D>,
    span: &Span,
    (position, at): (Position, i64),
    take: &mut impl FnMut(&Records, &Record<'_>, Position) -> Result<Taken, E>,
) -> Result<Option<PageEnd>, QueueError<E>> {
    let Some(batch) = batch_at(reader, span.replica, (at, at + 1))? else { return Ok(None) };
    let unreadable = |_| QueueError::Unreadable(at);
    let records = Records::of(&batch, DECOMPRESSED_BYTES_MAX).map_err(unreadable)?;
    let record = records.iter().next().transpose().map_err(unreadable)?;
    let record = record.filter(|it| it.key == Some(&span.name[..]) && records.offset(it) == at);
    let record = record.ok_or(QueueError::Unreadable(at))?;
    let taken = take(&records, &record, position).map_err(QueueError::Taker)?;
    let end = PageEnd { next: Some(position), more: true, has_skipped: false };
    Ok((taken == Taken::Last).then_some(end))
}

/// Looks for elements of a queue as a node asked for it. Finds its fence and trim as well, unless that was not asked.
pub(super) fn look_at_queue<D: Disk>(
    reader: &Reader<D>,
    wanted: &QueueLook,
) -> (FoundElements, Standing) {
    look(reader, wanted).unwrap_or_else(|error| {
        let found = match error {
            QueueError::Index => FoundElements::NoIndex,
            // The reader learns that from its page.
            QueueError::Trimmed(..) => FoundElements::Some,
            QueueError::Log(_) | QueueError::Unreadable(_) | QueueError::Taker(()) => {
                FoundElements::Unreadable
            }
        };
        (found, Standing::default())
    })
}

fn look<D: Disk>(
    reader: &Reader<D>,
    QueueLook { span, wanted, .. }: &QueueLook,
) -> Result<(FoundElements, Standing), QueueError<()>> {
    match wanted {
        WantedElements::Any => {
            let mut found = FoundElements::None;
            let page = queue_page::<D, ()>(reader, span, |_, _, _| {
                found = FoundElements::Some;
                Ok(Taken::Last)
            })?;
            // Behind batches of others, or aborted ones, there may be some.
            let found = if page.more { FoundElements::Some } else { found };
            return Ok((found, Standing::default()));
        }
        WantedElements::Kept(below) => {
            let kept = kept(reader, span, *below)?;
            return Ok((FoundElements::Kept(kept), Standing::default()));
        }
        WantedElements::Erasable(since, after_ms) => {
            let found = erasable(reader, span, *since, *after_ms)?;
            return Ok((found, Standing::default()));
        }
        _ => {}
    }
    // A log without records has no index.
    let edits = if span.is_empty() {
        Edits::default()
    } else {
        Edits::of(&*index_of(reader, span)?, span)?
    };
    let found = match wanted {
        WantedElements::Last => match last_element(reader, span, &edits)? {
            Some((position, is_transactional)) => FoundElements::Last(position, is_transactional),
            None => FoundElements::None,
        },
        WantedElements::These(offsets) => these(reader, span, offsets, &edits)?,
        WantedElements::Behind(after) => behind(reader, span, *after, &edits)?,
        _ => FoundElements::None,
    };
    Ok((found, edits.standing))
}

/// Finds the statements that a log has to repeat before it loses its records below an offset. One batch takes those of
/// so many queues.
fn kept<D: Disk>(
    reader: &Reader<D>,
    span: &Span,
    below: i64,
) -> Result<Vec<(Bytes, Said)>, QueueError<()>> {
    if span.is_empty() {
        return Ok(Vec::new());
    }
    let kept = index_of(reader, span)?.kept(below, QUEUES_SAID_AGAIN);
    let (kept, cursor) = kept.map_err(|error| QueueError::of_index(&error))?;
    if cursor < span.end { Err(QueueError::Index) } else { Ok(kept) }
}

/// Finds the statements from an offset on that took records away, and the time of the first one. Also finds the batch
/// that expires first, of those that begin there or expire after a time.
fn erasable<D: Disk>(
    reader: &Reader<D>,
    span: &Span,
    since: i64,
    after_ms: i64,
) -> Result<FoundElements, QueueError<()>> {
    if span.is_empty() {
        return Ok(FoundElements::Erasable(None, None));
    }
    let index = index_of(reader, span)?;
    let next = index.next_expiry(span.from, since, after_ms);
    let next = next.map_err(|error| QueueError::of_index(&error))?;
    let found = index.erasable(since.max(span.from));
    let (found, cursor) = found.map_err(|error| QueueError::of_index(&error))?;
    if cursor < span.end {
        return Err(QueueError::Index);
    }
    let Some(found) = found else { return Ok(FoundElements::Erasable(None, next)) };
    let batch = batch_at(reader, span.replica, (found.first, span.end))?;
    let time_ms = batch.map_or(i64::MAX, |batch| batch.header().max_timestamp);
    Ok(FoundElements::Erasable(Some((found, time_ms)), next))
}

/// Finds out which of these offsets hold elements of a queue that are to be seen.
fn these<D: Disk>(
    reader: &Reader<D>,
    span: &Span,
    offsets: &[i64],
    edits: &Edits,
) -> Result<FoundElements, QueueError<()>> {
    // The content of an element outlives the element's place in the log.
    let is_in_span =
        |it: &i64| (span.from..span.end).contains(it) || edits.contents.contains_key(it);
    let mut wanted = offsets.iter().copied().filter(is_in_span).peekable();
    let mut found = Vec::new();
    while let Some(first) = wanted.peek().copied() {
        if let Some((position, content)) = edits.contents.get(&first) {
            take_content(reader, span, (*position, *content), &mut |records, record, position| {
                found.push(found_element(records, record, position));
                Ok(Taken::More)
            })?;
            wanted.next();
            continue;
        }
        let Some(batch) = batch_at(reader, span.replica, (first, span.end))? else {
            // Its record is gone, and so are all behind it. Contents may be elsewhere.
            while wanted.next_if(|it| !edits.contents.contains_key(it)).is_some() {}
            continue;
        };
        let header = batch.header();
        let (term, entry) = (header.partition_leader_epoch, header.base_offset);
        let is_none = header.attributes.is_control() || is_aborted(span, &batch);
        let unreadable = |_| QueueError::Unreadable(header.base_offset);
        let is_first_content = |it: &i64| !edits.contents.contains_key(it);
        if !is_none {
            let records = Records::of(&batch, DECOMPRESSED_BYTES_MAX).map_err(unreadable)?;
            for record in &records {
                let record = record.map_err(unreadable)?;
                let offset = records.offset(&record);
                while wanted.next_if(|it| *it < offset && is_first_content(it)).is_some() {}
                let is_wanted =
                    wanted.next_if(|it| *it == offset && is_first_content(it)).is_some();
                let is_own = record.key == Some(&span.name[..]) && !is_replacement(&record)
                    || sabotage::is(Bug::EditUnverified);
                if is_wanted && is_own && !edits.masks.hides(offset) {
                    let position = Position { term, entry, offset };
                    found.push(found_element(&records, &record, position));
                }
            }
        }
        while wanted.next_if(|it| *it < header.end_offset() && is_first_content(it)).is_some() {}
    }
    Ok(FoundElements::These(found, edits.masks.count()))
}

/// Finds all elements of a queue behind an offset, but no more than a log may have masks. Behind all, there are also
/// the contents of elements that are gone with the log's first records.
fn behind<D: Disk>(
    reader: &Reader<D>,
    span: &Span,
    after: i64,
    edits: &Edits,
) -> Result<FoundElements, QueueError<()>> {
    let by_offset = sabotage::is(Bug::CutByOffset);
    let from = if by_offset { span.from } else { span.from.max(after + 1) };
    let rest = Span { from, ..span.clone() };
    let mut found = Vec::new();
    // Contents of elements that the log has lost are there, and go with them.
    if after + 1 < span.from {
        let trimmed = edits.contents.range(after + 1..span.from).map(|(_, it)| *it);
        found.extend(trimmed.map(|(position, content)| FoundElement {
            position,
            content,
            id: None,
            digest: 0,
        }));
    }
    elements(reader, &rest, Which::Shown, |records, record, position| {
        if !by_offset || records.offset(record) > after {
            found.push(found_element(records, record, position));
        }
        if found.len() as u64 > QUEUE_MASKS_MAX { Taken::Last } else { Taken::More }
    })?;
    Ok(FoundElements::These(found, edits.masks.count()))
}

fn found_element(records: &Records, record: &Record<'_>, position: Position) -> FoundElement {
    let id = id_of(record).map(Bytes::copy_from_slice);
    FoundElement { position, content: records.offset(record), id, digest: digest_of(record) }
}

/// Returns the position of the element that was appended last in a part of a log and not withdrawn by a rewrite. It may
/// be deleted. Tells whether it is of a transaction.
fn last_element<D: Disk, E>(
    reader: &Reader<D>,
    span: &Span,
    edits: &Edits,
) -> Result<Option<(Position, bool)>, QueueError<E>> {
    if span.is_empty() {
        return Ok(None);
    }
    let left = last_left(reader, span, edits)?;
    // The first content of a replaced one may be erased.
    let range = span.from..span.end;
    let replaced = edits.contents.range(range.clone()).next_back().map(|(_, it)| (it.0, false));
    let left = left.into_iter().chain(replaced).max_by_key(|(position, _)| position.offset);
    // And all of a deleted one. Its statement is there for as long as no other element is behind it.
    let deleted = edits.deleted.range(range).rev().find(|it| !edits.is_cut(**it)).copied();
    let is_later = |it: &i64| left.is_none_or(|(left, _)| left.offset < *it);
    let Some(offset) = deleted.filter(is_later) else { return Ok(left) };
    let term = reader.term_at(span.replica, offset).map_err(QueueError::Log)?;
    let term = term.and_then(|term| i32::try_from(term).ok());
    Ok(term.map(|term| (Position { term, entry: -1, offset }, false)))
}

/// Returns the same of those that are not erased.
fn last_left<D: Disk, E>(
    reader: &Reader<D>,
    span: &Span,
    edits: &Edits,
) -> Result<Option<(Position, bool)>, QueueError<E>> {
    let index = index_of(reader, span)?;
    let mut before = span.end;
    loop {
        let found = index.last_before(&span.name, before);
        let (posting, cursor) = found.map_err(|error| QueueError::of_index(&error))?;
        if cursor < span.end {
            return Err(QueueError::Index);
        }
        let Some(posting) = posting else { return Ok(None) };
        let only = Span { from: span.from.max(posting.base_offset), end: before, ..span.clone() };
        let mut last = None;
        page(reader, &only, Which::All, |_, _, position| {
            if !edits.is_cut(position.offset) {
                last = Some((position, posting.is_transactional));
            }
            Ok(Taken::More)
        })?;
        if last.is_some() || posting.base_offset <= span.from {
            return Ok(last);
        }
        before = posting.base_offset;
    }
}

/// Hands the elements of a queue in a part of a log to `take`, page by page, until that takes the last one.
fn elements<D: Disk, E>(
    reader: &Reader<D>,
    span: &Span,
    which: Which,
    mut take: impl FnMut(&Records, &Record<'_>, Position) -> Taken,
) -> Result<(), QueueError<E>> {
    let (mut rest, mut taken) = (span.clone(), Taken::More);
    loop {
        let page = page(reader, &rest, which, |records, record, position| {
            taken = take(records, record, position);
            Ok(taken)
        })?;
        let Some(next) = page.next.filter(|_| page.more && taken == Taken::More) else {
            return Ok(());
        };
        rest.from = rest.from.max(next.offset + 1);
        if rest.is_empty() {
            return Ok(());
        }
    }
}

/// Returns the first and last position of an append's records, if a part of a log begins with them.
pub(super) fn repeated<D: Disk>(
    reader: &Reader<D>,
    repeat: &Repeat,
) -> Result<Option<(Position, Position)>, QueueError<()>> {
    let Repeat { span, ids } = repeat;
    let mut left = ids.iter();
    let mut found = None;
    let mut take = |record: &Record<'_>, position| {
        if left.next().is_none_or(|id| id_of(record) != Some(id)) {
            found = None;
            return Taken::Last;
        }
        let (first, _) = found.unwrap_or((position, position));
        found = Some((first, position));
        if left.len() == 0 { Taken::Last } else { Taken::More }
    };
    if !span.name.is_empty() {
        let edits = Edits::of(&*index_of(reader, span)?, span)?;
        let (mut whole, mut has_begun) = (None, false);
        // An earlier attempt is one, whatever became of its elements since. It stands behind those that were withdrawn
        // before it.
        elements(reader, span, Which::All, |records, record, position| {
            if !has_begun {
                whole = whole_attempt(records, repeat, position);
                if whole.is_some() {
                    return Taken::Last;
                }
            }
            let is_first = id_of(record) == ids.first().map(|id| &id[..]);
            if !has_begun && !is_first && edits.is_cut(position.offset) {
                return Taken::More;
            }
            has_begun = true;
            take(record, position)
        })?;
        return Ok(whole.or(found.filter(|_| left.len() == 0)));
    }
    // An attempt on a log stands right behind the position that it expected.
    if span.has_skipped {
        return Ok(None);
    }
    let Some(batch) = batch_at(reader, span.replica, (span.from, span.end))? else {
        return Ok(None);
    };
    let header = batch.header();
    if header.base_offset != span.from || header.attributes.is_control() {
        return Ok(None);
    }
    let unreadable = |_| QueueError::Unreadable(header.base_offset);
    let records = Records::of(&batch, DECOMPRESSED_BYTES_MAX).map_err(unreadable)?;
    let (term, entry) = (header.partition_leader_epoch, header.base_offset);
    let whole = whole_attempt(&records, repeat, Position { term, entry, offset: entry });
    if whole.is_some() {
        return Ok(whole);
    }
    for record in &records {
        let record = record.map_err(unreadable)?;
        let offset = records.offset(&record);
        if take(&record, Position { term, entry, offset }) == Taken::Last {
            break;
        }
    }
    Ok(found.filter(|_| left.len() == 0))
}

/// Returns the first and last position of a batch that one append made, of which erasure may have taken records.
/// Erasure leaves the other records their places, and the batch its length.
fn whole_attempt(
    records: &Records,
    Repeat { span, ids }: &Repeat,
    Position { term, entry, .. }: Position,
) -> Option<(Position, Position)> {
    let at = |offset| Position { term, entry, offset };
    let is_in_place = |record: Result<Record<'_>, _>| {
        record.is_ok_and(|record| {
            let place = usize::try_from(records.offset(&record) - entry).ok();
            let id = place.and_then(|place| ids.get(place)).map(|id| &id[..]);
            let is_own = span.name.is_empty() || record.key == Some(&span.name[..]);
            is_own && id.is_some() && id_of(&record) == id
        })
    };
    let is_as_long = usize::try_from(records.last_offset() - entry + 1) == Ok(ids.len());
    let is_it = is_as_long && span.from <= entry && records.iter().all(is_in_place);
    is_it.then(|| (at(entry), at(records.last_offset())))
}

/// Returns the id that an append gave a record.
fn id_of<'a>(record: &Record<'a>) -> Option<&'a [u8]> {
    let id = record.headers.into_iter().find(|it| it.key == ID_HEADER.as_bytes());
    id.and_then(|it| it.value)
}

/// Returns the extent of a queue.
pub fn queue_extent<D: Disk, E>(reader: &Reader<D>, span: &Span) -> Result<Extent, QueueError<E>> {
    let mut extent = Extent::default();
    elements(reader, span, Which::Shown, |_, _, position| {
        extent.first = Some(position);
        Taken::Last
    })?;
    if span.is_empty() {
        return Ok(extent);
    }
    let index = index_of(reader, span)?;
    let edits = Edits::of(&index, span)?;
    extent.last = last_element(reader, span, &edits)?.map(|(position, _)| position);
    extent.fence = edits.standing.fence().cloned().unwrap_or_default();
    extent.pointer = edits.standing.trim().and_then(|(_, pointer)| pointer_of(pointer));
    let named = index.names(&span.name, None, (1, span.from));
    let (named, _) = named.map_err(|error| QueueError::of_index(&error))?;
    let own = named.into_iter().find(|it| it.name == span.name);
    extent.about_elements = own.map_or(0, |it| it.records.saturating_sub(it.withdrawn));
    Ok(extent)
}

/// Returns up to `limit` queues of a partition whose names begin with `prefix` and are behind `after`, in order.
pub fn queue_names<D: Disk, E>(
    reader: &Reader<D>,
    span: &Span,
    prefix: &[u8],
    after: Option<&[u8]>,
    limit: usize,
) -> Result<Vec<NamedQueue>, QueueError<E>> {
    if span.is_empty() {
        return Ok(Vec::new());
    }
    let index = index_of(reader, span)?;
    let found = index.names(prefix, after, (limit, span.from));
    let (names, cursor) = found.map_err(|error| QueueError::of_index(&error))?;
    if cursor < span.end { Err(QueueError::Index) } else { Ok(names) }
}

fn index_of<D: Disk, E>(
    reader: &Reader<D>,
    span: &Span,
) -> Result<std::sync::Arc<Index<D>>, QueueError<E>> {
    reader.index(span.replica).ok_or(QueueError::Index)
}

/// Reads the batch that holds an offset and begins below `end`; `None` if it is gone.
pub(super) fn batch_at<D: Disk, E>(
    reader: &Reader<D>,
    replica: ReplicaId,
    (offset, end): (i64, i64),
) -> Result<Option<BatchView>, QueueError<E>> {
    let read = || {
        let found = reader.locate(replica, offset, end, 1, true)?;
        found.map(|range| reader.read(replica, &range)).transpose()
    };
    let bytes: Option<Bytes> = match read() {
        // A trim took the segment away in the middle of the read.
        Err(ReadError::Removed) => read().map_err(QueueError::Log)?,
        Err(ReadError::OutOfRange) => None,
        other => other.map_err(QueueError::Log)?,
    };
    let parsed = bytes.map(|bytes| BatchView::parse(&bytes)).transpose();
    parsed.map_err(|_| QueueError::Unreadable(offset))
}

fn position_at<D: Disk, E>(
    reader: &Reader<D>,
    span: &Span,
    offset: i64,
) -> Result<Option<Position>, QueueError<E>> {
    let batch = batch_at(reader, span.replica, (offset, span.end))?;
    Ok(batch.map(|batch| Position {
        term: batch.header().partition_leader_epoch,
        entry: batch.header().base_offset,
        offset,
    }))
}

fn is_aborted(span: &Span, batch: &BatchView) -> bool {
    let header = batch.header();
    header.attributes.is_transactional()
        && span.aborted.iter().any(|(producer, first, last)| {
            header.producer_id == *producer && (*first..=*last).contains(&header.base_offset)
        })
}
