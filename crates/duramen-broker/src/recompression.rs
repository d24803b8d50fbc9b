//! # Room card: recompression
//!
//! Purpose:    batches in the codec of their topic (`compression.type`), made where no other client waits for it.
//! Owns:       [`Targets`], the topics that have a codec of their own; [`Target::make`], one batch in that codec.
//! Interface:  [`crate::Action::Targets`] brings the topics to whoever reads requests; [`Target::is_due`],
//!             [`Target::make`].
//! Invariants: a batch in its topic's codec keeps its bytes. Of another one the header and the records stay as they
//!             are, but for codec, length and checksum. Without such topics nothing is looked up and nothing changes.
//!             No batch is made that its topic would refuse for its size.
//! Never:      control batches; batches of fast appends that members may hold; batches of the node's own; compaction,
//!             which keeps the codec.
//! Tests:      `recompression/tests.rs`; `node/tests/recompression.rs`; `compat/wire/test_recompression.py`.
//! Start at:   [`Targets`].
//!
//! The node knows the settings, and may not spend the time: compression in its thread would hold up all clients. So the
//! node hands out a table of all topics with a codec of their own, whenever one of them changes. The table leaves
//! before the answers of the same turn, and sessions look there. The other way was a question to the node about each
//! batch. That would cost a turn, and a request that goes back and forth would need an order among those of its
//! connection. The price of the table: a request that is read while a setting changes may have either value, as in
//! Kafka.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use duramen_protocol::batch::{BatchHeader, BatchView, HEADER_BYTES};
use duramen_protocol::compression::{Codec, Compression};
use duramen_protocol::records::{self, RecordError};
use duramen_protocol::wire::Uuid;

/// Codec of a topic's own, and the bound on its batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The codec, and its level.
    pub compression: Compression,
    /// Size of the topic's largest batch, in bytes: no larger one is made.
    pub batch_bytes_max: usize,
}

/// A batch in the codec of its topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Made {
    /// Its bytes.
    Anew(Bytes),
    /// None, for it would have so many bytes, and the topic takes fewer.
    TooLarge(usize),
}

impl Target {
    /// Tells whether a batch has to be made anew. One that is too large for the topic as it came is refused as it is.
    pub fn is_due(&self, header: &BatchHeader) -> bool {
        let codec = header.attributes.codec();
        let is_other = codec.is_ok_and(|codec| codec != self.compression.codec);
        let is_small = header.batch_bytes() <= self.batch_bytes_max;
        is_other && is_small && !header.attributes.is_control()
    }

    /// Makes a checked batch anew; `plain` are its records, decompressed.
    pub fn make(&self, batch: &BatchView, plain: &[u8]) -> Result<Made, RecordError> {
        let is_fitting = |bytes: usize| bytes <= self.batch_bytes_max;
        let plain_bytes = HEADER_BYTES + plain.len();
        if self.compression.codec == Codec::None && !is_fitting(plain_bytes) {
            return Ok(Made::TooLarge(plain_bytes));
        }
        let anew = records::recompress(batch, plain, self.compression)?;
        Ok(if is_fitting(anew.len()) { Made::Anew(anew) } else { Made::TooLarge(anew.len()) })
    }
}

/// The topics with a codec of their own, as this node's settings have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    by_id: BTreeMap<Uuid, (Arc<str>, Target)>,
    by_name: BTreeMap<Arc<str>, Uuid>,
}

impl Targets {
    /// Tells whether there are none, as on most nodes.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Returns the codec of a topic by its id.
    pub fn of_id(&self, id: Uuid) -> Option<&Target> {
        self.by_id.get(&id).map(|(_, target)| target)
    }

    /// Returns the codec of a topic by its name.
    pub fn of_name(&self, name: &str) -> Option<&Target> {
        self.of_id(*self.by_name.get(name)?)
    }

    fn set(&mut self, id: Uuid, name: &str, target: Target) {
        let name: Arc<str> = name.into();
        self.by_name.insert(Arc::clone(&name), id);
        self.by_id.insert(id, (name, target));
    }

    fn remove(&mut self, id: Uuid) {
        let Some((name, _)) = self.by_id.remove(&id) else { return };
        // A younger topic may have the name by now.
        if self.by_name.get(&name) == Some(&id) {
            self.by_name.remove(&name);
        }
    }
}

/// The node's own table, and whether it has changed since it was handed out.
#[derive(Debug, Default)]
pub(crate) struct Board {
    targets: Arc<Targets>,
    is_changed: bool,
}

impl Board {
    /// Notes the codec of a topic, or that it has none of its own.
    pub(crate) fn note(&mut self, id: Uuid, name: &str, target: Option<Target>) {
        if self.targets.of_id(id) == target.as_ref() {
            return;
        }
        // Sessions keep the former table, so this makes a copy.
        let targets = Arc::make_mut(&mut self.targets);
        match target {
            Some(target) => targets.set(id, name, target),
            None => targets.remove(id),
        }
        self.is_changed = true;
    }

    /// Forgets topics that are not there any more.
    pub(crate) fn keep(&mut self, is_there: impl Fn(Uuid) -> bool) {
        let gone: Vec<_> =
            self.targets.by_id.keys().filter(|id| !is_there(**id)).copied().collect();
        for id in gone {
            self.note(id, "", None);
        }
    }

    /// Returns the table if it has changed.
    pub(crate) fn take(&mut self) -> Option<Arc<Targets>> {
        std::mem::take(&mut self.is_changed).then(|| Arc::clone(&self.targets))
    }
}

#[cfg(test)]
mod tests;
