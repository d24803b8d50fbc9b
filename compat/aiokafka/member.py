"""One aiokafka consumer in a group: see ../members.py."""

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import CommitFailedError, IllegalStateError

import reach

bootstrap, group, topic, *words = sys.argv[1:]
settings = dict(word.split("=", 1) for word in words)


def say(*words):
    print(*words, flush=True)


class Listener(ConsumerRebalanceListener):
    def on_partitions_revoked(self, revoked):
        say("owns")

    def on_partitions_assigned(self, assigned):
        say("owns", *(partition.partition for partition in assigned))


async def read_and_commit(consumer):
    found = await consumer.getmany(timeout_ms=100)
    if not found:
        return
    try:
        await consumer.commit({partition: records[-1].offset + 1 for partition, records in found.items()})
        say("read", *(record.value.decode() for records in found.values() for record in records))
    except (CommitFailedError, IllegalStateError):
        for partition, records in found.items():
            if partition in consumer.assignment():
                consumer.seek(partition, records[0].offset)


async def main():
    consumer = AIOKafkaConsumer(
        **reach.aiokafka(bootstrap),
        group_id=group,
        group_instance_id=settings.get("instance"),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=int(settings["session_ms"]),
        heartbeat_interval_ms=200,
        fetch_max_wait_ms=100,
        partition_assignment_strategy=[StickyPartitionAssignor if settings.get("assignor") == "sticky" else RangePartitionAssignor],
    )
    consumer.subscribe([topic], listener=Listener())
    await consumer.start()
    leaving = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    while not leaving.done():
        await read_and_commit(consumer)
    await consumer.stop()


asyncio.run(main())
