"""How large groups may be, and how many share sessions a broker has. The strict broker's limits are 2, see `run.py`."""

import threading

import pytest

import checks
import test_consumer_groups as consumers
import test_groups as classic
import test_shares as shares
from calls import connect, new_topic_for_groups
from checks import equal

GROUP_MAX_SIZE_REACHED, SHARE_SESSION_LIMIT_REACHED = 81, 133
REBALANCE_IN_PROGRESS = classic.REBALANCE_IN_PROGRESS


def strict():
    """A connection to the strict broker, and a group that nobody has used."""
    return classic.coordinator(checks.strict_bootstrap())


@pytest.mark.waits
def test_a_classic_group_has_no_more_members_than_it_may():
    connection, group = strict()
    # It waits for three seconds for others, and has a generation with this one.
    first = classic.new_member(connection, group)
    other = connect(checks.strict_bootstrap())
    second = {}
    promised = classic.join(other, group)["MemberId"]
    waits = threading.Thread(target=lambda: second.update(classic.join(other, group, promised)))
    waits.start()
    is_told = lambda: classic.heartbeat(connection, group, first["MemberId"], first["GenerationId"]) == REBALANCE_IN_PROGRESS  # noqa: E731
    checks.eventually("the first member is told to join again", is_told)
    again = classic.join(connection, group, first["MemberId"])
    waits.join()
    equal([(it["ErrorCode"], it["GenerationId"]) for it in (again, second)], [(0, 2), (0, 2)])
    stranger = connect(checks.strict_bootstrap())
    for version in (3, 4, 9):
        refused = classic.join(stranger, group, version=version)
        told = {field: refused[field] for field in ("ErrorCode", "GenerationId", "Leader", "MemberId", "Members")}
        expected = {"ErrorCode": GROUP_MAX_SIZE_REACHED, "GenerationId": -1, "Leader": "", "MemberId": "", "Members": []}
        equal(told, expected, f"v{version}")
    equal(classic.join(stranger, group, instance="name")["ErrorCode"], GROUP_MAX_SIZE_REACHED, "nor one with a static name")
    gone = {"MemberId": second["MemberId"], "GroupInstanceId": None}
    equal(other.call("LeaveGroup", 5, {"GroupId": group, "Members": [gone]})["Members"][0]["ErrorCode"], 0)
    equal(classic.join(stranger, group)["ErrorCode"], classic.MEMBER_ID_REQUIRED, "there is room")


def test_a_group_of_the_consumer_protocol_has_no_more_members_than_it_may():
    connection, group = strict()
    topic = new_topic_for_groups(connection, 2)
    members = [consumers.member_id() for _ in range(3)]
    for member in members[:2]:
        equal(consumers.join(connection, group, member, [topic])["ErrorCode"], 0)
    full = "The consumer group has reached its maximum capacity of 2 members."
    consumers.is_refused(consumers.join(connection, group, members[2], [topic]), GROUP_MAX_SIZE_REACHED, full)
    equal(consumers.join(connection, group, "", [topic], version=0)["ErrorCode"], GROUP_MAX_SIZE_REACHED, "nor one without an id")
    equal(classic.join(connection, group)["ErrorCode"], GROUP_MAX_SIZE_REACHED, "nor one of the classic protocol")
    equal(consumers.join(connection, group, members[0], [topic])["ErrorCode"], 0, "a member may join again")
    equal(consumers.heartbeat(connection, group, members[1], -1)["ErrorCode"], 0)
    equal(consumers.join(connection, group, members[2], [topic])["ErrorCode"], 0, "there is room")


def test_a_share_group_has_no_more_members_than_it_may():
    connection, group = strict()
    topic = new_topic_for_groups(connection)
    members = [shares.member_id() for _ in range(3)]
    for member in members[:2]:
        equal(shares.join(connection, group, member, [topic])["ErrorCode"], 0)
    full = "The share group has reached its maximum capacity of 2 members."
    shares.is_refused(shares.join(connection, group, members[2], [topic]), GROUP_MAX_SIZE_REACHED, full)
    shares.is_refused(shares.heartbeat(connection, group, members[2], 1), GROUP_MAX_SIZE_REACHED, full)
    equal(shares.join(connection, group, members[0], [topic])["ErrorCode"], 0, "a member may join again")
    equal(shares.heartbeat(connection, group, members[1], shares.LEAVE)["ErrorCode"], 0)
    equal(shares.join(connection, group, members[2], [topic])["ErrorCode"], 0, "there is room")


def test_a_broker_has_no_more_share_sessions_than_it_may():
    connection, group = strict()
    topic = shares.topic_id(connection, new_topic_for_groups(connection))
    first, second, third = (shares.member_id() for _ in range(3))
    quick = {"MaxWaitMs": 0}
    begin = lambda connection, group, member: shares.fetch(connection, group, member, 0, topic, **quick)  # noqa: E731
    there = connect(checks.strict_bootstrap())
    equal(begin(connection, group, first)["ErrorCode"], 0)
    equal(begin(there, group + "-other", second)["ErrorCode"], 0, "they count whatever their group is")
    refused = begin(connection, group, third)
    equal((refused["ErrorCode"], refused["Responses"]), (SHARE_SESSION_LIMIT_REACHED, []))
    equal(shares.fetch(connection, group, third, 1, topic, **quick)["ErrorCode"], shares.SHARE_SESSION_NOT_FOUND)
    equal(begin(connection, group, first)["ErrorCode"], 0, "one that is there may begin anew")
    equal(shares.acknowledge(connection, group, first, shares.FINAL, topic, [])["ErrorCode"], 0)
    equal(begin(connection, group, third)["ErrorCode"], 0, "there is room")
    equal(begin(connection, group, first)["ErrorCode"], SHARE_SESSION_LIMIT_REACHED)
    # So is there when a connection is gone.
    there.close()
    checks.eventually("there is room", lambda: begin(connection, group, first)["ErrorCode"] == 0)
