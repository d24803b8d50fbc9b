//! # Room card: quotas
//!
//! Purpose:    limits on the bytes that clients produce and consume, and on the time of their requests. A client above
//!             its limit gets a throttle time.
//! Owns:       the quotas of users, client ids, their combinations and defaults; the choice of the quota that binds a
//!             client; the use in the last seconds.
//! Interface:  [`QuotaTable::set`], [`QuotaTable::binding`], [`Meters::use_up`].
//! Invariants: the first of Kafka's eight places that has a quota binds, and nothing else; clients that share a quota
//!             share its meter. A throttle time brings the average of the window back to the quota.
//! Never:      clocks, connections (the server does not read a throttled one).
//! Tests:      below; `node/tests/quotas.rs`; `compat/wire/test_quotas.py`.
//! Start at:   [`QuotaTable::binding`].

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

/// Count of samples in a window, and the length of each; Kafka's `quota.window.num` and `quota.window.size.seconds`
/// defaults.
const SAMPLES: usize = 11;
const SAMPLE_MS: u64 = 1000;

/// A meter unused for this long is forgotten.
const IDLE_MS: u64 = 3_600_000;

/// Meters looked at for that at once.
const SWEEP: usize = 16;

/// Type of an entity that has a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EntityType {
    ClientId,
    User,
}

impl EntityType {
    /// Returns the type of Kafka's name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        [Self::ClientId, Self::User].into_iter().find(|it| it.name() == name)
    }

    /// Returns Kafka's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ClientId => "client-id",
            Self::User => "user",
        }
    }
}

/// Use that a quota limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QuotaKey {
    /// Bytes a second that are sent to consumers.
    ConsumerByteRate,
    /// Bytes a second that producers send.
    ProducerByteRate,
    /// Hundredths of a thread's time that requests take.
    RequestPercentage,
}

/// No rest for time that was taken is longer than this; Kafka's `quota.window.size.seconds`.
const TIME_REST_MS_MAX: i32 = 1000;

impl QuotaKey {
    /// Returns the key of Kafka's name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let all = [Self::ConsumerByteRate, Self::ProducerByteRate, Self::RequestPercentage];
        all.into_iter().find(|it| it.name() == name)
    }

    /// Tells whether the quota limits bytes.
    pub(crate) fn is_of_bytes(self) -> bool {
        self != Self::RequestPercentage
    }

    /// Returns Kafka's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ConsumerByteRate => "consumer_byte_rate",
            Self::ProducerByteRate => "producer_byte_rate",
            Self::RequestPercentage => "request_percentage",
        }
    }
}

/// Entity that a quota is for: a user, a client id or both. `None` stands for all that have no quota of their own.
pub(crate) type Entity = BTreeMap<EntityType, Option<String>>;

/// All quotas.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct QuotaTable(BTreeMap<Entity, BTreeMap<QuotaKey, f64>>);

/// Account to which use is added: that of a user, of a client id, or of a client id of a user.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Account {
    key: QuotaKey,
    user: Option<String>,
    client_id: Option<String>,
}

/// Quota that binds a client.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Quota {
    /// Account whose use counts.
    account: Account,
    /// Bytes a second, or hundredths of a second in a second.
    rate: f64,
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the cast of a float stops at the ends of the integer"
)]
fn whole(number: f64) -> i32 {
    number.round() as i32
}

impl Quota {
    /// Returns the most bytes that fit into a window: no answer has more.
    pub(crate) fn window_max(&self) -> i32 {
        whole(self.rate * (SAMPLES as f64 - 1.0))
    }
}

impl QuotaTable {
    /// Sets a quota, or takes it back.
    pub(crate) fn set(&mut self, entity: Entity, key: QuotaKey, value: Option<f64>) {
        let mut quotas = self.0.remove(&entity).unwrap_or_default();
        match value {
            Some(value) => quotas.insert(key, value),
            None => quotas.remove(&key),
        };
        if !quotas.is_empty() {
            self.0.insert(entity, quotas);
        }
    }

    /// Returns all quotas, in order.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&Entity, &BTreeMap<QuotaKey, f64>)> {
        self.0.iter()
    }

    /// Returns the quota that binds a client.
    pub(crate) fn binding(&self, key: QuotaKey, user: &str, client_id: &str) -> Option<Quota> {
        if self.0.is_empty() {
            return None;
        }
        let (own_user, own_client) = (Some(user.to_owned()), Some(client_id.to_owned()));
        let both = |user: &Option<String>, client: &Option<String>| {
            let client = (EntityType::ClientId, client.clone());
            Entity::from([client, (EntityType::User, user.clone())])
        };
        let one = |kind, name: &Option<String>| Entity::from([(kind, name.clone())]);
        let (user_kind, client_kind) = (EntityType::User, EntityType::ClientId);
        // Kafka's order; a quota of a user and a client id counts the use of just these two.
        let places = [
            (both(&own_user, &own_client), true, true),
            (both(&own_user, &None), true, true),
            (one(user_kind, &own_user), true, false),
            (both(&None, &own_client), true, true),
            (both(&None, &None), true, true),
            (one(user_kind, &None), true, false),
            (one(client_kind, &own_client), false, true),
            (one(client_kind, &None), false, true),
        ];
        places.into_iter().find_map(|(entity, by_user, by_client)| {
            let rate = *self.0.get(&entity)?.get(&key)?;
            let user = own_user.clone().filter(|_| by_user);
            let client_id = own_client.clone().filter(|_| by_client);
            Some(Quota { account: Account { key, user, client_id }, rate })
        })
    }
}

/// Use in the last seconds, by account.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    meters: BTreeMap<Account, Meter>,
    swept: Option<Account>,
}

/// A sum for each second, oldest first.
#[derive(Debug, Default)]
struct Meter(VecDeque<(u64, f64)>);

impl Meters {
    /// Counts `amount` and returns the client's throttle time, in milliseconds.
    pub(crate) fn use_up(&mut self, quota: &Quota, amount: f64, now_ms: u64) -> i32 {
        self.forget_idle(now_ms);
        let meter = self.meters.entry(quota.account.clone()).or_default();
        meter.add(amount, now_ms);
        meter.rest_ms(quota.rate, now_ms)
    }

    /// Counts microseconds that a request took.
    pub(crate) fn take_time(&mut self, quota: &Quota, us: u64, now_ms: u64) {
        self.use_up(quota, us as f64 / 10_000.0, now_ms);
    }

    /// Returns the throttle time of a client for the time that its requests took, in milliseconds.
    pub(crate) fn time_rest_ms(&self, quota: &Quota, now_ms: u64) -> i32 {
        let meter = self.meters.get(&quota.account);
        meter.map_or(0, |meter| meter.rest_ms(quota.rate, now_ms)).min(TIME_REST_MS_MAX)
    }

    /// Takes back an amount that was counted and not used after all.
    pub(crate) fn give_back(&mut self, quota: &Quota, amount: f64, now_ms: u64) {
        if let Some(meter) = self.meters.get_mut(&quota.account) {
            meter.add(-amount, now_ms);
        }
    }

    /// Forgets meters that are idle. A client may call itself by a new name each time, so meters would pile up.
    fn forget_idle(&mut self, now_ms: u64) {
        let after = self.swept.take().map_or(Unbounded, Excluded);
        let some = self.meters.range((after, Unbounded)).take(SWEEP);
        let some: Vec<_> =
            some.map(|(account, meter)| (account.clone(), meter.is_idle(now_ms))).collect();
        for (account, _) in some.iter().filter(|(_, is_idle)| *is_idle) {
            self.meters.remove(account);
        }
        self.swept = some.into_iter().next_back().map(|(account, _)| account);
    }
}

fn is_in_window(at_ms: u64, now_ms: u64) -> bool {
    now_ms - at_ms < SAMPLES as u64 * SAMPLE_MS
}

impl Meter {
    fn add(&mut self, amount: f64, now_ms: u64) {
        while self.0.front().is_some_and(|(at, _)| !is_in_window(*at, now_ms)) {
            self.0.pop_front();
        }
        match self.0.back_mut() {
            Some((at, sum)) if now_ms - *at < SAMPLE_MS => *sum += amount,
            _ => self.0.push_back((now_ms, amount)),
        }
        assert!(self.0.len() <= SAMPLES + 1, "a meter has a sum for each second of the window");
        debug_assert!(self.0.iter().is_sorted_by(|a, b| a.0 < b.0), "seconds follow each other");
    }

    /// Returns the throttle time as in Kafka, in milliseconds. The rate is the average over the window, or over the
    /// part of the window that has passed. That part counts as at least all samples but one.
    fn rest_ms(&self, quota: f64, now_ms: u64) -> i32 {
        let mut samples = self.0.iter().filter(|(at, _)| is_in_window(*at, now_ms)).peekable();
        let Some((oldest, _)) = samples.peek() else { return 0 };
        let passed_ms = now_ms - oldest;
        let missing = (SAMPLES as u64 - 1).saturating_sub(passed_ms / SAMPLE_MS);
        let window_ms = (passed_ms + missing * SAMPLE_MS) as f64;
        let used: f64 = samples.map(|(_, sum)| sum).sum();
        let rate = used / window_ms * 1000.0;
        if rate <= quota {
            return 0;
        }
        whole((rate - quota) / quota * window_ms)
    }

    fn is_idle(&self, now_ms: u64) -> bool {
        self.0.back().is_none_or(|(at, _)| now_ms - at >= IDLE_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: QuotaKey = QuotaKey::ProducerByteRate;

    fn entity(user: Option<&str>, client: Option<&str>) -> Entity {
        let name = |name: &str| if name == "*" { None } else { Some(name.to_owned()) };
        let user = user.map(|user| (EntityType::User, name(user)));
        let client = client.map(|client| (EntityType::ClientId, name(client)));
        user.into_iter().chain(client).collect()
    }

    fn account(user: Option<&str>, client: Option<&str>) -> Account {
        let (user, client_id) = (user.map(str::to_owned), client.map(str::to_owned));
        Account { key: KEY, user, client_id }
    }

    #[test]
    fn the_most_special_quota_binds_in_kafkas_order() {
        let places = [
            (Some("u"), Some("c")),
            (Some("u"), Some("*")),
            (Some("u"), None),
            (Some("*"), Some("c")),
            (Some("*"), Some("*")),
            (Some("*"), None),
            (None, Some("c")),
            (None, Some("*")),
        ];
        let mut table = QuotaTable::default();
        for (value, (user, client)) in (1..).zip(places) {
            table.set(entity(user, client), KEY, Some(f64::from(value)));
        }
        let expected = [
            account(Some("u"), Some("c")),
            account(Some("u"), Some("c")),
            account(Some("u"), None),
            account(Some("u"), Some("c")),
            account(Some("u"), Some("c")),
            account(Some("u"), None),
            account(None, Some("c")),
            account(None, Some("c")),
        ];
        for ((value, (user, client)), expected) in (1..).zip(places).zip(expected) {
            let expected = Quota { account: expected, rate: f64::from(value) };
            assert_eq!(table.binding(KEY, "u", "c"), Some(expected));
            assert_eq!(table.binding(QuotaKey::ConsumerByteRate, "u", "c"), None);
            table.set(entity(user, client), KEY, None);
        }
        assert_eq!(table, QuotaTable::default());
    }

    #[test]
    fn who_is_faster_rests_until_the_average_fits() {
        let mut meters = Meters::default();
        let quota = Quota { account: account(Some("u"), None), rate: 100.0 };
        let mut use_up = |amount, now| meters.use_up(&quota, amount, now);
        assert_eq!(use_up(1000.0, 5_000), 0, "ten seconds' worth at once are within the window");
        assert_eq!(use_up(500.0, 5_000), 5_000, "half as much again takes half of it");
        assert_eq!(
            use_up(0.0, 10_000),
            5_000,
            "Kafka's window grows only when its samples are there"
        );
        assert_eq!(use_up(0.0, 15_900), 4_100, "over 10.9 seconds now");
        assert_eq!(use_up(0.0, 16_000), 0, "the window has passed");
    }

    #[test]
    fn time_that_requests_took_is_counted_in_hundredths_of_a_second() {
        let mut meters = Meters::default();
        let quota = Quota { account: account(Some("u"), None), rate: 5.0 };
        assert_eq!(meters.time_rest_ms(&quota, 0), 0);
        meters.take_time(&quota, 500_000, 0);
        assert_eq!(meters.time_rest_ms(&quota, 0), 0, "half a second of ten is five hundredths");
        meters.take_time(&quota, 1_000, 0);
        assert_eq!(meters.time_rest_ms(&quota, 0), 20, "a millisecond too much is made up in 20");
        meters.take_time(&quota, 500_000, 0);
        assert_eq!(meters.time_rest_ms(&quota, 0), TIME_REST_MS_MAX);
        assert_eq!(meters.time_rest_ms(&quota, 11_000), 0, "the window has passed");
    }

    #[test]
    fn what_is_given_back_was_not_used() {
        let mut meters = Meters::default();
        let quota = Quota { account: account(None, Some("c")), rate: 10.0 };
        assert!(meters.use_up(&quota, 1_000.0, 0) > 0);
        meters.give_back(&quota, 1_000.0, 10);
        assert_eq!(meters.use_up(&quota, 100.0, 20), 0);
    }

    #[test]
    fn meters_that_nobody_uses_are_forgotten() {
        let mut meters = Meters::default();
        let quota = |user: Option<&str>, client: Option<&str>| Quota {
            account: account(user, client),
            rate: 1.0,
        };
        for number in 0..1000 {
            meters.use_up(&quota(None, Some(&number.to_string())), 1.0, 0);
        }
        for at in 0..1000 {
            meters.use_up(&quota(Some("u"), None), 1.0, IDLE_MS + at);
        }
        assert_eq!(meters.meters.len(), 1);
    }
}
