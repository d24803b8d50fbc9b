"""Consumer groups with aiokafka, and what its admin client asks of groups."""

import asyncio
from pathlib import Path

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

import pytest
import checks
import reach
from checks import equal
from client import admin, coroutine_test, new_topic, produce, started
from members import Scenarios


def scenarios():
    return Scenarios(
        Path(__file__).parent,
        lambda partitions: asyncio.run(new_topic(partitions)),
        lambda topic, partition, values: asyncio.run(produce(topic, values, partition)),
    )


@pytest.mark.waits
def test_members_that_join_and_leave_share_partitions_anew():
    scenarios().partitions_are_shared_anew_when_members_join_and_leave(assignor="range")


@pytest.mark.waits
def test_sticky_members_share_partitions_anew():
    scenarios().partitions_are_shared_anew_when_members_join_and_leave(assignor="sticky")


@pytest.mark.waits
def test_a_killed_member_is_replaced_when_its_session_is_over():
    scenarios().a_dead_member_is_replaced()


@pytest.mark.waits
def test_a_static_member_that_comes_back_causes_no_rebalance():
    scenarios().a_static_member_that_comes_back_causes_no_rebalance()


def member(topic, group, **settings):
    fixed = {"enable_auto_commit": False, "auto_offset_reset": "earliest", "session_timeout_ms": 6000, "heartbeat_interval_ms": 200}
    return started(AIOKafkaConsumer(topic, **reach.aiokafka(), group_id=group, **{**fixed, **settings}))


@coroutine_test
async def test_commits_keep_offset_and_metadata_and_the_next_member_goes_on():
    topic, group = await new_topic(2), checks.unique("group")
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await produce(topic, [b"%d" % number for number in range(10)])
    async with member(topic, group) as reader:
        equal(await reader.committed(zero), None, "nothing is committed yet")
        await reader.commit({zero: (4, "up to here"), one: 0})
        equal((await reader.committed(zero), await reader.committed(one)), (4, 0))
    async with member(topic, group) as reader:
        equal((await asyncio.wait_for(reader.getone(), 20)).value, b"4")
        reader.seek(zero, 9)
        equal((await asyncio.wait_for(reader.getone(), 20)).value, b"9")


@coroutine_test
async def test_automatic_commits_let_the_next_member_go_on():
    topic, group = await new_topic(), checks.unique("group")
    for first in (0, 10):
        await produce(topic, [b"%d" % number for number in range(first, first + 10)])
        async with member(topic, group, enable_auto_commit=True) as reader:
            values = [int((await asyncio.wait_for(reader.getone(), 20)).value) for _ in range(10)]
        equal(values, list(range(first, first + 10)))


@coroutine_test
async def test_the_admin_client_describes_lists_and_finds_groups():
    topic, group = await new_topic(2), checks.unique("group")
    async with admin() as client, member(topic, group, client_id="me") as reader:
        await reader.commit({TopicPartition(topic, 1): (3, "three")})
        [answer] = await client.describe_consumer_groups([group])
        [(error, group_id, state, protocol_type, protocol, members, *_)] = answer.groups
        equal((error, group_id, state, protocol_type, protocol), (0, group, "Stable", "consumer", "roundrobin"))
        equal(["me" in one for one in members], [True])
        assert (group, "consumer") in [each[:2] for each in await client.list_consumer_groups()]
        coordinator = await client.find_coordinator(group)
        assert coordinator in range(1, checks.brokers() + 1), coordinator
        equal(await client.list_consumer_group_offsets(group), {TopicPartition(topic, 1): OffsetAndMetadata(3, "three")})
