"""aiokafka as the tests use it: topics, what was produced and read; and tests that are coroutines."""

import asyncio
import time
from contextlib import asynccontextmanager
from functools import wraps

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

import checks
import reach
from checks import equal

TIMEOUT_S = 30


def coroutine_test(function):
    """A test that is a coroutine runs in a loop of its own."""

    @wraps(function)
    def run():
        asyncio.run(function())

    return run


@asynccontextmanager
async def started(client):
    await client.start()
    try:
        yield client
    finally:
        await (client.close() if isinstance(client, AIOKafkaAdminClient) else client.stop())


def admin():
    return started(AIOKafkaAdminClient(**reach.aiokafka()))


async def new_topic(partitions=1, name=None, **configs):
    name = name or checks.unique("aiokafka")
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    async with admin() as client:
        answer = await client.create_topics([NewTopic(name, partitions, checks.brokers(), topic_configs=settings)])
    equal([error[1] for error in answer.topic_errors], [0], f"creation of {name}")
    return name


async def produce(topic, values, partition=0, **settings):
    async with started(AIOKafkaProducer(**reach.aiokafka(), **settings)) as producer:
        sent = [
            await producer.send(topic, value, key=b"k", partition=partition, timestamp_ms=1000 + number, headers=[("h", b"x")])
            for number, value in enumerate(values)
        ]
        return [each and each.offset for each in await asyncio.gather(*sent)]


async def consume(topic, count, offset=0, partition=0):
    assigned = TopicPartition(topic, partition)
    async with started(AIOKafkaConsumer(**reach.aiokafka(), fetch_max_wait_ms=200)) as consumer:
        consumer.assign([assigned])
        consumer.seek(assigned, offset)
        found, deadline = [], time.monotonic() + TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found += records
    equal(len(found), count, "records read")
    return found
