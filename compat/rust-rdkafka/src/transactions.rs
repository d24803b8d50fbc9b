use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use suite::{unique, until};

use crate::{PATIENCE, assigned, config, consume, must_produce, new_topic, numbered, refused};

fn transactional(id: &str) -> BaseProducer {
    let settings = [("transactional.id", id), ("linger.ms", "1")];
    let producer: BaseProducer = config(&settings).create().expect("a producer");
    producer.init_transactions(PATIENCE).expect("an id and an epoch");
    producer
}

fn send(producer: &BaseProducer, topic: &str, value: &str) {
    let record = BaseRecord::<(), str>::to(topic).partition(0).payload(value);
    producer.send(record).expect("room in the queue");
    producer.flush(PATIENCE).expect("flushed");
}

fn end(producer: &BaseProducer, commits: bool) {
    if commits {
        producer.commit_transaction(PATIENCE).expect("committed");
    } else {
        producer.abort_transaction(PATIENCE).expect("aborted");
    }
}

/// What there is up to the end of now. A transaction is complete a moment after its end was answered: that is waited for.
fn seen(topic: &str, isolation: &str) -> Vec<String> {
    let settings = [("isolation.level", isolation), ("enable.partition.eof", "true")];
    let end = |isolation| {
        let consumer = assigned(topic, 1, Offset::Beginning, &[("isolation.level", isolation)]);
        consumer.fetch_watermarks(topic, 0, PATIENCE).expect("an answer").1
    };
    until("no transaction is open", || end("read_committed") == end("read_uncommitted"));
    let consumer = assigned(topic, 1, Offset::Beginning, &settings);
    let mut values = Vec::new();
    loop {
        match consumer.poll(PATIENCE).expect("a record or the end in time") {
            Ok(message) => {
                let value = message.payload().expect("a value");
                values.push(String::from_utf8(value.to_vec()).expect("a text"));
            }
            Err(KafkaError::PartitionEOF(_)) => return values,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn what_is_committed_is_seen_and_what_is_aborted_is_not() {
    let topic = new_topic(1, &[]);
    let producer = transactional(&unique("transactional"));
    for (number, commits) in [true, false, true].into_iter().enumerate() {
        producer.begin_transaction().expect("begun");
        for part in 0..2 {
            send(&producer, &topic, &format!("{number}.{part}"));
        }
        end(&producer, commits);
    }
    assert_eq!(seen(&topic, "read_committed"), ["0.0", "0.1", "2.0", "2.1"]);
    assert_eq!(seen(&topic, "read_uncommitted"), ["0.0", "0.1", "1.0", "1.1", "2.0", "2.1"]);
}

#[test]
fn a_second_producer_of_the_same_id_fences_the_first() {
    let (topic, id) = (new_topic(1, &[]), unique("transactional"));
    let first = transactional(&id);
    first.begin_transaction().expect("begun");
    send(&first, &topic, "of the first");
    let second = transactional(&id);
    second.begin_transaction().expect("begun");
    send(&second, &topic, "of the second");
    end(&second, true);
    refused(first.commit_transaction(PATIENCE), RDKafkaErrorCode::Fenced);
    assert_eq!(seen(&topic, "read_committed"), ["of the second"]);
}

#[test]
fn offsets_are_committed_with_the_records() {
    let (from, to, group) = (new_topic(1, &[]), new_topic(1, &[]), unique("loop"));
    must_produce(&numbered(&from, 30), &[]);
    let producer = transactional(&unique("loop"));
    let reader: BaseConsumer = config(&[("group.id", &group)]).create().expect("a consumer");
    let metadata = reader.group_metadata().expect("of a group");
    let list = |offset| {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&from, 0, offset).expect("an offset");
        list
    };
    for (begin, commits) in [(0, true), (10, false), (10, true), (20, true)] {
        producer.begin_transaction().expect("begun");
        for message in consume(&from, 10, Offset::Offset(begin), &[]) {
            let value = std::str::from_utf8(message.payload().expect("a value")).expect("a text");
            send(&producer, &to, value);
        }
        let next = list(Offset::Offset(begin + 10));
        producer.send_offsets_to_transaction(&next, &metadata, PATIENCE).expect("sent");
        end(&producer, commits);
        let expected = match if commits { begin + 10 } else { begin } {
            0 => Offset::Invalid,
            offset => Offset::Offset(offset),
        };
        until("the offset is as it should be", || {
            let found = reader.committed_offsets(list(Offset::Invalid), Duration::from_secs(5));
            found.is_ok_and(|found| found.elements()[0].offset() == expected)
        });
    }
    assert_eq!(seen(&to, "read_committed").len(), 30);
}
