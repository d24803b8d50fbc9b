//! # Room card: latencies
//!
//! Purpose:    the times that requests take, by API.
//! Owns:       a histogram for each API.
//! Interface:  [`Latencies::note`], [`DEFS`].
//! Invariants: no lock: threads that serve clients note here for every request.
//! Never:      the content of a request.
//! Tests:      below; `tests/server.rs`.
//! Start at:   [`Latencies::note`].
//!
//! Estimate a request: two relaxed additions to counters that other threads seldom touch, about 10 ns. The connection
//! reads the clock once for all the responses that it sends at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use duramen_protocol::ApiKey;
use duramen_protocol::api::{API_TABLE, OWN_TABLE};

use super::exposition::{Def, Kind, Spread, Table, Value, label};

/// The metric of this room.
pub(crate) static DEFS: [Def; 1] = [Def {
    name: "duramen_request_seconds",
    kind: Kind::Histogram,
    labels: &["api"],
    help: "Time from a whole request to its sent response, in seconds, waits of long polls and quotas among it",
}];

/// Upper bound of the first bucket, in microseconds; each further bucket reaches twice as far.
const FIRST_US: u64 = 64;

/// Buckets with a bound: the last one ends at 8.4 s.
const BUCKETS: usize = 18;

/// Time after which a reading is replaced, for recent times.
const RECENT: Duration = Duration::from_secs(60);

/// Times of requests, by API.
#[derive(Debug)]
pub struct Latencies {
    /// In the order of Kafka's table of APIs, then ours.
    all: Vec<OfApi>,
    /// Counts of a while ago, for recent times.
    before: Mutex<Before>,
}

/// Two earlier readings of all buckets, and the time of the newer one.
#[derive(Debug)]
struct Before {
    older: Vec<Spread>,
    newer: Vec<Spread>,
    at: Instant,
}

#[derive(Debug, Default)]
struct OfApi {
    /// The last one has no bound.
    buckets: [AtomicU64; BUCKETS + 1],
    sum_us: AtomicU64,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        let all: Vec<_> = apis().map(|_| OfApi::default()).collect();
        let none: Vec<_> = all.iter().map(OfApi::spread).collect();
        let before = Before { older: none.clone(), newer: none, at: Instant::now() };
        Self { all, before: Mutex::new(before) }
    }

    /// Counts a request that was answered after this time.
    pub(crate) fn note(&self, api: ApiKey, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let of_api = &self.all[index_of(api)];
        of_api.buckets[bucket_of(us)].fetch_add(1, Ordering::Relaxed);
        of_api.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Returns the times of the APIs that clients used.
    pub(crate) fn table(&self) -> Table {
        table_of(self.all.iter().map(OfApi::spread))
    }

    /// Returns the times of the last minute or two; with rarer scrapes, those since the last scrape or the one before.
    pub(crate) fn recent(&self) -> Table {
        let now: Vec<_> = self.all.iter().map(OfApi::spread).collect();
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = table_of(now.iter().zip(&before.older).map(|(now, older)| now.since(older)));
        if before.at.elapsed() >= RECENT {
            before.older = std::mem::replace(&mut before.newer, now);
            before.at = Instant::now();
        }
        recent
    }
}

fn table_of(spreads: impl Iterator<Item = Spread>) -> Table {
    let mut table = Table::of(&DEFS[0]);
    for (name, spread) in apis().zip(spreads) {
        if spread.buckets.iter().any(|(_, count)| *count > 0) {
            table.push(&[label(name)].into(), Value::Spread(spread));
        }
    }
    table
}

impl OfApi {
    fn spread(&self) -> Spread {
        let bound = |at: usize| match at {
            BUCKETS => f64::MAX,
            at => (FIRST_US << at) as f64 / 1e6,
        };
        let counts = self.buckets.iter().map(|count| count.load(Ordering::Relaxed));
        Spread {
            sum: self.sum_us.load(Ordering::Relaxed) as f64 / 1e6,
            buckets: counts.enumerate().map(|(at, count)| (bound(at), count)).collect(),
        }
    }
}

/// Returns the names of all APIs, in the order of the tables.
fn apis() -> impl Iterator<Item = &'static str> {
    API_TABLE.iter().chain(OWN_TABLE).map(|api| api.name)
}

/// Returns the place of an API in the tables. Kafka's keys have no gaps.
fn index_of(api: ApiKey) -> usize {
    let kafkas = usize::try_from(api.code()).ok().filter(|code| *code < API_TABLE.len());
    kafkas.unwrap_or_else(|| {
        let at = OWN_TABLE.iter().position(|it| it.key == api);
        API_TABLE.len() + at.expect("an API is in one of the tables")
    })
}

fn bucket_of(us: u64) -> usize {
    let doublings = us.div_ceil(FIRST_US).max(1).next_power_of_two().trailing_zeros();
    usize::try_from(doublings).map_or(BUCKETS, |at| at.min(BUCKETS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_api_has_a_place_of_its_own() {
        let all: Vec<_> = API_TABLE.iter().chain(OWN_TABLE).collect();
        let places: Vec<_> = all.iter().map(|api| index_of(api.key)).collect();
        assert_eq!(places, (0..all.len()).collect::<Vec<_>>());
    }

    #[test]
    fn a_time_is_in_the_first_bucket_that_reaches_it() {
        let bounds: Vec<u64> = (0..BUCKETS).map(|at| FIRST_US << at).collect();
        for us in [0, 1, 63, 64, 65, 128, 129, 5_000, 8_388_608, 8_388_609, u64::MAX >> 2] {
            let wanted = bounds.iter().position(|bound| us <= *bound).unwrap_or(BUCKETS);
            assert_eq!(bucket_of(us), wanted, "{us}");
        }
    }

    #[test]
    fn only_apis_that_were_used_have_rows() {
        let latencies = Latencies::new();
        latencies.note(ApiKey::Fetch, Duration::from_micros(100));
        latencies.note(ApiKey::Fetch, Duration::from_secs(60));
        let table = latencies.table();
        let [(labels, Value::Spread(spread))] = &table.rows[..] else { panic!("{table:?}") };
        assert_eq!(&*labels[0], "Fetch");
        assert!((spread.sum - 60.0001).abs() < 1e-9);
        assert_eq!((spread.buckets[1], spread.buckets[BUCKETS]), ((128e-6, 1), (f64::MAX, 1)));
    }

    #[test]
    fn recent_times_are_those_since_a_reading_of_a_while_ago() {
        let latencies = Latencies::new();
        let count = |table: Table| match table.rows.first() {
            Some((_, Value::Spread(spread))) => spread.buckets.iter().map(|it| it.1).sum(),
            _ => 0,
        };
        let mut wanted = Vec::new();
        for (turn, calls) in [3_u64, 5, 7, 11].into_iter().enumerate() {
            (0..calls).for_each(|_| latencies.note(ApiKey::Fetch, Duration::from_millis(1)));
            // Readings are replaced at once, as if a minute had passed.
            latencies.before.lock().unwrap().at -= RECENT;
            wanted.push((turn, count(latencies.recent())));
        }
        assert_eq!(wanted, [(0, 3), (1, 8), (2, 12), (3, 18)], "the last two intervals count");
        assert_eq!(count(latencies.table()), 26);
    }
}
