"""What a log must do, with librdkafka and assigned partitions."""

import threading
import time

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING, TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, IsolationLevel, KafkaError, TopicCollection,
    TopicPartition,
)  # fmt: skip
from confluent_kafka.admin import OffsetSpec

import checks
from checks import equal
from client import MIB, Deliveries, admin, consume, consumer, create, error_code, new_topic, produce, producer

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.short
def test_keys_values_headers_and_timestamps_come_back_as_they_went_with_every_codec():
    for codec in CODECS:
        topic = new_topic()
        sent = [
            {
                "key": b"key-%d" % number,
                "value": b"value-%d " % number * 50,
                "headers": [("a", b"1"), ("a", b""), ("null", None), ("bytes", bytes(range(256)))],
                "timestamp": 1_600_000_000_000 + number,
            }
            for number in range(500)
        ]
        equal(produce(topic, sent, compression_type=codec).offsets(), list(range(500)), codec)
        for number, message in enumerate(consume(topic, 500)):
            equal((message.offset(), message.key(), message.value()), (number, sent[number]["key"], sent[number]["value"]), codec)
            equal(message.headers(), sent[number]["headers"])
            equal(message.timestamp(), (TIMESTAMP_CREATE_TIME, sent[number]["timestamp"]))


def test_records_come_back_from_topics_with_a_codec_of_their_own():
    for kept in ("uncompressed", *CODECS[1:]):
        topic, sent = new_topic(compression_type=kept), []
        for codec in CODECS:
            some = [{"key": b"k%d" % number, "value": b"%d in " % number + codec.encode() * 50, "headers": [("a", None)]} for number in range(50)]
            equal(produce(topic, some, compression_type=codec).offsets(), list(range(len(sent), len(sent) + 50)), f"{codec} in {kept}")
            sent += some
        for each, message in zip(sent, consume(topic, len(sent)), strict=True):
            equal((message.key(), message.value(), message.headers()), (each["key"], each["value"], each["headers"]), kept)


def test_null_and_empty_keys_and_values_stay_apart():
    topic = new_topic()
    pairs = [(None, b"v"), (b"k", None), (None, None), (b"", b""), (b"k", b"")]
    produce(topic, [{"key": key, "value": value} for key, value in pairs]).offsets()
    equal([(message.key(), message.value()) for message in consume(topic, len(pairs))], pairs)


def test_a_log_append_time_topic_stamps_messages_itself():
    for codec in ("none", "lz4"):
        topic = new_topic(message_timestamp_type="LogAppendTime")
        before = int(time.time() * 1000)
        produce(topic, [{"value": b"v", "timestamp": 1000}] * 3, compression_type=codec).offsets()
        after = int(time.time() * 1000)
        for message in consume(topic, 3):
            kind, timestamp = message.timestamp()
            equal(kind, TIMESTAMP_LOG_APPEND_TIME)
            assert before <= timestamp <= after, f"{before} <= {timestamp} <= {after}"


@pytest.mark.short
def test_every_acks_setting_delivers():
    for acks in (0, 1, -1):
        topic = new_topic()
        deliveries = produce(topic, [{"value": b"%d" % number} for number in range(100)], acks=acks)
        equal((len(deliveries.messages), deliveries.errors), (100, []))
        equal([message.value() for message in consume(topic, 100)], [b"%d" % number for number in range(100)], f"acks={acks}")


@pytest.mark.short
def test_an_idempotent_producer_delivers_in_order():
    topic = new_topic()
    sent = [{"value": b"%d" % number} for number in range(5000)]
    equal(produce(topic, sent, enable_idempotence=True, linger_ms=0).offsets(), list(range(5000)))
    equal([message.value() for message in consume(topic, 5000)], [message["value"] for message in sent])


def test_a_message_of_11_mb_goes_through_when_the_topic_allows_it():
    topic = new_topic(max_message_bytes=str(11 * MIB))
    value = bytes(range(256)) * (43 * 1024 - 4)
    for codec in ("none", "zstd"):
        produce(topic, [{"value": value}], message_max_bytes=12 * MIB, compression_type=codec).offsets()
    for message in consume(topic, 2):
        assert message.value() == value, "the content differs"


@pytest.mark.short
def test_an_oversize_message_is_refused_and_the_next_one_is_not():
    topic = new_topic(max_message_bytes="2000")
    sender, deliveries = producer(linger_ms=0), Deliveries()
    for size in (100, 5000, 101):
        sender.produce(topic, b"x" * size, partition=0, on_delivery=deliveries)
        sender.flush(30)
    equal([error.code() for error in deliveries.errors], [KafkaError.MSG_SIZE_TOO_LARGE])
    equal([len(message.value()) for message in consume(topic, 2)], [100, 101])


def test_a_message_without_a_key_is_refused_by_a_compacted_topic():
    topic = new_topic(cleanup_policy="compact")
    equal([error.code() for error in produce(topic, [{"value": b"v"}]).errors], [KafkaError.INVALID_RECORD])
    equal(produce(topic, [{"key": b"k", "value": b"v"}, {"key": b"k", "value": None}]).offsets(), [0, 1])


def test_a_timestamp_too_far_ahead_is_refused():
    topic = new_topic()
    ahead = int(time.time() * 1000) + 48 * 3600 * 1000
    [error] = produce(topic, [{"value": b"v", "timestamp": ahead}]).errors
    equal(error.code(), KafkaError.INVALID_TIMESTAMP)


@pytest.mark.short
def test_offsets_are_found_by_timestamp():
    topic = new_topic()
    produce(topic, [{"value": b"v", "timestamp": 10_000 + 10 * number} for number in range(100)]).offsets()
    reader = consumer()
    for asked, offset in [(0, 0), (10_000, 0), (10_001, 1), (10_495, 50), (10_990, 99)]:
        [found] = reader.offsets_for_times([TopicPartition(topic, 0, asked)], timeout=10)
        equal((found.error, found.offset), (None, offset), f"timestamp {asked}")
    [none] = reader.offsets_for_times([TopicPartition(topic, 0, 10_991)], timeout=10)
    equal(none.offset, -1, "librdkafka's OFFSET_END for none")
    equal(reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=10), (0, 100))
    reader.close()


def test_the_admin_client_lists_earliest_latest_and_max_timestamp():
    topic = new_topic()
    produce(topic, [{"value": b"v", "timestamp": timestamp} for timestamp in (1000, 9000, 2000)]).offsets()
    for spec, offset in [(OffsetSpec.earliest(), 0), (OffsetSpec.latest(), 3), (OffsetSpec.max_timestamp(), 1), (OffsetSpec.for_timestamp(9001), -1)]:
        asked = {TopicPartition(topic, 0): spec}
        [answer] = admin().list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED).values()
        equal(answer.result(10).offset, offset)


def test_many_partitions_are_read_by_one_consumer():
    topic = new_topic(partitions=60)
    sender, deliveries = producer(), Deliveries()
    for number in range(60 * 20):
        sender.produce(topic, b"%d" % number, partition=number % 60, on_delivery=deliveries)
    sender.flush(30)
    equal(len(deliveries.messages), 1200)
    reader = consumer()
    reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(60)])
    found, deadline = {}, time.monotonic() + 30 * checks.SLOWNESS
    while sum(map(len, found.values())) < 1200 and time.monotonic() < deadline:
        for message in reader.consume(500, timeout=0.5):
            found.setdefault(message.partition(), []).append(int(message.value()))
    reader.close()
    equal(found, {partition: list(range(partition, 1200, 60)) for partition in range(60)})


def test_a_waiting_consumer_gets_a_message_at_once():
    topic = new_topic()
    reader = consumer(fetch_wait_max_ms=10_000)
    reader.assign([TopicPartition(topic, 0, 0)])
    assert reader.poll(0.5) is None
    sender, arrived = producer(linger_ms=0), []
    thread = threading.Thread(target=lambda: arrived.append((reader.poll(10), time.monotonic())))
    thread.start()
    time.sleep(0.3)
    sender.produce(topic, b"now", partition=0)
    sender.flush(10)
    acknowledged = time.monotonic()
    thread.join()
    message, at = arrived[0]
    equal(message.value(), b"now")
    assert at - acknowledged < 0.5, f"arrived {at - acknowledged:.2f} s after the acknowledgement"
    reader.close()


@pytest.mark.short
def test_topics_are_created_described_deleted_and_recreated_with_a_new_id_and_no_old_data():
    topic = checks.unique("rdkafka-again")
    ids = set()
    for generation in range(3):
        create(topic, partitions=2)
        described = describe(topic)
        equal([partition.id for partition in described.partitions], [0, 1])
        ids.add(str(described.topic_id))
        equal(produce(topic, [{"value": b"%d" % generation}]).offsets(), [0])
        equal([message.value() for message in consume(topic, 1)], [b"%d" % generation])
        admin().delete_topics([topic])[topic].result(30)
        wait_until_gone(topic)
    equal(len(ids), 3)


def describe(topic):
    [description] = admin().describe_topics(TopicCollection([topic])).values()
    return description.result(10)


def wait_until_gone(topic):
    deadline = time.monotonic() + 10 * checks.SLOWNESS
    while topic in admin().list_topics(timeout=10).topics:
        assert time.monotonic() < deadline, f"{topic} is still there"
        time.sleep(0.05)


def test_bad_topics_are_refused_by_code():
    name = checks.unique("rdkafka-bad")
    cases = [
        (lambda: create("bad name"), KafkaError.TOPIC_EXCEPTION),
        (lambda: create(name, partitions=0), KafkaError.INVALID_PARTITIONS),
        (lambda: create(name, replication_factor=9), KafkaError.INVALID_REPLICATION_FACTOR),
        (lambda: create(name, retention_ms="soon"), KafkaError.INVALID_CONFIG),
        (lambda: create(name, no_such_setting="1"), KafkaError.INVALID_CONFIG),
    ]
    for call, code in cases:
        equal(error_code(call), code)
    create(name)
    equal(error_code(lambda: create(name)), KafkaError.TOPIC_ALREADY_EXISTS)
    nowhere = checks.unique("nowhere")
    equal(error_code(lambda: admin().delete_topics([nowhere])[nowhere].result(10)), KafkaError.UNKNOWN_TOPIC_OR_PART)


def test_producing_to_an_unknown_topic_creates_it_where_the_broker_allows_that():
    topic = checks.unique("rdkafka-auto")
    equal(produce(topic, [{"value": b"v"}]).offsets(), [0])
    equal([message.value() for message in consume(topic, 1)], [b"v"])


def test_producing_to_an_unknown_topic_fails_where_client_or_broker_forbid_creation():
    for settings in [{"allow_auto_create_topics": False}, {"bootstrap_servers": checks.strict_bootstrap()}]:
        topic = checks.unique("rdkafka-refused")
        [error] = produce(topic, [{"value": b"v"}], message_timeout_ms=3000, topic_metadata_propagation_max_ms=0, **settings).errors
        assert error.code() in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART), error
        bootstrap = settings.get("bootstrap_servers")
        assert topic not in admin(bootstrap).list_topics(timeout=10).topics


def test_an_unknown_partition_is_refused():
    topic = new_topic()
    deliveries = produce(topic, [{"value": b"v"}], partition=7, message_timeout_ms=3000)
    equal([error.code() for error in deliveries.errors], [KafkaError._UNKNOWN_PARTITION])


@pytest.mark.short
def test_deleted_records_are_out_of_range():
    topic = new_topic()
    produce(topic, [{"value": b"%d" % number} for number in range(10)]).offsets()
    [answer] = admin().delete_records([TopicPartition(topic, 0, 6)]).values()
    equal(answer.result(10).low_watermark, 6)
    reader = consumer()
    equal(reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=10, cached=False), (6, 10))
    reader.close()
    equal([message.value() for message in consume(topic, 4, offset=6)], [b"6", b"7", b"8", b"9"])
    equal([message.offset() for message in consume(topic, 4, offset=2, auto_offset_reset="earliest")], [6, 7, 8, 9])
    strict_reader = consumer(auto_offset_reset="error")
    strict_reader.assign([TopicPartition(topic, 0, 2)])
    message = strict_reader.poll(10)
    equal(message.error().code(), KafkaError._AUTO_OFFSET_RESET)
    strict_reader.close()


def test_a_consumer_that_seeks_reads_again_from_there():
    topic = new_topic()
    produce(topic, [{"value": b"%d" % number} for number in range(1000)]).offsets()
    for offset in (0, 1, 500, 998):
        equal(consume(topic, 2, offset=offset)[0].value(), b"%d" % offset)


def test_read_committed_reads_what_was_not_part_of_a_transaction():
    topic = new_topic()
    produce(topic, [{"value": b"v"}] * 3).offsets()
    equal(len(consume(topic, 3, isolation_level="read_committed")), 3)
