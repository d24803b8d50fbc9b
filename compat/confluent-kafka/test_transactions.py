"""Transactions with librdkafka, which speaks the first version of their protocol."""

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

import checks
import reach
from checks import equal
from client import admin, consume, consumer, error_code, new_topic, produce, producer

TIMEOUT_S = 20


def transactional(id=None, **settings):
    made = producer(transactional_id=id or checks.unique("transactional"), **settings)
    made.init_transactions(TIMEOUT_S)
    return made


def send(made, topic, *values, partition=0):
    for value in values:
        made.produce(topic, value=value, partition=partition)
    equal(made.flush(TIMEOUT_S), 0)


def seen(topic, isolation, partition=0):
    """Every value up to the end that is there now."""
    reader = consumer(isolation_level=isolation, enable_partition_eof=True)
    reader.assign([TopicPartition(topic, partition, 0)])
    found = []
    while True:
        message = reader.poll(TIMEOUT_S)
        assert message, "neither a record nor the end"
        if message.error() and message.error().code() == KafkaError._PARTITION_EOF:
            reader.close()
            return found
        assert not message.error(), message.error()
        found.append(message.value())


def seen_settled(topic, isolation, partition=0):
    """The same, once no transaction is open. A transaction is complete a moment after its end was answered: that is waited for."""

    def end(isolation):
        return consumer(isolation_level=isolation).get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_S)[1]

    checks.eventually("no transaction is open", lambda: end("read_committed") == end("read_uncommitted"))
    return seen(topic, isolation, partition)


@pytest.mark.short
def test_what_is_committed_is_seen_and_what_is_aborted_is_not():
    one, two = new_topic(partitions=2), new_topic()
    made = transactional()
    for number, commits in enumerate((True, False, True)):
        made.begin_transaction()
        for topic, partition in ((one, 0), (one, 1), (two, 0)):
            send(made, topic, b"%d" % number, b"%d" % number, partition=partition)
        (made.commit_transaction if commits else made.abort_transaction)(TIMEOUT_S)
    for topic, partition in ((one, 0), (one, 1), (two, 0)):
        equal(seen_settled(topic, "read_committed", partition), [b"0", b"0", b"2", b"2"])
        equal(seen(topic, "read_uncommitted", partition), [b"0", b"0", b"1", b"1", b"2", b"2"])


def test_an_open_transaction_holds_up_readers_of_committed_records():
    topic = new_topic()
    made = transactional()
    made.begin_transaction()
    send(made, topic, b"open")
    produce(topic, [{"value": b"plain"}]).offsets()
    equal(seen(topic, "read_committed"), [])
    equal(consumer(isolation_level="read_committed").get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S), (0, 0))
    made.commit_transaction(TIMEOUT_S)
    equal([each.value() for each in consume(topic, 2, isolation_level="read_committed")], [b"open", b"plain"])


@pytest.mark.short
def test_a_second_producer_of_the_same_id_fences_the_first():
    topic, id = new_topic(), checks.unique("transactional")
    first = transactional(id)
    first.begin_transaction()
    send(first, topic, b"of the first")
    second = transactional(id)
    second.begin_transaction()
    send(second, topic, b"of the second")
    second.commit_transaction(TIMEOUT_S)
    try:
        first.commit_transaction(TIMEOUT_S)
    except KafkaException as error:
        equal(error.args[0].code(), KafkaError._FENCED)
        assert error.args[0].fatal()
    else:
        raise AssertionError("it was not fenced")
    equal(seen_settled(topic, "read_committed"), [b"of the second"])


def test_a_timeout_above_the_brokers_maximum_is_refused():
    made = producer(transactional_id=checks.unique("transactional"), transaction_timeout_ms=900_001)
    equal(error_code(lambda: made.init_transactions(TIMEOUT_S)), KafkaError.INVALID_TRANSACTION_TIMEOUT)


@pytest.mark.short
@pytest.mark.waits
def test_records_are_read_processed_and_written_once_through_aborts():
    source, target, group = new_topic(), new_topic(), checks.unique("loop")
    produce(source, [{"value": b"%d" % number} for number in range(500)]).offsets()
    made = transactional(checks.unique("loop"))
    reader = consumer(group_id=group, isolation_level="read_committed", auto_offset_reset="earliest")
    reader.subscribe([source])
    done = attempts = 0
    while done < 500:
        messages = reader.consume(50, timeout=1.0)
        if not messages:
            continue
        attempts += 1
        made.begin_transaction()
        for message in messages:
            assert not message.error(), message.error()
            made.produce(target, value=message.value())
        made.send_offsets_to_transaction(reader.position(reader.assignment()), reader.consumer_group_metadata(), TIMEOUT_S)
        if attempts % 3 == 2:
            made.flush(TIMEOUT_S)  # An abort drops what was not sent yet.
            made.abort_transaction(TIMEOUT_S)
            [committed] = reader.committed([TopicPartition(source, 0)], TIMEOUT_S)
            equal(committed.offset, done)
            reader.seek(committed)
        else:
            made.commit_transaction(TIMEOUT_S)
            done += len(messages)
    reader.close()
    equal(seen_settled(target, "read_committed"), [b"%d" % number for number in range(500)])
    assert len(seen(target, "read_uncommitted")) > 500, "some were aborted"
    [committed] = Consumer({**reach.librdkafka(), "group.id": group}).committed([TopicPartition(source, 0)], TIMEOUT_S)
    equal(committed.offset, 500)


def test_offsets_that_are_pending_are_not_given_to_who_wants_stable_ones():
    topic, group = new_topic(), checks.unique("pending")
    made = transactional()
    reader = consumer(group_id=group)
    reader.assign([TopicPartition(topic, 0, 0)])
    made.begin_transaction()
    made.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], reader.consumer_group_metadata(), TIMEOUT_S)
    # It asks again until its own time is over.
    equal(error_code(lambda: reader.committed([TopicPartition(topic, 0)], 2)), KafkaError._TIMED_OUT)
    made.commit_transaction(TIMEOUT_S)
    equal(reader.committed([TopicPartition(topic, 0)], TIMEOUT_S)[0].offset, 7)
    reader.close()
    assert group in {each.group_id for each in admin().list_consumer_groups().result(TIMEOUT_S).valid}
