//! A member of `groups/`: member BOOTSTRAP TOPIC GROUP. It commits what it has processed, and leaves at SIGTERM.

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::Message;

static LEAVING: AtomicBool = AtomicBool::new(false);

extern "C" fn leave(_signal: libc::c_int) {
    LEAVING.store(true, Ordering::Relaxed);
}

fn main() {
    let [bootstrap, topic, group] =
        [1, 2, 3].map(|index| env::args().nth(index).expect("three arguments"));
    // SAFETY: the handler only stores to an atomic.
    unsafe { libc::signal(libc::SIGTERM, leave as *const () as libc::sighandler_t) };
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", group)
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("session.timeout.ms", "3000")
        .set("heartbeat.interval.ms", "300")
        .create()
        .expect("a consumer");
    consumer.subscribe(&[&topic]).expect("subscribed");
    while !LEAVING.load(Ordering::Relaxed) {
        // An error is told by the client as it recovers from it.
        if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
            let value = String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned();
            println!("{} {} {value}", message.partition(), message.offset());
            // What could not be committed is processed again by whoever has the partition now.
            consumer.commit_message(&message, CommitMode::Sync).ok();
        }
    }
}
