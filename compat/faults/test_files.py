"""Few open files, many partitions."""

import calls
from batch import batch
from calls import connect
from checks import equal, eventually
from load import Load, assert_nothing_lost
from machine import Broker, workspace

FILES, PARTITIONS = 256, 500
TOPIC = "many"


def test_with_few_open_files_and_many_partitions_all_can_be_written():
    with workspace() as directory, Broker(directory / "data") as broker:
        broker.start(["prlimit", f"--nofile={FILES}:{FILES}"])
        with connect(broker.bootstrap) as connection:
            equal(calls.create_topic(connection, TOPIC, PARTITIONS)["ErrorCode"], 0)
            for value in (b"one", b"two"):
                for partition in range(PARTITIONS):
                    equal(calls.produce(connection, TOPIC, batch([value]), partition)["ErrorCode"], 0, f"{partition}\n{broker.log_tail(2)}\n")
            # All at once, so that one round of the journal has more than may be open.
            topics = [{"Name": TOPIC, "PartitionData": [{"Index": partition, "Records": batch([b"three"])} for partition in range(PARTITIONS)]}]
            answer = connection.call("Produce", calls.PRODUCE_BY_NAME, {"Acks": -1, "TimeoutMs": 30_000, "TopicData": topics})
            codes = {partition["ErrorCode"] for partition in answer["Responses"][0]["PartitionResponses"]}
            equal(codes, {0}, f"{broker.log_tail(2)}\n")
        broker.stop()
        broker.start()
        with connect(broker.bootstrap) as connection:
            for partition in range(PARTITIONS):
                equal(calls.fetched_values(connection, TOPIC, partition=partition), [b"one", b"two", b"three"])


def test_with_few_open_files_small_segments_can_be_written():
    with workspace() as directory, Broker(directory / "data") as broker:
        broker.start(["prlimit", f"--nofile={FILES}:{FILES}"])
        with connect(broker.bootstrap) as connection:
            topic = calls.new_topic(connection, 2, segment_bytes="4096", index_interval_bytes="100")
        loads = [Load(broker, topic, partition, f"load-{partition}", per_second=3000, linger_ms=0) for partition in (0, 1)]
        # How many records share a batch, and so how many segments they make, is the client's to choose.
        segments = lambda: len(list(broker.data_dir.glob(f"{topic}-*/*.log")))
        eventually("more segments than files that may be open", lambda: segments() > FILES, timeout_s=60)
        for load in loads:
            load.wait_for_acks(2 * FILES)
            load.finish()
        assert_nothing_lost(broker, topic, loads, partitions=2)


def test_with_few_open_files_and_many_partitions_all_can_be_read():
    with workspace() as directory, Broker(directory / "data") as broker:
        broker.start()
        with connect(broker.bootstrap) as connection:
            equal(calls.create_topic(connection, TOPIC, PARTITIONS)["ErrorCode"], 0)
            for partition in range(PARTITIONS):
                equal(calls.produce(connection, TOPIC, batch([b"%d" % partition]), partition)["ErrorCode"], 0)
        broker.stop()
        broker.start(["prlimit", f"--nofile={FILES}:{FILES}"])
        with connect(broker.bootstrap) as connection:
            for partition in range(PARTITIONS):
                answer = calls.fetch(connection, TOPIC, partition=partition)
                equal(answer["ErrorCode"], 0, f"partition {partition}\n{broker.log_tail(2)}\n")
