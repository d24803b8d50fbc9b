"""Few open files, many partitions."""

import calls
from batch import batch
from calls import connect
from connection import Closed
from harness import equal, test
from machine import EXIT_DISK, Broker, workspace

FILES, PARTITIONS = 256, 500
TOPIC = "many"


@test
def with_few_open_files_and_many_partitions_nothing_acknowledged_is_lost():
    with workspace() as directory, Broker(directory / "data") as broker:
        acknowledged, starts, producer = set(), 0, None
        while len(acknowledged) < PARTITIONS:
            before, starts = len(acknowledged), starts + 1
            broker.start(["prlimit", f"--nofile={FILES}:{FILES}"])
            try:
                with connect(broker.bootstrap) as connection:
                    if starts == 1:
                        equal(calls.create_topic(connection, TOPIC, PARTITIONS)["ErrorCode"], 0)
                        producer = calls.new_producer_id(connection)
                    for partition in sorted(set(range(PARTITIONS)) - acknowledged):
                        # What was refused an answer may be there: its repeat is recognised.
                        produced = batch([b"%d" % partition], producer_id=producer[0], epoch=producer[1], sequence=0)
                        answer = calls.produce(connection, TOPIC, produced, partition)
                        equal((answer["ErrorCode"], answer["BaseOffset"]), (0, 0))
                        acknowledged.add(partition)
            except Closed:
                equal(broker.process.wait(2), EXIT_DISK, "the exit code")
                assert "Too many open files" in broker.errors()[-1], broker.errors()[-1]
            assert len(acknowledged) >= min(PARTITIONS, before + FILES // 2), f"start {starts}: {before} partitions, then {len(acknowledged)}"
        if starts > 1:
            print(f"{FILES} open files: it took {starts} starts to write {PARTITIONS} partitions")
        broker.stop()
        broker.start()
        with connect(broker.bootstrap) as connection:
            for partition in range(PARTITIONS):
                equal(calls.fetched_values(connection, TOPIC, partition=partition), [b"%d" % partition])


@test
def with_few_open_files_and_many_partitions_all_can_be_read():
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
