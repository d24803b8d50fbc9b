//! Answers to workers, with all that a node knows when it takes their question and when it gives the answer.

use std::collections::BTreeMap;

use bytes::Bytes;
use duramen_broker::native::{Answer, Op, Problem};
use duramen_broker::session::Prepared;
use duramen_broker::{ConnectionId, Event, Node, Now, read_plan};
use duramen_storage::Reader;

use crate::disk::SimDisk;

/// Partition that a node leads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Led {
    pub(crate) topic_id: [u8; 16],
    pub(crate) partition: i32,
    pub(crate) term: u64,
    /// Offset behind the last one that the node knows to be committed.
    pub(crate) committed: i64,
}

/// A node at some time of its process.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    /// Time of the process, in microseconds.
    pub(crate) mono_us: u64,
    /// Time as the machine's clock shows it, in milliseconds since 1970.
    pub(crate) wall_ms: i64,
    pub(crate) led: Vec<Led>,
}

impl Moment {
    fn of(node: &Node, now: Now) -> Self {
        let leads = node.standings().into_iter().filter(|it| it.serves);
        let led = leads.map(|it| Led {
            topic_id: it.topic_id,
            partition: it.partition,
            term: it.term,
            committed: it.committed,
        });
        Self { mono_us: now.mono_us, wall_ms: now.wall_ms, led: led.collect() }
    }

    /// Returns a partition, if the node leads it.
    pub(crate) fn led(&self, topic_id: [u8; 16], partition: i32) -> Option<Led> {
        let is_it = |it: &&Led| it.topic_id == topic_id && it.partition == partition;
        self.led.iter().find(is_it).copied()
    }
}

/// Record that a worker has a lease of.
#[derive(Clone, Debug)]
pub(crate) struct Leased {
    pub(crate) topic_id: [u8; 16],
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) deliveries: i16,
    /// Key and value, if they can be read.
    pub(crate) content: Option<(Bytes, Bytes)>,
}

/// Answer to a worker.
#[derive(Clone, Debug)]
pub(crate) struct Worked {
    pub(crate) answer: Result<Answer, Problem>,
    /// Records of a lease, in the order in which the group gives them out.
    pub(crate) leased: Vec<Leased>,
    /// The node when the question came.
    pub(crate) came: Moment,
    /// The node when it answers.
    pub(crate) now: Moment,
    /// Latest time that the clock has shown to the process, in milliseconds since 1970.
    pub(crate) latest_ms: i64,
}

/// Questions of workers that a process has taken and not answered.
pub(super) struct Working {
    asked: BTreeMap<(ConnectionId, u64), Moment>,
    now: Now,
    latest_ms: i64,
}

impl Working {
    pub(super) fn new(now: Now) -> Self {
        Self { asked: BTreeMap::new(), now, latest_ms: now.wall_ms }
    }

    /// Notes the time of a turn.
    pub(super) fn note(&mut self, now: Now) {
        self.now = now;
        self.latest_ms = self.latest_ms.max(now.wall_ms);
    }

    /// Notes a question before the node has it.
    pub(super) fn on_event(&mut self, node: &Node, now: Now, event: &Event) {
        if let Event::Request { connection, sequence, request, .. } = event
            && let Prepared::Native(op) = &**request
            && matches!(**op, Op::Lease(_) | Op::Settle(_))
        {
            self.asked.insert((*connection, *sequence), Moment::of(node, now));
        }
    }

    /// Takes the answer to a worker, and reads the records of its lease. Returns none if no worker asked.
    pub(super) fn answer(
        &mut self,
        (node, reader): (&Node, &Reader<SimDisk>),
        to: (ConnectionId, u64),
        answer: &Result<Answer, Problem>,
    ) -> Option<Worked> {
        let came = self.asked.remove(&to)?;
        let mut leased = Vec::new();
        if let Ok(Answer::Leased(found)) = answer {
            let standings = node.standings();
            for part in &found.parts {
                let own = standings.iter().find(|it| it.replica == part.replica);
                let topic_id = own.map_or([0; 16], |it| it.topic_id);
                let contents = read_plan::leased(reader, part, |records, record, _| {
                    let own = |part: Option<&[u8]>| records.keep(part.unwrap_or_default());
                    (own(record.key), own(record.value))
                });
                let contents = contents.unwrap_or_else(|_| vec![None; part.records.len()]);
                let each = part.records.iter().zip(contents);
                leased.extend(each.map(|(&(offset, deliveries), content)| {
                    let partition = part.partition;
                    Leased { topic_id, partition, offset, deliveries, content }
                }));
            }
        }
        let now = Moment::of(node, self.now);
        let latest_ms = self.latest_ms;
        Some(Worked { answer: answer.clone(), leased, came, now, latest_ms })
    }
}
