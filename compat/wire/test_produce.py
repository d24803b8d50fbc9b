"""What a broker must find wrong with a batch, and idempotent producers."""

import gzip
import struct
import time

import checks
import schema
from batch import CODECS, CONTROL, HEADER, LOG_APPEND_TIME, TRANSACTIONAL, batch, batches, record, seal
from calls import (
    PRODUCE_BY_NAME, connect, create_topic, describe_topic, fetch, fetched_values, init_producer_id, list_offset, new_producer_id, new_topic,
    produce, produce_body, topic_id, wait_for_leaders,
)  # fmt: skip
from checks import equal
from connection import Closed
from differences import check
from golden import ask_again

CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP = 2, 3, 10, 32
OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, TRANSACTIONAL_ID_AUTHORIZATION_FAILED, INVALID_RECORD = 45, 47, 53, 87
DAY_MS = 24 * 3600 * 1000


def assert_refused(connection, topic, records, error, what="", **fields):
    """The answer carries the error and no offset, and nothing of the batch can be read."""
    answer = produce(connection, topic, records, **fields)
    equal((answer["ErrorCode"], answer["BaseOffset"]), (error, -1), what)
    equal(fetch(connection, topic)["HighWatermark"], 0, f"{what}: the log's end")


def test_every_version_of_produce_appends_and_says_where():
    with connect() as connection:
        topic = new_topic(connection)
        by_id = topic_id(connection, topic)
        for offset, version in enumerate(schema.valid_versions("Produce")):
            named = by_id if version >= 13 else topic
            answer = produce(connection, named, batch([b"%d" % version]), version=version)
            equal((answer["ErrorCode"], answer["BaseOffset"], answer["LogAppendTimeMs"]), (0, offset, -1), f"v{version}")
            if version >= 5:
                equal(answer["LogStartOffset"], 0)
        equal(fetched_values(connection, topic), [b"%d" % version for version in schema.valid_versions("Produce")])


def test_the_broker_sets_base_offset_and_leader_epoch_and_leaves_every_other_byte():
    with connect() as connection:
        topic = new_topic(connection)
        sent = batch([b"a", b"b"], keys=[b"k", None], leader_epoch=7)
        equal(produce(connection, topic, sent)["BaseOffset"], 0)
        equal(produce(connection, topic, sent)["BaseOffset"], 2)
        for base, got in zip((0, 2), batches(fetch(connection, topic)["Records"])):
            equal(got.base_offset, base)
            equal(got.leader_epoch, describe_topic(connection, topic)["Partitions"][0]["LeaderEpoch"])
            equal(got.bytes[16:], sent[16:], "from the magic byte on")


def test_a_base_offset_other_than_0_is_an_invalid_record():
    with connect() as connection:
        topic = new_topic(connection)
        for base_offset in (1, 12345, -1):
            assert_refused(connection, topic, batch([b"v"], base_offset=base_offset), INVALID_RECORD, f"{base_offset}")


def test_a_flipped_bit_anywhere_under_the_crc_is_corrupt():
    with connect() as connection:
        topic = new_topic(connection)
        good = batch([b"value"])
        for position in (17, 20, 21, 22, 30, 40, 57, 61, len(good) - 1):
            bad = bytearray(good)
            bad[position] ^= 0x40
            assert_refused(connection, topic, bytes(bad), CORRUPT_MESSAGE, f"byte {position}")


def test_a_wrong_batch_length_is_refused():
    with connect() as connection:
        topic = new_topic(connection)
        good = batch([b"value"])
        for length in (len(good) - 12 + 1, len(good) - 12 - 1, 49, 48, 13, 0, -1, 5000, 2**31 - 1):
            bad = good[:8] + length.to_bytes(4, "big", signed=True) + good[12:]
            check(produce(connection, topic, bad)["ErrorCode"], "batch length that lies", f"length {length}")
        equal(fetch(connection, topic)["HighWatermark"], 0)


def test_a_batch_that_is_cut_short_is_refused():
    with connect() as connection:
        topic = new_topic(connection)
        good = batch([b"value"])
        for size in (1, 11, 12, 17, 60, len(good) - 1):
            check(produce(connection, topic, good[:size])["ErrorCode"], "batch that is cut short", f"{size} of {len(good)} bytes")
        equal(fetch(connection, topic)["HighWatermark"], 0)


def test_bytes_after_the_batch_are_never_kept():
    with connect() as connection:
        topic = new_topic(connection)
        good = batch([b"value"])
        check(produce(connection, topic, good + b"tail")["ErrorCode"], "four bytes after the batch")
        assert len(fetch(connection, topic)["Records"]) in (0, len(good))
        check(produce(connection, topic, good + bytes(20))["ErrorCode"], "zeroes after the batch")


def test_two_batches_for_one_partition_in_one_request_are_an_invalid_record():
    with connect() as connection:
        topic = new_topic(connection)
        assert_refused(connection, topic, batch([b"1"]) + batch([b"2"]), INVALID_RECORD)


def test_no_records_at_all_are_an_invalid_record():
    with connect() as connection:
        topic = new_topic(connection)
        assert_refused(connection, topic, b"", INVALID_RECORD, "empty")
        for last_offset_delta in (0, -1):
            nothing = batch([], timestamps=[0], last_offset_delta=last_offset_delta)
            assert_refused(connection, topic, nothing, INVALID_RECORD, f"a batch of none, last offset delta {last_offset_delta}")


def test_null_records_are_answered_or_close_the_connection():
    """Kafka 4.3 fails while it logs this request: it neither answers nor closes, so nothing is asked of it here."""
    if checks.broker_kind() == "kafka":
        return
    with connect() as connection, connect() as bystander:
        topic = new_topic(connection)
        try:
            assert_refused(connection, topic, None, INVALID_RECORD)
        except Closed:
            equal(fetch(bystander, topic)["HighWatermark"], 0)


def test_magic_bytes_other_than_2_are_refused():
    with connect() as connection:
        topic = new_topic(connection)
        for magic in (0, 1, 3, 127, -1):
            error = INVALID_RECORD if magic in (0, 1) else CORRUPT_MESSAGE
            assert_refused(connection, topic, batch([b"v"], magic=magic), error, f"magic {magic}")


def test_a_record_count_that_lies_is_an_invalid_record():
    with connect() as connection:
        topic = new_topic(connection)
        for count, last_offset_delta in [(1, 1), (3, 1), (1, 0), (3, 2), (0, -1), (-1, 1), (2**31 - 1, 2**31 - 2)]:
            bad = batch([b"a", b"b"], count=count, last_offset_delta=last_offset_delta)
            assert_refused(connection, topic, bad, INVALID_RECORD, f"count {count}, last offset delta {last_offset_delta}")


def test_record_offsets_that_are_not_dense():
    with connect() as connection:
        topic = new_topic(connection)
        for deltas in [(0, 2), (0, 0), (1, 0)]:
            payload = b"".join(record(b"v", offset_delta=delta) for delta in deltas)
            plain = produce(connection, topic, batch([b"a", b"b"], payload=payload))
            check(plain["ErrorCode"], "offsets not dense, uncompressed", f"{deltas}")
            packed = produce(connection, topic, batch([b"a", b"b"], attributes=CODECS["gzip"], payload=gzip.compress(payload)))
            check(packed["ErrorCode"], "offsets not dense, compressed", f"{deltas}")


def test_a_record_count_that_lies_under_compression_is_an_invalid_record():
    with connect() as connection:
        topic = new_topic(connection)
        payload = gzip.compress(record(b"a") + record(b"b", offset_delta=1))
        for count in (1, 3):
            bad = batch([b"v"], attributes=CODECS["gzip"], payload=payload, count=count, last_offset_delta=count - 1)
            assert_refused(connection, topic, bad, INVALID_RECORD, f"{count} instead of 2")


def test_records_that_do_not_parse_are_refused():
    with connect() as connection:
        topic = new_topic(connection)
        payloads = {
            "noise": b"\x55" * 40,
            "a record longer than the batch": b"\x7e" + record(b"v")[1:],
            "a record and a stray byte": record(b"v") + b"\0",
            "a negative key length": b"\x10\0\0\0\x03\x02v\0\0"[:9],
        }
        for what, payload in payloads.items():
            assert_refused(connection, topic, batch([b"v"], payload=payload), INVALID_RECORD, what)


def test_compressed_records_that_do_not_decompress_are_refused():
    with connect() as connection:
        topic = new_topic(connection)
        for codec in ("gzip", "snappy", "lz4", "zstd"):
            bad = batch([b"v"], attributes=CODECS[codec], payload=b"this is not compressed at all")
            answer = produce(connection, topic, bad)
            check(answer["ErrorCode"], "records that do not decompress", codec)
        equal(fetch(connection, topic)["HighWatermark"], 0)


def test_a_codec_that_does_not_exist_is_refused():
    with connect() as connection:
        topic = new_topic(connection)
        for codec in (5, 6, 7):
            answer = produce(connection, topic, batch([b"v"], attributes=codec))
            check(answer["ErrorCode"], "unknown codec", f"{codec}")


def test_a_good_gzip_batch_is_kept_as_it_came():
    with connect() as connection:
        topic = new_topic(connection)
        sent = batch([b"v"], attributes=CODECS["gzip"], payload=gzip.compress(record(b"v"), mtime=0))
        equal(produce(connection, topic, sent)["ErrorCode"], 0)
        equal(batches(fetch(connection, topic)["Records"])[0].bytes[16:], sent[16:])


def test_a_snappy_batch_is_kept_as_it_came_raw_or_framed():
    plain = record(b"v")
    raw = bytes([len(plain), len(plain) - 1 << 2]) + plain
    framed = b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(raw)) + raw
    with connect() as connection:
        for payload in (raw, framed):
            topic = new_topic(connection)
            sent = batch([b"v"], attributes=CODECS["snappy"], payload=payload)
            equal(produce(connection, topic, sent)["ErrorCode"], 0)
            equal(batches(fetch(connection, topic)["Records"])[0].bytes[16:], sent[16:])


def test_zstd_below_produce_version_7_is_an_unsupported_compression_type():
    with connect() as connection:
        topic = new_topic(connection)
        for version in (3, 6):
            assert_refused(connection, topic, batch([b"v"], attributes=CODECS["zstd"]), 76, version=version)


def test_control_batches_from_a_client_are_an_invalid_record():
    with connect() as connection:
        topic = new_topic(connection)
        assert_refused(connection, topic, batch([b"v"], attributes=CONTROL), INVALID_RECORD)


def test_a_transactional_batch_without_a_transactional_id_is_refused():
    with connect() as connection:
        topic = new_topic(connection)
        producer_id, epoch = new_producer_id(connection)
        for attributes in (TRANSACTIONAL, TRANSACTIONAL | CONTROL):
            bad = batch([b"v"], attributes=attributes, producer_id=producer_id, epoch=epoch, sequence=0)
            equal(produce(connection, topic, bad)["ErrorCode"], TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        equal(fetch(connection, topic)["HighWatermark"], 0)


def test_a_batch_above_max_message_bytes_is_too_large():
    with connect() as connection:
        topic = new_topic(connection, max_message_bytes="1000")
        overhead = len(batch([b"x" * 900])) - 900
        assert_refused(connection, topic, batch([b"x" * (1001 - overhead)]), MESSAGE_TOO_LARGE)
        equal(produce(connection, topic, batch([b"x" * (1000 - overhead)]))["ErrorCode"], 0)


def test_the_default_limit_of_a_batch_is_1048588_bytes():
    with connect() as connection:
        topic = new_topic(connection)
        overhead = len(batch([b"x" * 1_000_000])) - 1_000_000
        assert_refused(connection, topic, batch([b"x" * (1_048_588 - overhead + 1)]), MESSAGE_TOO_LARGE)
        equal(produce(connection, topic, batch([b"x" * (1_048_588 - overhead)]))["ErrorCode"], 0)


def test_a_record_without_a_key_in_a_compacted_topic_is_an_invalid_record_and_named():
    with connect() as connection:
        topic = new_topic(connection, cleanup_policy="compact")
        mixed = batch([b"a", b"b", b"c"], keys=[b"k", None, None])
        answer = produce(connection, topic, mixed)
        equal((answer["ErrorCode"], answer["BaseOffset"]), (INVALID_RECORD, -1))
        equal([error["BatchIndex"] for error in answer["RecordErrors"]], [1, 2])
        assert answer["ErrorMessage"], "an error message for people"
        equal(produce(connection, topic, batch([b"a"], keys=[b""]))["ErrorCode"], 0, "an empty key is a key")


def test_a_timestamp_more_than_an_hour_ahead_is_invalid():
    with connect() as connection:
        topic = new_topic(connection)
        now = int(time.time() * 1000)
        assert_refused(connection, topic, batch([b"v"], timestamp=now + 2 * 3600 * 1000), INVALID_TIMESTAMP)
        answer = produce(connection, topic, batch([b"a", b"b"], timestamps=[now, now + DAY_MS]))
        equal(answer["ErrorCode"], INVALID_TIMESTAMP)
        equal([error["BatchIndex"] for error in answer["RecordErrors"]], [1])
        equal(produce(connection, topic, batch([b"v"], timestamp=now + 1800 * 1000))["ErrorCode"], 0)


def test_old_and_absent_timestamps_are_taken():
    with connect() as connection:
        topic = new_topic(connection)
        for timestamp in (0, 1, -1):
            equal(produce(connection, topic, batch([b"v"], timestamp=timestamp))["ErrorCode"], 0, f"timestamp {timestamp}")


def test_message_timestamp_before_max_ms_refuses_old_records():
    with connect() as connection:
        topic = new_topic(connection, message_timestamp_before_max_ms=str(DAY_MS))
        old = int(time.time() * 1000) - 2 * DAY_MS
        assert_refused(connection, topic, batch([b"v"], timestamp=old), INVALID_TIMESTAMP)


def test_log_append_time_sets_bit_3_and_the_max_timestamp_and_a_right_crc():
    with connect() as connection:
        topic = new_topic(connection, message_timestamp_type="LogAppendTime")
        before = int(time.time() * 1000)
        sent = batch([b"a", b"b"], timestamps=[1000, 5000])
        answer = produce(connection, topic, sent)
        after = int(time.time() * 1000)
        equal(answer["ErrorCode"], 0)
        assert before <= answer["LogAppendTimeMs"] <= after, f"{before} <= {answer['LogAppendTimeMs']} <= {after}"
        got = batches(fetch(connection, topic)["Records"])[0]
        equal(got.attributes, LOG_APPEND_TIME)
        equal(got.max_timestamp, answer["LogAppendTimeMs"])
        equal(got.base_timestamp, 1000, "the base timestamp stays the producer's")
        assert got.crc_is_right()
        equal(got.bytes[HEADER.size :], sent[HEADER.size :], "the records stay as they came")


def test_a_max_timestamp_that_lies_is_put_right():
    with connect() as connection:
        topic = new_topic(connection)
        for lie in (9999, -1):
            lying = bytearray(batch([b"a", b"b"], timestamps=[1000, 5000]))
            lying[35:43] = lie.to_bytes(8, "big", signed=True)
            check(produce(connection, topic, seal(lying))["ErrorCode"], "max timestamp that lies")
        for got in batches(fetch(connection, topic)["Records"]):
            equal(got.max_timestamp, 5000)
            assert got.crc_is_right()


def test_a_log_append_time_bit_from_a_client_is_not_kept_on_a_create_time_topic():
    with connect() as connection:
        topic = new_topic(connection)
        check(produce(connection, topic, batch([b"v"], attributes=LOG_APPEND_TIME))["ErrorCode"], "log append time bit of a client")
        for got in batches(fetch(connection, topic)["Records"]):
            equal(got.attributes, 0)
            assert got.crc_is_right()


def test_unknown_topics_partitions_and_ids_are_said_by_code():
    with connect() as connection:
        topic = new_topic(connection)
        for partition in (1, -1, 2**31 - 1):
            equal(produce(connection, topic, batch([b"v"]), partition)["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION, f"{partition}")
        equal(produce(connection, checks.unique("nowhere"), batch([b"v"]))["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION)
        unknown_id = "12345678-1234-1234-1234-123456789abc"
        equal(produce(connection, unknown_id, batch([b"v"]))["ErrorCode"], 100)
        equal(produce(connection, schema.NO_UUID, batch([b"v"]))["ErrorCode"], 100)
        equal(produce(connection, topic_id(connection, topic), batch([b"v"]), partition=1)["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION)


def test_one_bad_partition_does_not_hold_up_the_good_ones():
    with connect() as connection:
        topic = new_topic(connection, partitions=2)
        body = produce_body(topic, batch([b"good"]))
        corrupt = bytearray(batch([b"bad"]))
        corrupt[-1] ^= 1
        body["TopicData"][0]["PartitionData"] += [{"Index": 1, "Records": bytes(corrupt)}, {"Index": 7, "Records": batch([b"x"])}]
        answers = connection.call("Produce", PRODUCE_BY_NAME, body)["Responses"][0]["PartitionResponses"]
        equal({a["Index"]: a["ErrorCode"] for a in answers}, {0: 0, 1: CORRUPT_MESSAGE, 7: UNKNOWN_TOPIC_OR_PARTITION})
        equal(fetched_values(connection, topic), [b"good"])


# Idempotent producers.


def test_every_version_of_init_producer_id_gives_a_new_id_with_epoch_0():
    with connect() as connection:
        seen = set()
        for version in schema.valid_versions("InitProducerId"):
            answer = init_producer_id(connection, version)
            equal((answer["ErrorCode"], answer["ProducerEpoch"]), (0, 0), f"v{version}")
            seen.add(answer["ProducerId"])
        equal(len(seen), len(schema.valid_versions("InitProducerId")))


def test_init_producer_id_with_an_old_id_and_no_transactional_id_gives_a_new_id():
    with connect() as connection:
        producer_id, epoch = new_producer_id(connection)
        answer = init_producer_id(connection, 4, ProducerId=producer_id, ProducerEpoch=epoch)
        equal((answer["ErrorCode"], answer["ProducerEpoch"]), (0, 0))
        assert answer["ProducerId"] != producer_id


class Producer:
    """Numbers batches as a client does, or as told."""

    def __init__(self, connection, topic):
        self.connection, self.topic = connection, topic
        self.producer_id, self.epoch = new_producer_id(connection)

    def send(self, values, sequence, epoch=None):
        """Returns (error code, base offset)."""
        epoch = self.epoch if epoch is None else epoch
        records = batch(values, producer_id=self.producer_id, epoch=epoch, sequence=sequence)
        answer = produce(self.connection, self.topic, records)
        return answer["ErrorCode"], answer["BaseOffset"]


def test_a_repeated_batch_lands_once_and_is_answered_with_the_first_offset():
    with connect() as connection:
        topic = new_topic(connection)
        producer = Producer(connection, topic)
        equal(producer.send([b"a", b"b"], 0), (0, 0))
        equal(producer.send([b"a", b"b"], 0), (0, 0))
        equal(producer.send([b"c"], 2), (0, 2))
        with connect() as other:
            producer.connection = other
            equal(producer.send([b"a", b"b"], 0), (0, 0), "over another connection")
        equal(fetched_values(connection, topic), [b"a", b"b", b"c"])


def test_each_of_the_last_five_batches_is_recognised_and_older_ones_are_refused():
    with connect() as connection:
        topic = new_topic(connection)
        producer = Producer(connection, topic)
        values = [b"%d" % number for number in range(7)]
        for number, value in enumerate(values):
            equal(producer.send([value], number), (0, number))
        for number in (2, 3, 4, 5, 6):
            equal(producer.send([values[number]], number), (0, number), f"repeat of {number}")
        for number in (0, 1):
            check(producer.send([values[number]], number)[0], "repeat older than five batches", f"repeat of {number}")
        equal(fetched_values(connection, topic), values)


def test_a_gap_in_the_sequence_is_out_of_order():
    with connect() as connection:
        topic = new_topic(connection)
        producer = Producer(connection, topic)
        equal(producer.send([b"a"], 0), (0, 0))
        for sequence in (2, 5, 2**31 - 1):
            equal(producer.send([b"x"], sequence), (OUT_OF_ORDER_SEQUENCE_NUMBER, -1), f"sequence {sequence}")
        equal(producer.send([b"b"], 1), (0, 1))
        equal(fetched_values(connection, topic), [b"a", b"b"])


def test_a_repeat_with_another_number_of_records_is_no_repeat():
    with connect() as connection:
        topic = new_topic(connection)
        producer = Producer(connection, topic)
        equal(producer.send([b"a", b"b", b"c"], 0), (0, 0))
        equal(producer.send([b"a", b"b"], 0), (OUT_OF_ORDER_SEQUENCE_NUMBER, -1))
        equal(producer.send([b"b", b"c"], 1), (OUT_OF_ORDER_SEQUENCE_NUMBER, -1))
        equal(fetched_values(connection, topic), [b"a", b"b", b"c"])


def test_sequences_wrap_at_2_to_the_31():
    """Duramen may want a new producer to begin at 0; its own tests reach the wrap with a shrunk limit."""
    with connect() as connection:
        topic = new_topic(connection)
        producer = Producer(connection, topic)
        error, _ = producer.send([b"a", b"b"], 2**31 - 3)
        check(error, "unknown producer with a sequence above 0")
        if error == 0:
            equal(producer.send([b"c", b"d"], 2**31 - 1), (0, 2), "2147483647, then 0")
            equal(producer.send([b"c", b"d"], 2**31 - 1), (0, 2), "a repeat across the wrap")
            equal(producer.send([b"e"], 2), (OUT_OF_ORDER_SEQUENCE_NUMBER, -1), "a gap after the wrap")
            equal(producer.send([b"e"], 1), (0, 4))
            equal(fetched_values(connection, topic), [b"a", b"b", b"c", b"d", b"e"])


def test_a_producer_that_the_partition_does_not_know_and_that_does_not_begin_at_0():
    with connect() as connection:
        topic = new_topic(connection)
        check(Producer(connection, topic).send([b"a"], 5)[0], "unknown producer with a sequence above 0")


def test_a_producer_goes_on_with_its_sequence_in_a_topic_that_was_made_again():
    with connect() as connection:
        topic = new_topic(connection)
        producer = Producer(connection, topic)
        equal(producer.send([b"a", b"b"], 0), (0, 0))
        connection.call("DeleteTopics", 6, {"Topics": [{"Name": topic}], "TimeoutMs": 5000})
        deadline = time.monotonic() + 10 * checks.SLOWNESS
        while create_topic(connection, topic, ReplicationFactor=-1)["ErrorCode"] != 0:
            assert time.monotonic() < deadline, "it cannot be made again"
            ask_again(0.02)
        wait_for_leaders(connection, topic, 1)
        equal(producer.send([b"c"], 2), (0, 0))
        equal(producer.send([b"c"], 2), (0, 0), "its repeat")
        equal(producer.send([b"e"], 4), (OUT_OF_ORDER_SEQUENCE_NUMBER, -1), "a gap")
        equal(producer.send([b"d"], 3), (0, 1))
        equal(fetched_values(connection, topic), [b"c", b"d"])


def test_an_older_epoch_is_fenced():
    with connect() as connection:
        topic = new_topic(connection)
        producer = Producer(connection, topic)
        equal(producer.send([b"a"], 0, epoch=1), (0, 0))
        equal(producer.send([b"x"], 1, epoch=0), (INVALID_PRODUCER_EPOCH, -1))
        equal(producer.send([b"x"], 0, epoch=0), (INVALID_PRODUCER_EPOCH, -1))
        equal(fetched_values(connection, topic), [b"a"])


def test_a_new_epoch_begins_at_sequence_0():
    with connect() as connection:
        topic = new_topic(connection)
        producer = Producer(connection, topic)
        equal(producer.send([b"a"], 0), (0, 0))
        equal(producer.send([b"x"], 1, epoch=1), (OUT_OF_ORDER_SEQUENCE_NUMBER, -1))
        equal(producer.send([b"b"], 0, epoch=1), (0, 1))
        equal(producer.send([b"x"], 1, epoch=0), (INVALID_PRODUCER_EPOCH, -1))


def test_sequences_are_counted_by_partition():
    with connect() as connection:
        topic = new_topic(connection, partitions=2)
        producer_id, epoch = new_producer_id(connection)
        for partition in (0, 1):
            first = batch([b"v"], producer_id=producer_id, epoch=epoch, sequence=0)
            answer = produce(connection, topic, first, partition)
            equal((answer["ErrorCode"], answer["BaseOffset"]), (0, 0), f"partition {partition}")


def test_a_producer_id_without_a_sequence_is_an_invalid_record():
    with connect() as connection:
        topic = new_topic(connection)
        producer_id, epoch = new_producer_id(connection)
        assert_refused(connection, topic, batch([b"v"], producer_id=producer_id), INVALID_RECORD)
        assert_refused(connection, topic, batch([b"v"], producer_id=producer_id, epoch=epoch), INVALID_RECORD)
        assert_refused(connection, topic, batch([b"v"], producer_id=producer_id, epoch=epoch, sequence=-2), INVALID_RECORD)


def test_pipelined_idempotent_batches_are_all_taken_in_order():
    with connect() as connection:
        topic = new_topic(connection)
        producer_id, epoch = new_producer_id(connection)
        values = [b"%d" % number for number in range(20)]
        sent = [
            connection.send("Produce", 12, produce_body(topic, batch([v], producer_id=producer_id, epoch=epoch, sequence=n)))
            for n, v in enumerate(values)
        ]
        for offset, correlation_id in enumerate(sent):
            answer = connection.receive("Produce", 12, correlation_id)["Responses"][0]["PartitionResponses"][0]
            equal((answer["ErrorCode"], answer["BaseOffset"]), (0, offset))
        equal(fetched_values(connection, topic), values)


def test_a_repeat_that_overtakes_its_first_answer_lands_once():
    with connect() as connection, connect() as impatient:
        topic = new_topic(connection)
        producer_id, epoch = new_producer_id(connection)
        for number in range(20):
            body = produce_body(topic, batch([b"%d" % number], producer_id=producer_id, epoch=epoch, sequence=number))
            first, again = connection.send("Produce", 12, body), impatient.send("Produce", 12, body)
            for answers, correlation_id in ((connection, first), (impatient, again)):
                answer = answers.receive("Produce", 12, correlation_id)["Responses"][0]["PartitionResponses"][0]
                equal((answer["ErrorCode"], answer["BaseOffset"]), (0, number))
        equal(list_offset(connection, topic, -1)["Offset"], 20)
