//! Appends in one round trip, for `bench append --fast` and `bench produce --fast`.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::bail;
use duramen_client::{Acked, Client, FastAppender, FastOptions, LATE_AFTER};

use super::frames::Records;

/// Longest time until the leader has opened a stretch.
const OPENED_WITHIN: Duration = Duration::from_secs(20);
const TIMEOUT_MS: i32 = 30_000;

/// A client of its own that appends to one partition.
pub(super) struct FastLane {
    appender: FastAppender,
    records: Rc<Records>,
    /// Start and number of records of each batch that is not done, the oldest first.
    waiting: VecDeque<(Instant, usize)>,
}

/// A batch that is done.
pub(super) struct Appended {
    pub(super) begun: Instant,
    pub(super) records: usize,
    /// True if it took one round trip.
    pub(super) is_fast: bool,
}

impl FastLane {
    /// Makes a lane whose partition has a stretch already, so that no measure has its opening in it.
    pub(super) async fn open(
        client: Client,
        (topic, partition): (&str, i32),
        records: &Rc<Records>,
        window: usize,
    ) -> anyhow::Result<Self> {
        let producer = client.init_producer().await?;
        let (timeout_ms, late_after) = (TIMEOUT_MS, LATE_AFTER);
        let options = FastOptions { producer, window, timeout_ms, late_after };
        let mut appender = FastAppender::new(client, topic, partition, options);
        appender.prepare(OPENED_WITHIN).await;
        if let Some(why) = appender.warning() {
            bail!("no fast appends to partition {partition} of topic {topic}: {why}");
        }
        Ok(Self { appender, records: records.clone(), waiting: VecDeque::new() })
    }

    /// Sends a batch of so many records. Returns those that are done meanwhile.
    pub(super) async fn push(&mut self, records: usize) -> anyhow::Result<Vec<Appended>> {
        self.waiting.push_back((Instant::now(), records));
        let acked = self.appender.push(self.records.batch(records)).await?;
        Ok(self.done(&acked))
    }

    /// Waits until all batches are done. Returns those that [`FastLane::push`] has not returned.
    pub(super) async fn finish(&mut self) -> anyhow::Result<Vec<Appended>> {
        let acked = self.appender.finish().await?;
        Ok(self.done(&acked))
    }

    fn done(&mut self, acked: &[Acked]) -> Vec<Appended> {
        let waited = self.waiting.drain(..acked.len());
        let done = waited.zip(acked).map(|((begun, records), acked)| Appended {
            begun,
            records,
            is_fast: acked.is_fast,
        });
        done.collect()
    }
}
