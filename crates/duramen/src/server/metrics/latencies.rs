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
use std::time::Duration;

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

/// Times of requests, by API.
#[derive(Debug)]
pub struct Latencies {
    /// In the order of Kafka's table of APIs, then ours.
    all: Vec<OfApi>,
}

#[derive(Debug, Default)]
struct OfApi {
    /// The last one has no bound.
    buckets: [AtomicU64; BUCKETS + 1],
    sum_us: AtomicU64,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        Self { all: apis().map(|_| OfApi::default()).collect() }
    }

    /// Counts a request that was answered after this time.
    pub(crate) fn note(&self, api: ApiKey, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let of_api = &self.all[index_of(api)];
        of_api.buckets[bucket_of(us)].fetch_add(1, Ordering::Relaxed);
        of_api.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Returns the times of the APIs that clients used.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let mut table = Table::of(&DEFS[0]);
        for (name, of_api) in apis().zip(&self.all) {
            let spread = of_api.spread();
            if spread.buckets.iter().any(|(_, count)| *count > 0) {
                table.push(&[label(name)].into(), Value::Spread(spread));
            }
        }
        vec![table]
    }
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
        let tables = latencies.tables();
        let [(labels, Value::Spread(spread))] = &tables[0].rows[..] else { panic!("{tables:?}") };
        assert_eq!(&*labels[0], "Fetch");
        assert!((spread.sum - 60.0001).abs() < 1e-9);
        assert_eq!((spread.buckets[1], spread.buckets[BUCKETS]), ((128e-6, 1), (f64::MAX, 1)));
    }
}
