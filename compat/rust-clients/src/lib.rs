//! What the suites of the Rust clients share: a runner for tests whose names are sentences, and waiting.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, process, thread};

const AT_ONCE: usize = 4;
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Counted from there on: two names of one moment would be one.
static NUMBER: LazyLock<AtomicU64> = LazyLock::new(|| {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    AtomicU64::new(u64::try_from(now.as_micros()).expect("before the year 500,000"))
});

pub type Test = (&'static str, fn());

/// Makes a list of tests from functions, which go by their own names.
#[macro_export]
macro_rules! tests {
    ($($function:path),* $(,)?) => { vec![$((stringify!($function), $function as fn())),*] };
}

/// Runs the tests whose names contain one of the arguments after the bootstrap address, or all, and ends the process.
/// Some run at the same time: they mostly wait.
pub fn main(tests: Vec<Test>) -> ! {
    let wanted: Vec<String> = env::args().skip(2).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part));
    let queue: Mutex<VecDeque<Test>> =
        Mutex::new(tests.into_iter().filter(|(name, _)| is_wanted(name)).collect());
    let (passed, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no panic").pop_front();
                    let Some((name, run)) = next else { return };
                    let started = Instant::now();
                    let (outcome, count) =
                        if ends_well(run) { ("ok  ", &passed) } else { ("FAIL", &failed) };
                    count.fetch_add(1, Ordering::Relaxed);
                    println!("{outcome} {name} ({:.1} s)", started.elapsed().as_secs_f32());
                }
            });
        }
    });
    let (passed, failed) = (passed.into_inner(), failed.into_inner());
    println!("{passed} passed, {failed} failed");
    process::exit(i32::from(failed > 0 || passed == 0))
}

/// A test that hangs is left behind on its thread.
fn ends_well(run: fn()) -> bool {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(catch_unwind(AssertUnwindSafe(run)).is_ok()));
    told.recv_timeout(TEST_TIMEOUT).unwrap_or_else(|_| {
        println!("took longer than {TEST_TIMEOUT:?}");
        false
    })
}

/// The broker under test, as Kafka's defaults make it.
pub fn bootstrap() -> String {
    env::args().nth(1).expect("the first argument is the bootstrap address")
}

/// How many brokers are under test: what tests make has as many replicas.
pub fn brokers() -> i16 {
    i16::try_from(bootstrap().split(',').count()).expect("few")
}

/// A second broker: auto.create.topics.enable=false and message.max.bytes = 11 MiB.
pub fn strict_bootstrap() -> String {
    env::var("STRICT_BOOTSTRAP").expect("STRICT_BOOTSTRAP is set by run.py")
}

/// A name that neither this run nor an earlier one on the same broker used.
pub fn unique(name: &str) -> String {
    format!("{name}-{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Asks again and again whether something has come to be.
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT - Duration::from_secs(10);
    while !is() {
        assert!(Instant::now() < deadline, "never came to be: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}
