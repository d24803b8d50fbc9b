//! What the suites of the Rust clients share: the brokers under test, names, and waiting.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, thread};

/// Longest wait for one thing on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(50);

/// Counted from there on: two names of one moment would be one.
static NUMBER: LazyLock<AtomicU64> = LazyLock::new(|| {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    AtomicU64::new(u64::try_from(now.as_micros()).expect("before the year 500,000"))
});

/// Returns the address of the broker under test, as Kafka's defaults make it.
pub fn bootstrap() -> String {
    env::var("BOOTSTRAP").expect("BOOTSTRAP is set by run.sh")
}

/// How many brokers are under test: what tests make has as many replicas.
pub fn brokers() -> i16 {
    i16::try_from(bootstrap().split(',').count()).expect("few")
}

/// A second broker: auto.create.topics.enable=false and message.max.bytes = 11 MiB.
pub fn strict_bootstrap() -> String {
    env::var("STRICT_BOOTSTRAP").expect("STRICT_BOOTSTRAP is set by run.py")
}

/// Who logs in by SCRAM-SHA-512 and TLS, and whose certificates it trusts.
pub struct Login {
    pub user: String,
    pub password: String,
    pub ca: String,
}

/// Returns the user that `run.py --secured` has made; else the brokers ask nobody.
pub fn login() -> Option<Login> {
    let user = env::var("SASL_USERNAME").ok()?;
    let told = |name: &str| env::var(name).expect("run.py sets it with the user");
    Some(Login { user, password: told("SASL_PASSWORD"), ca: told("SSL_CA") })
}

/// A name that neither this run nor an earlier one on the same broker used.
pub fn unique(name: &str) -> String {
    format!("{name}-{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Returns how many times as long as a quiet machine this one takes; run.py measures it.
fn slowness() -> f64 {
    env::var("SLOWNESS").ok().and_then(|text| text.parse().ok()).unwrap_or(1.0)
}

/// Asks again and again whether something has come to be.
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE.mul_f64(slowness());
    while !is() {
        assert!(Instant::now() < deadline, "never came to be: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}
