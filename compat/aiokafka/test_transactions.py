"""Transactions with aiokafka, in the first version of their protocol."""

import asyncio
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced

import checks
import reach
from checks import equal
from client import coroutine_test, new_topic, produce, started


def transactional(id=None):
    id = id or checks.unique("transactional")
    return started(AIOKafkaProducer(**reach.aiokafka(), transactional_id=id))


async def seen(topic, isolation):
    """Every value up to the end of all that is there now. A transaction is complete a moment after its end was answered: that is waited for."""
    assigned = TopicPartition(topic, 0)
    reader = AIOKafkaConsumer(**reach.aiokafka(), isolation_level=isolation, fetch_max_wait_ms=200)
    other = AIOKafkaConsumer(**reach.aiokafka())
    async with started(reader) as consumer, started(other) as other:
        consumer.assign([assigned])
        consumer.seek(assigned, 0)
        end = (await other.end_offsets([assigned]))[assigned]
        found = []
        while await consumer.position(assigned) < end:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found += [record.value for record in records]
        return found


@coroutine_test
async def test_what_is_committed_is_seen_and_what_is_aborted_is_not():
    topic = await new_topic()
    async with transactional() as producer:
        for number, commits in enumerate((True, False, True)):
            await producer.begin_transaction()
            for part in range(3):
                await producer.send_and_wait(topic, b"%d.%d" % (number, part), partition=0)
            await (producer.commit_transaction() if commits else producer.abort_transaction())
    all_of = lambda *numbers: [b"%d.%d" % (number, part) for number in numbers for part in range(3)]  # noqa: E731
    equal(await seen(topic, "read_committed"), all_of(0, 2))
    equal(await seen(topic, "read_uncommitted"), all_of(0, 1, 2))


@coroutine_test
async def test_a_second_producer_of_the_same_id_fences_the_first():
    topic, id = await new_topic(), checks.unique("transactional")
    async with transactional(id) as first:
        await first.begin_transaction()
        await first.send_and_wait(topic, b"of the first", partition=0)
        async with transactional(id) as second:
            async with second.transaction():
                await second.send_and_wait(topic, b"of the second", partition=0)
        try:
            await first.commit_transaction()
        except (ProducerFenced, KafkaError) as error:
            assert "ProducerFenced" in type(error).__name__ or "Fenced" in f"{error!r}", repr(error)
        else:
            raise AssertionError("it was not fenced")
    equal(await seen(topic, "read_committed"), [b"of the second"])


@coroutine_test
async def test_offsets_are_committed_with_the_records():
    source, target, group = await new_topic(), await new_topic(), checks.unique("loop")
    await produce(source, [b"%d" % number for number in range(30)])
    partition = TopicPartition(source, 0)
    reader = AIOKafkaConsumer(**reach.aiokafka(), group_id=group, enable_auto_commit=False, isolation_level="read_committed")
    async with transactional() as producer, started(reader) as consumer:
        consumer.assign([partition])
        for begin, commits in ((0, True), (10, False), (10, True), (20, True)):
            consumer.seek(partition, begin)
            records = []
            while len(records) < 10:
                for each in (await consumer.getmany(timeout_ms=500, max_records=10 - len(records))).values():
                    records += each
            await producer.begin_transaction()
            for record in records:
                await producer.send(target, record.value, partition=0)
            await producer.send_offsets_to_transaction({partition: begin + 10}, group)
            await (producer.commit_transaction() if commits else producer.abort_transaction())
            # This client does not ask for stable offsets.
            expected, deadline = begin + 10 if commits else begin, time.monotonic() + 10 * checks.SLOWNESS
            while (await consumer.committed(partition) or 0) != expected:
                assert time.monotonic() < deadline, f"{expected} was never committed"
                await asyncio.sleep(0.02)
    equal(await seen(target, "read_committed"), [b"%d" % number for number in range(30)])
