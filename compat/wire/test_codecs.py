"""Compressed records as no compressor of today writes them: what a broker takes must be readable by Java clients, which give up on
the whole partition at the first batch that they cannot read. Kafka decompresses what it takes with their code."""

import struct
import zlib

from batch import CODECS, batch, record, varint
from calls import connect, fetch, new_topic, produce
from checks import equal
from differences import check
from frames import (
    LZ4_BLOCK_CHECKSUM, LZ4_CONTENT_CHECKSUM, LZ4_CONTENT_SIZE, LZ4_INDEPENDENT, STORED, framed_snappy, gzip, gzip_header_checksum, lz4, lz4_block,
    lz4_checksum, snappy, zstd, zstd_block, zstd_run, zstd_skippable, zstd_window,
)  # fmt: skip

ONE = record(b"v")
A, B = record(b"a"), record(b"b", offset_delta=1)
LONG = record(b"x" * 70_000)
LZ4_NOTHING = struct.pack("<I", 1) + b"\0"
LZ4_STORED_NOTHING = struct.pack("<I", STORED)


def one_zstd_segment(size):
    """One record of `size` bytes, most of them the same, in a frame that is its own window."""
    for count in range(size - 20, size):
        of_value = b"\0\0\0" + varint(-1) + varint(count)
        head, tail = varint(len(of_value) + count + 1) + of_value, b"\0"
        if len(head) + count + len(tail) == size:
            break
    runs = [zstd_run(ord("x"), min(1 << 17, count - at), False) for at in range(0, count, 1 << 17)]
    return struct.pack("<IBI", 0xFD2FB528, 0xA0, size) + zstd_block(head, False) + b"".join(runs) + zstd_block(tail)


def take(codec, *cases):
    """Each case is what it is, its payload, and how many records it has if not one."""
    answers = {what: answer for what, answer in ask(codec, cases)}
    equal({what: code for what, code in answers.items() if code}, {}, f"{codec} that every client reads")


def refuse(codec, name, *cases):
    """`name` is of the difference that says how."""
    for what, answer in ask(codec, cases):
        check(answer, name, f"{codec}: {what}")


def ask(codec, cases):
    with connect() as connection:
        topic = new_topic(connection)
        taken = 0
        for what, payload, *count in cases:
            [count] = count or [1]
            sent = batch([b"v"] * count, attributes=CODECS[codec], payload=payload)
            code = produce(connection, topic, sent)["ErrorCode"]
            taken += 0 if code else count
            yield what, code
        equal(fetch(connection, topic)["HighWatermark"], taken, "what is in the log is what was taken")


NOT_VALID, READ_BY_SOME = "records that do not decompress", "compressed records that only some clients read"


def test_gzip_that_java_clients_read_is_taken():
    take(
        "gzip",
        ("two members", gzip(A) + gzip(B), 2),
        ("a member that begins within a record", gzip(ONE[:3]) + gzip(ONE[3:])),
        ("an empty member behind", gzip(ONE) + gzip(b"")),
        ("an empty member before", gzip(b"") + gzip(ONE)),
        ("a name", gzip(ONE, 8, b"name\0")),
        ("more fields", gzip(ONE, 4, struct.pack("<H", 3) + b"abc")),
        ("a comment", gzip(ONE, 16, b"comment\0")),
        ("text", gzip(ONE, 1)),
        ("a sum of the header", gzip(ONE, 2, gzip_header_checksum(2))),
    )


def test_gzip_that_java_clients_do_not_read_is_refused():
    refuse(
        "gzip",
        NOT_VALID,
        ("a wrong sum", gzip(ONE, crc=1)),
        ("a wrong size", gzip(ONE, size=1)),
        ("half a trailer", gzip(ONE)[:-4]),
        ("no trailer", gzip(ONE)[:-8]),
        ("a wrong sum of the second member", gzip(ONE) + gzip(b"", crc=1)),
        ("a second member that is cut short", gzip(A) + gzip(B)[:-3], 2),
        ("a wrong sum of the header", gzip(ONE, 2, b"no")),
        ("a method that is none", gzip(ONE, method=7)),
        ("zlib's format", zlib.compress(ONE)),
    )


def test_gzip_that_only_some_clients_read():
    refuse(
        "gzip",
        READ_BY_SOME,
        ("bytes behind", gzip(ONE) + b"tail"),
        ("many bytes behind", gzip(ONE) + b"tail" * 10),
        ("zeroes behind", gzip(ONE) + bytes(100)),
        ("half a header behind", gzip(ONE) + gzip(b"")[:5]),
        ("flags that are none", gzip(ONE, 0x20)),
    )


def test_snappy_that_java_clients_read_is_taken():
    two_frames = framed_snappy(snappy(A)) + framed_snappy(snappy(B))
    take(
        "snappy",
        ("two blocks", framed_snappy(snappy(A), snappy(B)), 2),
        ("two frames", two_frames, 2),
        ("any version in the first frame", framed_snappy(snappy(ONE), version=0, compatible=9)),
        ("a block of nothing", framed_snappy(b"\0", snappy(ONE), b"\0")),
        ("a frame of nothing", framed_snappy() + framed_snappy(snappy(ONE)) + framed_snappy()),
        ("a length in five bytes", bytes([len(ONE) | 0x80, 0x80, 0x80, 0x80, 0]) + snappy(ONE)[1:]),
    )


def test_snappy_that_java_clients_do_not_read_is_refused():
    framed = framed_snappy(snappy(ONE))
    refuse(
        "snappy",
        NOT_VALID,
        ("bytes after a raw block", snappy(ONE) + b"t"),
        ("a block of no bytes", framed_snappy(b"", snappy(ONE))),
        ("a block of no bytes behind", framed_snappy(snappy(ONE), b"")),
        ("a second frame of version 0", framed_snappy(snappy(A)) + framed_snappy(snappy(B), version=0), 2),
        ("a second frame of version -1", framed_snappy(snappy(A)) + framed_snappy(snappy(B), version=-1), 2),
        ("half a header behind", framed + framed[:8]),
        ("a negative length", framed + struct.pack(">i", -5) + b"abcdef"),
        ("a length that lies", framed + struct.pack(">i", 100) + b"abcdef"),
        ("a block that is none", framed_snappy(snappy(ONE), b"\5garbage")),
    )


def test_snappy_that_only_some_clients_read():
    refuse("snappy", READ_BY_SOME, ("less than a length behind", framed_snappy(snappy(ONE)) + b"abc"))


def test_lz4_that_java_clients_read_is_taken():
    size = struct.pack("<I", len(ONE) + 1)
    take(
        "lz4",
        ("two blocks", lz4(lz4_block(A), lz4_block(B)), 2),
        ("a sum of the content", lz4(lz4_block(ONE), flags=LZ4_INDEPENDENT | LZ4_CONTENT_CHECKSUM, end=bytes(4) + lz4_checksum(ONE))),
        ("a sum of a block", lz4(lz4_block(ONE, lz4_checksum(ONE)), flags=LZ4_INDEPENDENT | LZ4_BLOCK_CHECKSUM)),
        ("a size of the content", lz4(lz4_block(ONE), flags=LZ4_INDEPENDENT | LZ4_CONTENT_SIZE, content_size=len(ONE))),
        ("a compressed block", lz4(size + bytes([len(ONE) << 4]) + ONE)),
        ("compressed blocks of nothing", lz4(LZ4_NOTHING, lz4_block(A), LZ4_NOTHING, lz4_block(B), LZ4_NOTHING), 2),
        ("as much as a block may have", lz4(lz4_block(LONG[: 64 << 10]), lz4_block(LONG[64 << 10 :]))),
        ("larger blocks", lz4(lz4_block(LONG), size=0x50)),
        ("the largest blocks", lz4(lz4_block(LONG), size=0x70)),
    )


def test_lz4_that_java_clients_do_not_read_is_refused():
    content_checksum = LZ4_INDEPENDENT | LZ4_CONTENT_CHECKSUM
    refuse(
        "lz4",
        NOT_VALID,
        ("no sum of the content", lz4(lz4_block(ONE), flags=content_checksum)),
        ("half a sum of the content", lz4(lz4_block(ONE), flags=content_checksum, end=bytes(4) + b"ab")),
        ("a wrong sum of a block", lz4(lz4_block(ONE, b"sums"), flags=LZ4_INDEPENDENT | LZ4_BLOCK_CHECKSUM)),
        ("a wrong sum of the header", lz4(lz4_block(ONE), header_checksum=0)),
        ("a dictionary", lz4(lz4_block(ONE), flags=LZ4_INDEPENDENT | 1)),
        ("a flag that is none", lz4(lz4_block(ONE), flags=LZ4_INDEPENDENT | 2)),
        ("bits beside the size of blocks", lz4(lz4_block(ONE), size=0x41)),
        ("a bit above the size of blocks", lz4(lz4_block(ONE), size=0xC0)),
        ("a size of blocks that is none", lz4(lz4_block(ONE), size=0x30)),
        ("no end", lz4(lz4_block(ONE), end=b"")),
        ("half an end", lz4(lz4_block(ONE), end=b"\0\0")),
        ("blocks that look back", lz4(lz4_block(ONE), flags=0x40)),
        ("version 2", lz4(lz4_block(ONE), flags=0xA0)),
        ("a block that is too large", lz4(lz4_block(LONG))),
        ("a skippable frame", zstd_skippable(b"abc") + lz4(lz4_block(ONE))),
        ("the legacy format", struct.pack("<II", 0x184C2102, len(ONE) + 1) + bytes([len(ONE) << 4]) + ONE),
    )


def test_lz4_that_only_some_clients_read():
    content_size = LZ4_INDEPENDENT | LZ4_CONTENT_SIZE
    refuse(
        "lz4",
        READ_BY_SOME,
        ("a wrong sum of the content", lz4(lz4_block(ONE), flags=LZ4_INDEPENDENT | LZ4_CONTENT_CHECKSUM, end=bytes(4) + b"sums")),
        ("a size of the content that is too small", lz4(lz4_block(ONE), flags=content_size, content_size=1)),
        ("a size of the content that is too large", lz4(lz4_block(ONE), flags=content_size, content_size=len(ONE) + 1)),
        ("bytes behind", lz4(lz4_block(ONE)) + b"tail"),
        ("a second frame, which Java does not see", lz4(lz4_block(A)) + lz4(lz4_block(B))),
        ("a stored block of nothing, which Java takes for the end", lz4(lz4_block(A), LZ4_STORED_NOTHING, lz4_block(B))),
        ("a stored block of nothing as the end", lz4(lz4_block(ONE), end=LZ4_STORED_NOTHING)),
    )


def test_zstd_that_java_clients_read_is_taken():
    take(
        "zstd",
        ("two frames", zstd(A) + zstd(B), 2),
        ("a window of 128 MiB", zstd(ONE, zstd_window(27))),
        ("a skippable frame before", zstd_skippable(b"abc") + zstd(ONE)),
        ("skippable frames between and behind", zstd(A) + zstd_skippable(b"abc") + zstd(B) + zstd_skippable(b""), 2),
        ("an empty frame before", zstd(b"") + zstd(ONE)),
        ("an empty frame behind", zstd(ONE) + zstd(b"")),
        ("a single segment", zstd(ONE, None, 0x20, bytes([len(ONE)]))),
        ("a size of the content", zstd(ONE, 0, 0x80, struct.pack("<I", len(ONE)))),
        ("the dictionary 0, which is none", zstd(ONE, 0, 1, b"\0")),
        ("a bit that is not used", zstd(ONE, 0, 16)),
        ("a segment of 128 MiB and a byte", one_zstd_segment((1 << 27) + 1)),
    )


def test_zstd_that_java_clients_do_not_read_is_refused():
    refuse(
        "zstd",
        NOT_VALID,
        ("a window of 144 MiB", zstd(ONE, zstd_window(27, 1))),
        ("a window of 256 MiB", zstd(ONE, zstd_window(28))),
        ("the largest window", zstd(ONE, zstd_window(41, 7))),
        ("a window of 256 MiB behind", zstd(A) + zstd(B, zstd_window(28)), 2),
        ("such a window of nothing", zstd(ONE) + zstd(b"", zstd_window(28))),
        ("such a window behind a skippable frame", zstd_skippable(b"abc") + zstd(ONE, zstd_window(28))),
        ("a segment of 128 MiB and two bytes", one_zstd_segment((1 << 27) + 2)),
        ("bytes behind", zstd(ONE) + b"tail"),
        ("a byte behind", zstd(ONE) + b"\0"),
        ("a frame that is cut short", zstd(ONE)[:-1]),
        ("a segment that lies", zstd(ONE, None, 0x20, bytes([len(ONE) + 1]))),
        ("a size of the content that lies", zstd(ONE, 0, 0x80, struct.pack("<I", len(ONE) - 1))),
        ("a wrong sum", zstd(ONE, 0, 4, end=b"sums")),
        ("no sum", zstd(ONE, 0, 4)),
        ("a dictionary", zstd(ONE, 0, 1, b"\5")),
        ("a bit that is reserved", zstd(ONE, 0, 8)),
    )


def test_zstd_that_only_some_clients_read():
    refuse(
        "zstd",
        READ_BY_SOME,
        ("a second frame that is cut short", zstd(ONE) + zstd(b"")[:-1]),
        ("a second magic that is cut short", zstd(ONE) + zstd(b"")[:3]),
        ("a skippable frame that is cut short", zstd(ONE) + zstd_skippable(b"abc")[:-1]),
    )
