//! When a leader has expired elements erased.

use super::*;

const HOUR_MS: i64 = 3_600_000;
/// Time between two sweeps, and more.
const SWEEP_MS: i64 = 60_000;

/// Makes a topic of queues whose expired elements go an hour later.
fn broker() -> Broker {
    let mut broker = Broker::open(MemoryDisk::default(), 1);
    let configs = [("queue.enable", "true"), ("queue.erase.lag.ms", "3600000")];
    let config = |(name, value): (&str, &str)| CreatableTopicConfig {
        name: name.to_owned(),
        value: Some(value.to_owned()),
    };
    broker.create_with("t", configs.map(config).into());
    broker
}

/// Appends an element of a queue that expires so much later than the first moment, if at all.
fn append(broker: &mut Broker, queue: &str, expires: Option<i64>) {
    let expires = expires.map(|it| (WALL_MS + it).to_string());
    let headers = expires.as_ref().map(|it| ("duramen-expires", Some(it.as_bytes())));
    let mut builder = BatchBuilder::new();
    let record = NewRecord {
        timestamp: broker.now.wall_ms,
        key: Some(queue.as_bytes()),
        value: Some(b"value"),
        headers: headers.as_slice(),
    };
    builder.push(&record).expect("a record");
    broker.produce("t", builder.build().expect("a batch"));
}

/// Passes the time from one moment to another one, in milliseconds since the first one, and two sweeps.
fn pass_until(broker: &mut Broker, at_ms: i64) {
    broker.pass(WALL_MS + at_ms - broker.now.wall_ms);
    broker.pass(SWEEP_MS);
    broker.pass(SWEEP_MS);
}

#[test]
fn an_expired_element_goes_once_it_has_been_of_no_use_for_the_lag() {
    let mut broker = broker();
    for expires in [Some(HOUR_MS), Some(3 * HOUR_MS), None, None] {
        append(&mut broker, "a", expires);
    }
    pass_until(&mut broker, 2 * HOUR_MS - 10 * SWEEP_MS);
    assert_eq!(broker.cleanings.len(), 0, "the lag is not over");
    pass_until(&mut broker, 2 * HOUR_MS);
    assert_eq!(broker.cleanings.len(), 1);
    assert_eq!(broker.records("t", 0).into_keys().collect::<Vec<_>>(), [1, 2, 3]);
    pass_until(&mut broker, 4 * HOUR_MS - 10 * SWEEP_MS);
    assert_eq!(broker.cleanings.len(), 1, "nothing else is to be erased");
    pass_until(&mut broker, 4 * HOUR_MS);
    assert_eq!(broker.cleanings.len(), 2);
    assert_eq!(broker.records("t", 0).into_keys().collect::<Vec<_>>(), [2, 3]);
    pass_until(&mut broker, 10 * HOUR_MS);
    assert_eq!(broker.cleanings.len(), 2);
}

#[test]
fn what_expires_below_the_log_start_is_no_reason_for_an_erasure() {
    let mut broker = broker();
    for expires in [Some(HOUR_MS), Some(2 * HOUR_MS), None, None] {
        append(&mut broker, "a", expires);
    }
    // The table and the segment of the two go on behind the log start.
    broker.trim("t", 2);
    pass_until(&mut broker, 10 * HOUR_MS);
    assert_eq!(broker.cleanings.len(), 0);
    broker = broker.restart(2);
    pass_until(&mut broker, 20 * HOUR_MS);
    assert_eq!(broker.cleanings.len(), 0);
    assert_eq!(broker.records("t", 2).into_keys().collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn a_leap_of_the_clock_erases_nothing() {
    const LEAP_MS: i64 = 8 * 24 * HOUR_MS;
    let mut broker = broker();
    for expires in [Some(HOUR_MS), None] {
        append(&mut broker, "a", expires);
    }
    broker.pass(SWEEP_MS);
    broker.now.wall_ms += LEAP_MS;
    for _ in 0..10 {
        broker.pass(SWEEP_MS);
    }
    assert_eq!(broker.cleanings.len(), 0, "the clock is not believed");
    assert_eq!(broker.records("t", 0).into_keys().collect::<Vec<_>>(), [0, 1]);
    broker.now.wall_ms -= LEAP_MS;
    pass_until(&mut broker, 2 * HOUR_MS - 10 * SWEEP_MS);
    assert_eq!(broker.cleanings.len(), 0, "the lag is not over");
    pass_until(&mut broker, 2 * HOUR_MS);
    assert_eq!(broker.cleanings.len(), 1);
    assert_eq!(broker.records("t", 0).into_keys().collect::<Vec<_>>(), [1]);
}
