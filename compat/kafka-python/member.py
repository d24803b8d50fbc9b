"""One kafka-python consumer in a group: see ../members.py."""

import sys
import threading
import time

from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import CommitFailedError, RebalanceInProgressError

import reach

bootstrap, group, topic, *words = sys.argv[1:]
settings = dict(word.split("=", 1) for word in words)
api_version = tuple(int(part) for part in settings["api_version"].split(".")) if "api_version" in settings else None
is_cooperative = settings.get("assignor") == "cooperative"


def say(*words):
    print(*words, flush=True)


class Listener(ConsumerRebalanceListener):
    """What is assigned comes in addition when members are cooperative, and is all of it when they are not."""

    owned = set()

    def on_partitions_revoked(self, revoked):
        self.owned.difference_update(partition.partition for partition in revoked)
        say("owns", *self.owned)

    def on_partitions_assigned(self, assigned):
        if not is_cooperative:
            self.owned.clear()
        self.owned.update(partition.partition for partition in assigned)
        say("owns", *self.owned)


def read_and_commit(consumer):
    found = consumer.poll(timeout_ms=100)
    if not found:
        return
    try:
        consumer.commit({partition: OffsetAndMetadata(records[-1].offset + 1, "", -1) for partition, records in found.items()})
        say("read", *(record.value.decode() for records in found.values() for record in records))
    except (CommitFailedError, RebalanceInProgressError):
        for partition, records in found.items():
            if partition in consumer.assignment():
                consumer.seek(partition, records[0].offset)


def main():
    consumer = KafkaConsumer(
        **reach.kafka_python(bootstrap),
        group_id=group,
        group_instance_id=settings.get("instance"),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=int(settings["session_ms"]),
        heartbeat_interval_ms=200,
        fetch_max_wait_ms=100,
        # Otherwise it stays away for up to 30 seconds from a broker that takes a while to come back.
        reconnect_backoff_max_ms=1000,
        partition_assignment_strategy=[CooperativeStickyAssignor if is_cooperative else RangePartitionAssignor],
        api_version=api_version,
    )
    # A leader that has no metadata yet assigns nothing to anyone, and may leave it at that. One of three brokers may not know a
    # new topic yet.
    while not consumer.partitions_for_topic(topic):
        time.sleep(0.1)
    consumer.subscribe([topic], listener=Listener())
    leaving = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), leaving.set()), daemon=True).start()
    while not leaving.is_set():
        read_and_commit(consumer)
    consumer.close()


main()
