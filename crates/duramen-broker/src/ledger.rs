//! # Room card: ledger
//!
//! Purpose:    the common state of all coordinators: live records of the log, appends under way, effects that wait for
//!             the node, names that are due. The form that Kafka gives their records.
//! Owns:       [`Ledger`], [`Live`], [`Due`]; [`versioned`] keys and values.
//! Interface:  [`Ledger::launch`] an append, [`Ledger::land`] its result; [`Ledger::push`], [`Ledger::take_outputs`];
//!             [`Ledger::close`]; [`Live::put`], [`Live::remove`], [`Live::first`], [`Live::before`]; [`Due::set`].
//! Invariants: every live key is here once, at the offset of its last durable record. So all records below
//!             [`Live::first`] may go. No ticket is given twice. Successes come in the order of the log.
//! Never:      values; the meaning of a record.
//! Tests:      `groups/coordinator/tests.rs`, `transactions/coordinator/tests.rs`, `shares/coordinator/tests.rs`.
//! Start at:   [`Ledger`].

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::ErrorCode;
use duramen_protocol::wire::{DecodeError, Decoder, EncodeError, Encoder, Message};

/// Key and value of a record in the log.
pub(crate) type Encoded = (Bytes, Option<Bytes>);

/// Encodes a value of the log: its version, then its content.
pub(crate) fn versioned(value: &impl Message, version: i16) -> Result<Bytes, EncodeError> {
    keyed(version, value, version)
}

/// Encodes a key of the log: its kind, then its content.
pub(crate) fn keyed(kind: i16, key: &impl Message, version: i16) -> Result<Bytes, EncodeError> {
    let mut e = Encoder::with_capacity(128);
    e.i16(kind);
    key.encode(&mut e, version)?;
    Ok(e.into_bytes().freeze())
}

/// Decodes the rest of a key or a value, of which no byte may be left over.
pub(crate) fn whole<T: Message>(mut d: Decoder, version: i16) -> Result<T, DecodeError> {
    let message = T::decode(&mut d, version)?;
    d.finish()?;
    Ok(message)
}

/// Decodes a value of any version that its layout knows.
pub(crate) fn decoded<T: Message>(value: Bytes) -> Result<T, DecodeError> {
    let mut d = Decoder::new(value);
    let version = d.i16()?;
    whole(d, version)
}

/// Decodes the value of a record, if it is no tombstone.
pub(crate) fn value_of<T: Message>(value: Option<Bytes>) -> Result<Option<T>, DecodeError> {
    value.map(decoded).transpose()
}

/// Number of an append of a coordinator.
pub(crate) type Ticket = u64;

/// State that every coordinator has. `K` is a key of its log, and `R` a record. `F` is its own part of an append under
/// way, and `O` an effect.
#[derive(Debug)]
pub(crate) struct Ledger<K, R, F, O> {
    pub live: Live<K>,
    flights: BTreeMap<Ticket, (Vec<R>, F)>,
    next_ticket: Ticket,
    /// Offset of the last append that succeeded; -1 before the first.
    landed: i64,
    outputs: Vec<O>,
}

impl<K, R, F, O> Default for Ledger<K, R, F, O> {
    fn default() -> Self {
        let (live, flights) = (Live::default(), BTreeMap::new());
        Self { live, flights, next_ticket: 0, landed: -1, outputs: Vec::new() }
    }
}

impl<K, R: Clone, F, O> Ledger<K, R, F, O> {
    /// Returns the ticket of the next append.
    pub(crate) fn next_ticket(&self) -> Ticket {
        self.next_ticket
    }

    /// Begins an append: notes its records and the coordinator's part of it, and pushes the effect.
    pub(crate) fn launch(
        &mut self,
        records: Vec<R>,
        flight: F,
        append: impl FnOnce(Ticket, Vec<R>) -> O,
    ) -> Ticket {
        assert!(!records.is_empty(), "a batch has a record");
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.outputs.push(append(ticket, records.clone()));
        let before = self.flights.insert(ticket, (records, flight));
        assert!(before.is_none(), "the ticket {ticket} is new");
        ticket
    }

    /// Ends an append. Returns nothing if the coordinator was unloaded since.
    pub(crate) fn land(
        &mut self,
        ticket: Ticket,
        result: Result<i64, ErrorCode>,
    ) -> Option<(Vec<R>, F)> {
        let landed = self.flights.remove(&ticket)?;
        if let Ok(base) = result {
            assert!(self.landed < base, "the append at {base} comes after that at {}", self.landed);
            self.landed = base;
        }
        Some(landed)
    }

    /// Returns the coordinator's part of an append that is under way.
    pub(crate) fn flight_mut(&mut self, ticket: Ticket) -> Option<&mut F> {
        self.flights.get_mut(&ticket).map(|(_, flight)| flight)
    }

    pub(crate) fn push(&mut self, output: O) {
        self.outputs.push(output);
    }

    /// Returns the effects of everything since the last call.
    pub(crate) fn take_outputs(&mut self) -> Vec<O> {
        mem::take(&mut self.outputs)
    }

    /// Returns the appends under way, each with its records and the coordinator's part of it.
    pub(crate) fn flights(&self) -> impl Iterator<Item = (Ticket, &[R], &F)> {
        self.flights.iter().map(|(ticket, (records, flight))| (*ticket, &records[..], flight))
    }

    #[cfg(test)]
    pub(crate) fn outputs(&self) -> &[O] {
        &self.outputs
    }

    /// Forgets the log, because another node coordinates now. Returns the coordinator's parts of all appends under way,
    /// whose results may still come in: so no ticket is used again.
    pub(crate) fn close(&mut self) -> Vec<F> {
        self.live = Live::default();
        mem::take(&mut self.flights).into_values().map(|(_, flight)| flight).collect()
    }
}

/// Takes records with these sizes, up to about `bytes_max` bytes, but at least one.
pub(crate) fn first_bytes<R>(sized: impl Iterator<Item = (R, usize)>, bytes_max: usize) -> Vec<R> {
    let (mut records, mut left) = (Vec::new(), bytes_max);
    for (record, bytes) in sized {
        if bytes > left && !records.is_empty() {
            break;
        }
        left = left.saturating_sub(bytes);
        records.push(record);
    }
    records
}

/// Names by the time at which they are due at the earliest, in monotonic microseconds.
#[derive(Debug, Default)]
pub(crate) struct Due(BTreeSet<(u64, Arc<str>)>);

impl Due {
    /// Returns the time at which the first name is due.
    pub(crate) fn first_us(&self) -> Option<u64> {
        self.0.first().map(|(due_us, _)| *due_us)
    }

    /// Returns the names that are due by now.
    pub(crate) fn by(&self, now_us: u64) -> Vec<Arc<str>> {
        let due = self.0.iter().take_while(|(due_us, _)| *due_us <= now_us);
        due.map(|(_, name)| name.clone()).collect()
    }

    /// Changes the time of a name, which its owner keeps in `place`.
    pub(crate) fn set(&mut self, name: &Arc<str>, place: &mut Option<u64>, due_us: Option<u64>) {
        if *place == due_us {
            return;
        }
        if let Some(before_us) = mem::replace(place, due_us) {
            let was_there = self.0.remove(&(before_us, name.clone()));
            assert!(was_there, "{name} was due at {before_us}");
        }
        if let Some(due_us) = due_us {
            self.0.insert((due_us, name.clone()));
        }
    }

    /// Returns the count of names that are due at some time.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Tells whether a name stands at this time.
    pub(crate) fn has(&self, name: &Arc<str>, due_us: u64) -> bool {
        self.0.contains(&(due_us, name.clone()))
    }
}

/// The live keys, by the offset of their last record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Live<K> {
    keys: BTreeMap<i64, (K, usize)>,
    bytes: usize,
}

impl<K> Default for Live<K> {
    fn default() -> Self {
        Self { keys: BTreeMap::new(), bytes: 0 }
    }
}

impl<K> Live<K> {
    /// Records that the record at this offset is the last one of a key, and its approximate size in bytes.
    pub(crate) fn put(&mut self, at: i64, key: K, bytes: usize) {
        debug_assert!(!self.keys.contains_key(&at), "there is one record at {at}");
        self.bytes += bytes;
        self.keys.insert(at, (key, bytes));
    }

    /// Removes the record at this offset, which is no longer live.
    pub(crate) fn remove(&mut self, at: i64) {
        if let Some((_, bytes)) = self.keys.remove(&at) {
            self.bytes -= bytes;
        }
    }

    /// Returns the key whose last record is at this offset.
    pub(crate) fn at(&self, offset: i64) -> Option<&K> {
        self.keys.get(&offset).map(|(key, _)| key)
    }

    /// Returns the offset of the first live record.
    pub(crate) fn first(&self) -> Option<i64> {
        self.keys.keys().next().copied()
    }

    /// Returns the count of keys, and the approximate size of their records in bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.keys.len(), self.bytes)
    }

    /// Returns the keys whose last record lies before an offset, oldest first, with the size of each record.
    pub(crate) fn before(&self, end: i64) -> impl Iterator<Item = (&K, usize)> {
        self.keys.range(..end).map(|(_, (key, bytes))| (key, *bytes))
    }
}
