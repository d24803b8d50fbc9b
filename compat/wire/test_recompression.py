"""Topics with a codec of their own: a batch that comes in another one is stored in theirs, with all else as it was."""

import zlib

import checks
import golden
from batch import CODECS, HEADER, batch, batches, record
from calls import connect, fetch, new_producer_id, new_topic, produce
from checks import equal
from frames import gzip, lz4, lz4_block, snappy, zstd
from test_settings import BROKER, DELETE, SET, TOPIC, alter

MESSAGE_TOO_LARGE = 10
PACK = {"none": bytes, "gzip": gzip, "snappy": snappy, "lz4": lambda plain: lz4(lz4_block(plain)), "zstd": zstd}
# The values of compression.type beside `producer`, with the codec of batches.
TYPES = {"uncompressed": "none", **{codec: codec for codec in PACK if codec != "none"}}
AT = 1_700_000_000_000


def packed(codec, values, **fields):
    """A batch in a codec. Each record is a second later than the one before."""
    count = len(values)
    plain = b"".join(record(value, b"k", offset_delta=at, timestamp_delta=1000 * at) for at, value in enumerate(values))
    timestamps = [AT + 1000 * at for at in range(count)]
    return batch(values, attributes=CODECS[codec], payload=PACK[codec](plain), timestamps=timestamps, **fields)


def stored(connection, topic, offset=0):
    """The batch at an offset. Two compressors make different bytes of the same records."""
    with golden.unrecorded():
        [found] = [each for each in batches(fetch(connection, topic, offset)["Records"]) if each.base_offset == offset]
    assert found.crc_is_right()
    return found


def codec_of(found):
    return next(codec for codec, number in CODECS.items() if number == found.attributes & 7)


def values(found):
    """The values, of codecs that Python brings."""
    plain = {"none": bytes, "gzip": lambda data: zlib.decompress(data, 31)}[codec_of(found)](found.bytes[HEADER.size :])
    return batches(batch([b""] * found.count, payload=plain))[0].values()


def test_a_batch_is_stored_in_the_codec_of_its_topic():
    with connect() as connection:
        producer, epoch = new_producer_id(connection)
        for type, target in TYPES.items():
            topic = new_topic(connection, compression_type=type)
            for number, codec in enumerate(PACK):
                sent = packed(codec, [b"first", b"second"], producer_id=producer, epoch=epoch, sequence=2 * number)
                answer = produce(connection, topic, sent)
                equal((answer["ErrorCode"], answer["BaseOffset"]), (0, 2 * number), f"{codec} for {type}")
                found, what = stored(connection, topic, 2 * number), f"{codec} in {type}"
                equal(codec_of(found), target, what)
                equal((found.producer_id, found.epoch, found.sequence), (producer, epoch, 2 * number), what)
                equal((found.count, found.last_offset_delta, found.base_timestamp, found.max_timestamp), (2, 1, AT, AT + 1000), what)
                if target in ("none", "gzip"):
                    equal(values(found), [b"first", b"second"], what)
                if codec == target:
                    equal(found.bytes[16:], sent[16:], f"{what}: from the magic byte on")


def test_a_repeat_of_a_batch_that_is_stored_in_another_codec_is_one():
    with connect() as connection:
        topic = new_topic(connection, compression_type="gzip")
        producer, epoch = new_producer_id(connection)
        sent = packed("lz4", [b"v"], producer_id=producer, epoch=epoch, sequence=0)
        for _ in range(2):
            equal(produce(connection, topic, sent)["BaseOffset"], 0)
        equal(fetch(connection, topic, 1)["HighWatermark"], 1)


def test_a_batch_is_bounded_as_it_comes_and_as_it_is_stored():
    with connect() as connection:
        plain = new_topic(connection, compression_type="uncompressed", max_message_bytes="1000")
        squeezed = new_topic(connection, compression_type="gzip", max_message_bytes="1000")
        equal(produce(connection, plain, packed("gzip", [b"x" * 2000]))["ErrorCode"], MESSAGE_TOO_LARGE, "it would grow")
        equal(produce(connection, squeezed, packed("none", [b"x" * 2000]))["ErrorCode"], MESSAGE_TOO_LARGE, "it would shrink")
        for topic in plain, squeezed:
            equal(produce(connection, topic, packed("gzip", [b"x" * 800]))["ErrorCode"], 0)
        equal(produce(connection, squeezed, packed("gzip", [b"x" * 2000]))["ErrorCode"], 0, "nobody looks at its records' size")


def test_a_higher_level_makes_fewer_bytes():
    words = "a log keeps its records in order and each reader goes from one to the next of them while writers add more behind".split()
    text = " ".join(words[at * at * 7919 % 10_007 % len(words)] for at in range(20_000))[:52_317].encode()
    with connect() as connection:
        for codec, low, high in (("gzip", 1, 9), ("zstd", -131_072, 19)):
            sizes = []
            for level in (low, high):
                topic = new_topic(connection, compression_type=codec, **{f"compression_{codec}_level": str(level)})
                equal(produce(connection, topic, packed("none", [text]))["ErrorCode"], 0)
                sizes.append(len(stored(connection, topic).bytes))
            assert sizes[0] > sizes[1], f"{codec}: {sizes}"


def test_the_codec_of_a_topic_changes_while_the_broker_runs():
    with connect() as connection, golden.unrecorded():
        topic, young = new_topic(connection), None

        def is_stored_as(codec):
            sent = produce(connection, topic, packed("none", [b"v"]))
            equal(sent["ErrorCode"], 0)
            return codec_of(stored(connection, topic, sent["BaseOffset"])) == codec

        assert is_stored_as("none")
        equal(alter(connection, TOPIC, topic, ("compression.type", SET, "zstd")), 0)
        checks.eventually("the topic's codec", lambda: is_stored_as("zstd"))
        equal(alter(connection, BROKER, "", ("compression.type", SET, "lz4")), 0)
        try:
            young = new_topic(connection)
            equal(alter(connection, TOPIC, topic, ("compression.type", DELETE, None)), 0)
            checks.eventually("the brokers' codec", lambda: is_stored_as("lz4"))
            equal(produce(connection, young, packed("none", [b"v"]))["ErrorCode"], 0)
            equal(codec_of(stored(connection, young)), "lz4")
        finally:
            equal(alter(connection, BROKER, "", ("compression.type", DELETE, None)), 0)
        checks.eventually("no codec", lambda: is_stored_as("none"))
