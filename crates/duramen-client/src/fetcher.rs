//! Reading partitions of one topic in order: long poll, one request ahead, sessions on or off.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use duramen_protocol::batch::{BatchError, BatchView, batches};
use duramen_protocol::error_code::ErrorCode;
use duramen_protocol::messages::fetch::{
    AbortedTransaction, FetchPartition, FetchTopic, PartitionData,
};
use duramen_protocol::messages::{FetchRequest, FetchResponse};
use duramen_protocol::wire::{RecordData, Uuid};
use tokio::task::JoinSet;

use crate::backoff::Backoff;
use crate::client::Client;
use crate::error::Error;
use crate::node_id::NodeId;

/// Bytes of a batch before its length field ends.
const LENGTH_END: usize = 12;
const LAST_DELTA_AT: usize = 23;
const HEADER_BYTES: usize = 61;
/// The first version that knows sessions.
const SESSIONS_FROM: i16 = 7;

/// Options of fetches.
#[derive(Debug, Clone, Copy)]
pub struct FetchOptions {
    /// Longest wait of the broker for more records, in milliseconds.
    pub max_wait_ms: i32,
    /// Least bytes of a response before that time.
    pub min_bytes: i32,
    /// Most bytes of one response.
    pub max_bytes: i32,
    /// Most bytes of one partition in it.
    pub partition_max_bytes: i32,
    /// Limit of reads to the last stable offset; [`Fetched::batches`] leaves out aborted transactions.
    pub read_committed: bool,
    /// Incremental fetch sessions: unchanged partitions are not named again.
    pub sessions: bool,
}

impl Default for FetchOptions {
    fn default() -> Self {
        Self {
            max_wait_ms: 500,
            min_bytes: 1,
            max_bytes: 32 << 20,
            partition_max_bytes: 8 << 20,
            read_committed: false,
            sessions: true,
        }
    }
}

/// Result of a fetch for one partition.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// The partition.
    pub partition: i32,
    /// Whole batches. The first may begin before the position that was asked for.
    pub records: Bytes,
    /// Offset after the last of them, from which the next fetch reads.
    pub next_offset: i64,
    /// One past the last committed record.
    pub committed: i64,
    /// One past the last record that `read_committed` shows.
    pub stable: i64,
    /// The first record that is kept.
    pub start: i64,
    /// Transactions to leave out, by their first offsets; empty without `read_committed`.
    aborted: Vec<AbortedTransaction>,
}

impl Fetched {
    /// Reads the answer for a partition to a fetch from `position`. The answer has no error.
    pub fn of(part: PartitionData, position: i64) -> Self {
        let records = match part.records {
            Some(RecordData::Bytes(records)) => records,
            // `External` exists only where a server writes.
            Some(RecordData::External { .. }) | None => Bytes::new(),
        };
        let (whole, next) = whole_batches(&records);
        let mut aborted = part.aborted_transactions.unwrap_or_default();
        aborted.sort_by_key(|it| it.first_offset);
        Self {
            aborted,
            partition: part.partition_index,
            records: records.slice(..whole),
            next_offset: next.map_or(position, |next| next.max(position)),
            committed: part.high_watermark,
            stable: part.last_stable_offset,
            start: part.log_start_offset,
        }
    }

    /// Returns the batches that applications see: no control batches, and with `read_committed` none of an aborted
    /// transaction. After an error nothing more comes.
    pub fn batches(&self) -> impl Iterator<Item = Result<BatchView, BatchError>> {
        let mut aborted = self.aborted.iter().peekable();
        let mut open = BTreeSet::new();
        batches(self.records.clone()).filter(move |batch| {
            let Ok(batch) = batch else { return true };
            let header = batch.header();
            while let Some(it) = aborted.next_if(|it| it.first_offset <= header.last_offset()) {
                open.insert(it.producer_id);
            }
            if header.attributes.is_control() {
                // The marker ends the producer's transaction; a later one may be committed.
                open.remove(&header.producer_id);
                return false;
            }
            !(header.attributes.is_transactional() && open.contains(&header.producer_id))
        })
    }
}

/// Reads partitions of one topic.
pub struct Fetcher {
    client: Client,
    topic: String,
    options: FetchOptions,
    /// The next offset of each partition.
    positions: BTreeMap<i32, i64>,
    sessions: BTreeMap<NodeId, Session>,
    outstanding: JoinSet<(NodeId, Result<FetchResponse, Error>)>,
    asked: BTreeSet<NodeId>,
    backoff: Backoff,
}

#[derive(Default)]
struct Session {
    id: i32,
    epoch: i32,
    /// Offsets told to the broker, by partition.
    told: BTreeMap<i32, i64>,
}

impl Fetcher {
    /// Returns a reader of `positions`: partition and first offset. Asks nothing yet.
    pub fn new(
        client: Client,
        topic: &str,
        positions: impl IntoIterator<Item = (i32, i64)>,
        options: FetchOptions,
    ) -> Self {
        let backoff = Backoff::new(client.options().retry_for);
        Self {
            client,
            topic: topic.into(),
            options,
            positions: positions.into_iter().collect(),
            sessions: BTreeMap::new(),
            outstanding: JoinSet::new(),
            asked: BTreeSet::new(),
            backoff,
        }
    }

    /// Returns the next offset of each partition that is still read.
    pub fn positions(&self) -> &BTreeMap<i32, i64> {
        &self.positions
    }

    /// Reads this partition no further.
    pub fn stop(&mut self, partition: i32) {
        self.positions.remove(&partition);
        // A session would go on naming it; the next request starts a new one.
        self.sessions.clear();
    }

    /// Waits for the next response of any broker. An empty result means that nothing new is there yet.
    ///
    /// Fails with `OFFSET_OUT_OF_RANGE` for a position outside the log, and with `RECORD_LIST_TOO_LARGE` for a batch
    /// above the options' bytes. Retries other errors for [`Options::retry_for`](crate::Options::retry_for).
    pub async fn poll(&mut self) -> Result<Vec<Fetched>, Error> {
        if let Err(error) = self.ask().await {
            return self.pause(error).await;
        }
        let Some(joined) = self.outstanding.join_next().await else { return Ok(Vec::new()) };
        let (node, response) = joined.expect("reading an answer neither panics nor is cancelled");
        self.asked.remove(&node);
        let outcome = match response {
            Ok(response) => self.take(node, response),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(fetched) => {
                self.backoff = Backoff::new(self.client.options().retry_for);
                // Ask again before these are looked at: the broker works while the caller does.
                // A failure is met again, and dealt with, by the next poll.
                let _ = self.ask().await;
                Ok(fetched)
            }
            Err(error) => self.pause(error).await,
        }
    }

    /// Waits after a failure that may pass, and forgets the state that may have caused it.
    async fn pause(&mut self, error: Error) -> Result<Vec<Fetched>, Error> {
        let lagging = error.code() == Some(ErrorCode::UnknownTopicOrPartition);
        let session = matches!(
            error.code(),
            Some(ErrorCode::FetchSessionIdNotFound | ErrorCode::InvalidFetchSessionEpoch)
        );
        self.sessions.clear();
        if session {
            return Ok(Vec::new());
        }
        self.client.forget(&self.topic).await;
        if (error.is_retriable() || lagging) && self.backoff.pause().await {
            Ok(Vec::new())
        } else {
            Err(error)
        }
    }

    /// Sends a request to every leader that has none.
    async fn ask(&mut self) -> Result<(), Error> {
        let mut by_leader = BTreeMap::new();
        for (partition, offset) in &self.positions {
            let leader = self.client.leader(&self.topic, *partition).await?;
            if !self.asked.contains(&leader.node) {
                let node = leader.node;
                by_leader
                    .entry(node)
                    .or_insert((leader, BTreeMap::new()))
                    .1
                    .insert(*partition, *offset);
            }
        }
        for (node, (leader, wanted)) in by_leader {
            let newest = leader.connection.version::<FetchRequest>(i16::MAX)?;
            let request = self.request(node, leader.topic_id, wanted, newest);
            let in_flight = leader.connection.start(&request).await?;
            self.asked.insert(node);
            self.outstanding.spawn(async move { (node, in_flight.answer().await) });
        }
        Ok(())
    }

    fn request(
        &mut self,
        node: NodeId,
        topic_id: Uuid,
        wanted: BTreeMap<i32, i64>,
        newest: i16,
    ) -> FetchRequest {
        let options = self.options;
        let in_session = options.sessions && newest >= SESSIONS_FROM;
        let session = self.sessions.entry(node).or_default();
        let changed = |partition: &i32, offset: &i64| {
            session.id == 0 || session.told.get(partition) != Some(offset)
        };
        let partitions = wanted
            .iter()
            .filter(|(partition, offset)| !in_session || changed(partition, offset))
            .map(|(partition, offset)| FetchPartition {
                partition: *partition,
                fetch_offset: *offset,
                partition_max_bytes: options.partition_max_bytes,
                ..FetchPartition::default()
            })
            .collect::<Vec<_>>();
        let (session_id, session_epoch) =
            if in_session { (session.id, session.epoch) } else { (0, -1) };
        session.told = wanted;
        let topic = FetchTopic { topic: self.topic.clone(), topic_id, partitions };
        FetchRequest {
            max_wait_ms: options.max_wait_ms,
            min_bytes: options.min_bytes,
            max_bytes: options.max_bytes,
            isolation_level: i8::from(options.read_committed),
            session_id,
            session_epoch,
            topics: if topic.partitions.is_empty() { Vec::new() } else { vec![topic] },
            ..FetchRequest::default()
        }
    }

    fn take(&mut self, node: NodeId, response: FetchResponse) -> Result<Vec<Fetched>, Error> {
        Error::check(|| format!("fetch from broker {node}"), response.error_code, None)?;
        if let Some(session) = self.sessions.get_mut(&node) {
            session.id = response.session_id;
            session.epoch = if response.session_id == 0 { 0 } else { session.epoch.max(0) + 1 };
        }
        let mut fetched = Vec::new();
        for part in response.responses.into_iter().flat_map(|topic| topic.partitions) {
            let Some(position) = self.positions.get(&part.partition_index).copied() else {
                continue;
            };
            fetched.push(self.take_partition(part, position)?);
        }
        for part in &fetched {
            self.positions.insert(part.partition, part.next_offset);
        }
        Ok(fetched)
    }

    fn take_partition(&self, part: PartitionData, position: i64) -> Result<Fetched, Error> {
        let index = part.partition_index;
        let what = || format!("offset {position} of partition {index} of topic {}", self.topic);
        Error::check(what, part.error_code, None)?;
        let bytes = part.records.as_ref().map_or(0, RecordData::len);
        let fetched = Fetched::of(part, position);
        if fetched.records.is_empty() && bytes > 0 {
            let message = Some(format!("its batch is longer than {bytes} bytes"));
            return Err(Error::refused(what(), ErrorCode::RecordListTooLarge.code(), message));
        }
        Ok(fetched)
    }
}

/// Returns the bytes of the whole batches in `records`, and the offset after the last of them.
fn whole_batches(records: &[u8]) -> (usize, Option<i64>) {
    let (mut at, mut next) = (0, None);
    while let Some(header) = records.get(at..at + HEADER_BYTES) {
        let field = |at: usize| -> [u8; 4] { header[at..at + 4].try_into().expect("four bytes") };
        let after = u32::from_be_bytes(field(LENGTH_END - 4)) as usize;
        let end = at + LENGTH_END + after;
        if after < HEADER_BYTES - LENGTH_END || end > records.len() {
            break;
        }
        let base = i64::from_be_bytes(header[..8].try_into().expect("eight bytes"));
        let last_delta = i32::from_be_bytes(field(LAST_DELTA_AT));
        next = Some(base.saturating_add(i64::from(last_delta)).saturating_add(1));
        at = end;
    }
    (at, next)
}

#[cfg(test)]
mod tests {
    use duramen_protocol::records::{BatchBuilder, NewRecord};

    use super::*;

    /// Returns a batch of producer 7 with one record.
    fn batch(offset: i64, of: impl FnOnce(BatchBuilder) -> BatchBuilder) -> Bytes {
        let mut builder = of(BatchBuilder::new().base_offset(offset).producer(7, 0, -1));
        builder.push(&NewRecord::default()).expect("it fits");
        builder.build().expect("it is complete")
    }

    fn shown(aborted_from: &[i64]) -> Vec<i64> {
        let transactional = |builder: BatchBuilder| builder.transactional();
        let marker = |builder: BatchBuilder| builder.transactional().control();
        // A transaction, its marker, a second transaction and marker, a record outside of any transaction.
        let batches = [
            batch(10, transactional),
            batch(11, marker),
            batch(12, transactional),
            batch(13, marker),
            batch(14, |builder| builder),
        ];
        let aborted = |&first_offset: &i64| AbortedTransaction { producer_id: 7, first_offset };
        let fetched = Fetched {
            partition: 0,
            records: batches.concat().into(),
            next_offset: 15,
            committed: 15,
            stable: 15,
            start: 0,
            aborted: aborted_from.iter().map(aborted).collect(),
        };
        fetched.batches().map(|batch| batch.expect("it is whole").header().base_offset).collect()
    }

    #[test]
    fn batches_of_aborted_transactions_and_markers_are_left_out() {
        assert_eq!(shown(&[]), [10, 12, 14]);
        assert_eq!(shown(&[10]), [12, 14], "the second transaction is committed");
        assert_eq!(shown(&[12]), [10, 14], "the first transaction is committed");
        assert_eq!(shown(&[10, 12]), [14]);
    }
}
