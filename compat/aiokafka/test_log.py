"""What a log must do, with aiokafka and assigned partitions."""

import asyncio
import time

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import NewPartitions, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import MessageSizeTooLargeError

import checks
import reach
from checks import equal
from client import admin, consume, coroutine_test, new_topic, produce, started


@coroutine_test
async def test_records_come_back_as_they_went():
    for codec in (None, "gzip"):
        topic = await new_topic()
        values = [b"value %d" % number for number in range(500)]
        equal(await produce(topic, values, compression_type=codec), list(range(500)), f"{codec}")
        for number, record in enumerate(await consume(topic, 500)):
            equal((record.offset, record.key, record.value), (number, b"k", values[number]))
            equal((list(record.headers), record.timestamp), ([("h", b"x")], 1000 + number))


@coroutine_test
async def test_every_acks_setting_and_an_idempotent_producer_deliver():
    for settings in [{"acks": 0}, {"acks": 1}, {"acks": "all"}, {"enable_idempotence": True}]:
        topic = await new_topic()
        values = [b"%d" % number for number in range(200)]
        await produce(topic, values, **settings)
        equal([record.value for record in await consume(topic, 200)], values, f"{settings}")


@coroutine_test
async def test_offsets_are_found_by_timestamp_and_at_both_ends():
    topic = await new_topic()
    await produce(topic, [b"v"] * 10)
    partition = TopicPartition(topic, 0)
    async with started(AIOKafkaConsumer(**reach.aiokafka())) as consumer:
        found = (await consumer.offsets_for_times({partition: 1005}))[partition]
        equal((found.offset, found.timestamp), (5, 1005))
        equal((await consumer.offsets_for_times({partition: 1010}))[partition], None)
        equal((await consumer.beginning_offsets([partition]))[partition], 0)
        equal((await consumer.end_offsets([partition]))[partition], 10)


@coroutine_test
async def test_a_waiting_consumer_gets_a_record_at_once():
    topic = await new_topic()
    async with started(AIOKafkaConsumer(**reach.aiokafka(), fetch_max_wait_ms=5000)) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        waiting = asyncio.ensure_future(consumer.getone())
        await asyncio.sleep(0.5)
        await produce(topic, [b"now"])
        acknowledged = time.monotonic()
        equal((await asyncio.wait_for(waiting, 10)).value, b"now")
        assert time.monotonic() - acknowledged < 0.5


@coroutine_test
async def test_refusals_arrive_as_their_errors():
    topic = await new_topic(max_message_bytes="1000")
    try:
        await produce(topic, [b"x" * 5000])
    except MessageSizeTooLargeError:
        return
    raise AssertionError("MessageSizeTooLargeError expected")


async def settled(asked, expected):
    """What is answered at once; of several brokers one may hear of a change a moment after another has answered it."""
    deadline = time.monotonic() + 10 * checks.SLOWNESS
    while (answer := await asked()) != expected and checks.brokers() > 1 and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return answer


@coroutine_test
async def test_the_admin_client_creates_describes_changes_and_deletes():
    topic = await new_topic(retention_ms="5000")
    async with admin() as client:
        await client.create_partitions({topic: NewPartitions(total_count=3)})
        [described] = await client.describe_topics([topic])
        equal((described["error_code"], len(described["partitions"]), described["is_internal"]), (0, 3, False))
        await produce(topic, [b"v"] * 5)
        equal(await client.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=2)}), {TopicPartition(topic, 0): 2})
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "6000"})
        await client.alter_configs([resource])

        async def described():
            [answer] = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            [(error, _, _, _, entries)] = answer.resources
            return error, {entry[0]: entry[1] for entry in entries}["retention.ms"]

        equal(await settled(described, (0, "6000")), (0, "6000"))
        assert topic in await client.list_topics()
        await client.delete_topics([topic])

        async def is_listed():
            return topic in await client.list_topics()

        equal(await settled(is_listed, False), False)
        cluster = await client.describe_cluster()
        equal(sorted(broker["node_id"] for broker in cluster["brokers"]), list(range(1, checks.brokers() + 1)))
