"""Transactions with kafka-python, in the version of their protocol that it finds."""

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

import checks
import reach
from checks import equal
from client import consume, new_topic, produce


def transactional(id=None):
    producer = KafkaProducer(**reach.kafka_python(), transactional_id=id or checks.unique("transactional"))
    producer.init_transactions()
    return producer


def send(producer, topic, *values):
    for value in values:
        producer.send(topic, value=value, partition=0)
    producer.flush(30)


def seen(topic, isolation):
    """Every value up to the end of all that is there now. A transaction is complete a moment after its end was answered: that is waited for."""
    consumer = KafkaConsumer(**reach.kafka_python(), isolation_level=isolation, enable_auto_commit=False, fetch_max_wait_ms=200)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    end = KafkaConsumer(**reach.kafka_python()).end_offsets([partition])[partition]
    found = []
    while consumer.position(partition) < end:
        for records in consumer.poll(500).values():
            found += [record.value for record in records]
    consumer.close()
    return found


def test_what_is_committed_is_seen_and_what_is_aborted_is_not():
    topic = new_topic()
    producer = transactional()
    for number, commits in enumerate((True, False, True)):
        producer.begin_transaction()
        send(producer, topic, *(b"%d.%d" % (number, part) for part in range(3)))
        (producer.commit_transaction if commits else producer.abort_transaction)()
    producer.close()
    all_of = lambda *numbers: [b"%d.%d" % (number, part) for number in numbers for part in range(3)]  # noqa: E731
    equal(seen(topic, "read_committed"), all_of(0, 2))
    equal(seen(topic, "read_uncommitted"), all_of(0, 1, 2))


def test_a_second_producer_of_the_same_id_fences_the_first():
    topic, id = new_topic(), checks.unique("transactional")
    first = transactional(id)
    first.begin_transaction()
    send(first, topic, b"of the first")
    second = transactional(id)
    second.begin_transaction()
    send(second, topic, b"of the second")
    second.commit_transaction()
    try:
        first.commit_transaction()
    except KafkaError as error:
        assert "Fenced" in f"{error!r}" or "InvalidProducerEpoch" in f"{error!r}", repr(error)
    else:
        raise AssertionError("it was not fenced")
    for producer in (first, second):
        producer.close(5)
    equal(seen(topic, "read_committed"), [b"of the second"])


def test_offsets_are_committed_with_the_records():
    source, target, group = new_topic(), new_topic(), checks.unique("loop")
    produce(source, [b"%d" % number for number in range(30)])
    partition = TopicPartition(source, 0)
    producer = transactional()
    reader = KafkaConsumer(**reach.kafka_python(), group_id=group, enable_auto_commit=False)
    reader.assign([partition])
    for begin, commits in ((0, True), (10, False), (10, True), (20, True)):
        producer.begin_transaction()
        send(producer, target, *(record.value for record in consume(source, 30)[begin : begin + 10]))
        offsets = {partition: OffsetAndMetadata(begin + 10, "", -1)}
        producer.send_offsets_to_transaction(offsets, group)
        (producer.commit_transaction if commits else producer.abort_transaction)()
        checks.eventually("the offset is as it should be", lambda: (reader.committed(partition) or 0) == (begin + 10 if commits else begin))
    producer.close()
    reader.close()
    equal(seen(target, "read_committed"), [b"%d" % number for number in range(30)])
