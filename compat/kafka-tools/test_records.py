"""Tools that write, read, find and delete records: console, verifiable, perf, get-offsets, delete-records, dump-log."""

import json
import os
import re
import tempfile
import time
from pathlib import Path

import checks
from checks import equal
from console import NODES, contains, new_topic, produce, same, start, tool


def consume(topic, count, *arguments):
    return tool("kafka-console-consumer", "--topic", topic, "--max-messages", count, "--timeout-ms", 20000, *arguments).splitlines()


def test_the_console_producer_s_lines_come_out_of_the_console_consumer():
    topic = new_topic()
    produce(topic, ["one", "two", "drei äöü"])
    equal(consume(topic, 3, "--from-beginning"), ["one", "two", "drei äöü"])
    equal(consume(topic, 2, "--partition", 0, "--offset", 1), ["two", "drei äöü"])


def test_the_console_tools_carry_keys_headers_partitions_and_every_codec():
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        topic = new_topic()
        reader = ("parse.key=true", "parse.headers=true", "null.marker=NULL")
        properties = [word for each in reader for word in ("--reader-property", each)]
        produce(topic, ["a:1,b:2\tk\tv", "a:1\tNULL\tNULL"], *properties, "--compression-codec", codec)
        shown = ("print.key=true", "print.headers=true", "print.partition=true", "print.offset=true")
        properties = [word for each in shown for word in ("--formatter-property", each)]
        lines = consume(topic, 2, "--from-beginning", *properties)
        equal(lines, ["Partition:0\tOffset:0\ta:1,b:2\tk\tv", "Partition:0\tOffset:1\ta:1\tnull\tnull"], codec)


def test_a_console_consumer_that_waits_sees_what_is_produced_meanwhile():
    topic = new_topic()
    waiting = start("kafka-console-consumer", "--topic", topic, "--from-beginning")
    produce(topic, ["first"])
    waiting.wait_for("first\n")
    produce(topic, ["second"], "--sync", "--request-required-acks", 1)
    waiting.wait_for("second\n").stop()
    contains(waiting.err, "Processed a total of 2 messages")


def test_kafka_get_offsets_finds_both_ends_the_newest_record_and_a_time():
    topic = new_topic(partitions=2)
    produce(topic, range(10), "--reader-property", "parse.key=false")
    asked = ("--topic-partitions", f"{topic}:0,{topic}:1")
    ends = [int(line.split(":")[2]) for line in tool("kafka-get-offsets", *asked).splitlines()]
    equal(sum(ends), 10)
    same(tool("kafka-get-offsets", *asked, "--time", "earliest"), "T:0:0\nT:1:0", T=topic)
    # Where there is no such record the tool prints no line.
    same(tool("kafka-get-offsets", *asked, "--time", 1000), "\n".join(f"T:{partition}:0" for partition in (0, 1) if ends[partition]), T=topic)
    newest = [line.split(":") for line in tool("kafka-get-offsets", *asked, "--time", "max-timestamp").splitlines()]
    assert newest and all(int(offset) < ends[int(partition)] for _, partition, offset in newest), newest
    equal(tool("kafka-get-offsets", *asked, "--time", 4102444800000), "")


def test_kafka_delete_records_moves_the_beginning():
    topic = new_topic()
    produce(topic, range(10))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as wanted:
        json.dump({"partitions": [{"topic": topic, "partition": 0, "offset": 4}], "version": 1}, wanted)
        wanted.flush()
        said = tool("kafka-delete-records", "--offset-json-file", wanted.name)
    same(said, "Executing records delete operation\nRecords delete operation completed:\npartition: T-0 low_watermark: 4", T=topic)
    equal(consume(topic, 6, "--from-beginning"), ["4", "5", "6", "7", "8", "9"])


def test_the_verifiable_tools_agree_on_what_was_written_and_read():
    topic = new_topic()
    producing = start("kafka-verifiable-producer", "--topic", topic, "--max-messages", 500, "--throughput", -1)
    # Its main method ends before the answers are there: in a JVM of its own it closes its producer when that ends.
    deadline = time.monotonic() + 20 * checks.SLOWNESS
    while len(sent := [event for event in events(producing.out) if event["name"] == "producer_send_success"]) < 500:
        assert time.monotonic() < deadline, producing
        time.sleep(0.05)
        producing.look()
    equal(sorted((int(event["value"]), event["offset"]) for event in sent), [(number, number) for number in range(500)])
    group = checks.unique("verifiable")
    consumed = start("kafka-verifiable-consumer", "--topic", topic, "--group-id", group, "--max-messages", 500, "--reset-policy", "earliest")
    read = events(consumed.wait().out)
    equal(sum(event["count"] for event in read if event["name"] == "records_consumed"), 500)
    committed = [event for event in read if event["name"] == "offsets_committed"]
    equal([(partition["topic"], partition["offset"]) for partition in committed[-1]["offsets"]], [(topic, 500)])
    assert all(event["success"] for event in committed), committed
    assigned = [event for event in read if event["name"] == "partitions_assigned"]
    equal([event["partitions"] for event in assigned], [[{"topic": topic, "partition": 0}]])


def events(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_the_perf_tools_count_what_they_sent_and_read():
    topic = new_topic(partitions=3)
    size = ("--num-records", 5000, "--record-size", 200, "--throughput", -1)
    contains(tool("kafka-producer-perf-test", "--topic", topic, *size), "5000 records sent, ")
    header, figures = tool("kafka-consumer-perf-test", "--topic", topic, "--num-records", 5000, "--timeout", 20000).splitlines()[-2:]
    read = dict(zip(header.split(", "), figures.split(", "), strict=True))
    # It stops at the poll that brings the last one.
    equal(int(read["data.consumed.in.nMsg"]), 5000)


def test_the_latency_tool_sends_and_reads_each_record():
    topic = new_topic()
    said = tool("kafka-e2e-latency", "--topic", topic, "--num-records", 50, "--producer-acks", "all", "--record-size", 100)
    contains(said, "Percentiles: 50th = ")


def test_kafka_dump_log_reads_the_broker_s_own_segments():
    topic = new_topic()
    produce(topic, [f"value {number}" for number in range(5)], "--compression-codec", "lz4")
    directory = segment_directory(topic)
    log = directory / f"{0:020}.log"
    dumped = tool("kafka-dump-log", "--files", log, "--print-data-log", "--deep-iteration")
    for number in range(5):
        contains(dumped, f"payload: value {number}")
    contains(dumped, "isvalid: true")
    contains(dumped, "compresscodec: lz4")
    assert "invalid" not in dumped.replace("isvalid", ""), dumped


def test_kafka_dump_log_finds_the_indexes_of_a_finished_segment_sound():
    topic = new_topic(segment_bytes=1 << 20)
    tool("kafka-producer-perf-test", "--topic", topic, "--num-records", 3000, "--record-size", 1000, "--throughput", -1)
    directory = segment_directory(topic)
    assert len(list(directory.glob("*.log"))) > 1, "one segment only"
    for index in ("index", "timeindex"):
        file = directory / f"{0:020}.{index}"
        contains(tool("kafka-dump-log", "--files", file, "--index-sanity-check"), f"{file} passed sanity check.")
        said = tool("kafka-dump-log", "--files", file, "--verify-index-only")
        assert "Found" not in said, said


def segment_directory(topic, partition=0):
    """The leader's: a follower may be a moment behind."""
    broker = Path(os.environ["DATA_DIR"])
    if len(NODES) > 1:
        described = tool("kafka-topics", "--describe", "--topic", topic)
        leader = re.search(rf"Partition: {partition}\s+Leader: (\d+)", described)[1]
        broker = broker.with_name(f"node-{leader}")
    [directory] = broker.rglob(f"{topic}-{partition}")
    return directory
