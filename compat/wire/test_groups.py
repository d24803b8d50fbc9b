"""The classic group protocol, for what its clients hide: ids that are asked for, static members, stale commits, offsets."""

import time

import pytest

import checks
from calls import connect, new_topic
from checks import equal
from golden import ask_again, unrecorded

COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS = 22, 25, 27
NONEMPTY_GROUP, GROUP_ID_NOT_FOUND, GROUP_SUBSCRIBED_TO_TOPIC = 68, 69, 86
INVALID_GROUP_ID, OFFSET_METADATA_TOO_LARGE = 24, 12
MEMBER_ID_REQUIRED, FENCED_INSTANCE_ID = 79, 82
# A consumer's subscription, version 0, to no topic. Kafka never answers a member whose subscription it cannot read.
SUBSCRIPTION = b"\0\0" + b"\0\0\0\0" + b"\xff\xff\xff\xff"
PROTOCOL = {"Name": "range", "Metadata": SUBSCRIPTION}


def coordinator(bootstrap=None):
    """A connection whose broker coordinates, and a group that nobody has used."""
    connection = connect(bootstrap)
    with unrecorded():
        offered = {api["ApiKey"] for api in connection.call("ApiVersions", 0)["ApiKeys"]}
    if 11 not in offered:
        pytest.skip("consumer groups are not served")
    group = checks.unique("group")
    until_ready(lambda: connection.call("FindCoordinator", 6, {"KeyType": 0, "CoordinatorKeys": [group]})["Coordinators"][0])
    return connection, group


def until_ready(ask):
    """A coordinator that has just been found may still be loading; clients ask again, so do we."""
    for _ in range(200):
        answer = ask()
        if answer["ErrorCode"] not in (COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR):
            return answer
        ask_again(0.05)
    return answer


def join(connection, group, member="", version=9, instance=None, **fields):
    body = {"GroupId": group, "SessionTimeoutMs": 10_000, "MemberId": member, "ProtocolType": "consumer", "Protocols": [PROTOCOL]}
    body |= {"RebalanceTimeoutMs": 10_000} if version >= 1 else {}
    body |= {"GroupInstanceId": instance} if version >= 5 else {}
    return until_ready(lambda: connection.call("JoinGroup", version, {**body, **fields}))


def sync(connection, group, joined, instance=None):
    """As the group's only member, so as its leader."""
    body = {"GroupId": group, "GenerationId": joined["GenerationId"], "MemberId": joined["MemberId"], "GroupInstanceId": instance}
    body |= {"ProtocolType": "consumer", "ProtocolName": "range"}
    body["Assignments"] = [{"MemberId": joined["MemberId"], "Assignment": b"share"}]
    return connection.call("SyncGroup", 5, body)


def new_member(connection, group):
    """The only member of a stable group."""
    joined = join(connection, group, join(connection, group)["MemberId"])
    equal(joined["ErrorCode"], 0)
    equal(sync(connection, group, joined)["ErrorCode"], 0)
    return joined


def heartbeat(connection, group, member, generation, instance=None):
    body = {"GroupId": group, "GenerationId": generation, "MemberId": member, "GroupInstanceId": instance}
    return connection.call("Heartbeat", 4, body)["ErrorCode"]


def commit(connection, group, topic, offset, member="", generation=-1, version=9, metadata=""):
    partition = {"PartitionIndex": 0, "CommittedOffset": offset, "CommittedMetadata": metadata}
    body = {"GroupId": group, "Topics": [{"Name": topic, "Partitions": [partition]}]}
    body |= {"GenerationIdOrMemberEpoch": generation, "MemberId": member}
    asked = lambda: connection.call("OffsetCommit", version, body)["Topics"][0]["Partitions"][0]  # noqa: E731
    return until_ready(asked)["ErrorCode"]


def committed(connection, groups, topic, version=9):
    """group -> (error, offset, metadata) of partition 0, by one request for all of them from version 8 on."""
    wanted = [{"Name": topic, "PartitionIndexes": [0]}]
    if version < 8:
        [group] = groups
        answer = connection.call("OffsetFetch", version, {"GroupId": group, "Topics": wanted})
        answers = {group: answer}
    else:
        body = {"Groups": [{"GroupId": group, "Topics": wanted} for group in groups]}
        answers = {each["GroupId"]: each for each in connection.call("OffsetFetch", version, body)["Groups"]}
    found = {}
    for group, answer in answers.items():
        equal(answer.get("ErrorCode", 0), 0)
        [partition] = answer["Topics"][0]["Partitions"]
        found[group] = (partition["ErrorCode"], partition["CommittedOffset"], partition["Metadata"])
    return found


def test_a_new_member_is_told_its_id_and_joins_again_with_it_from_version_4_on():
    for version in range(10):
        connection, group = coordinator()
        with connection:
            answer = join(connection, group, version=version)
            assert answer["MemberId"], f"v{version}: no member id"
            if version >= 4:
                equal((answer["ErrorCode"], answer["GenerationId"]), (MEMBER_ID_REQUIRED, -1), f"v{version}")
                answer = join(connection, group, answer["MemberId"], version)
            equal((answer["ErrorCode"], answer["GenerationId"], answer["Leader"]), (0, 1, answer["MemberId"]), f"v{version}")


def test_a_static_member_joins_at_once_and_its_successor_fences_it():
    connection, group = coordinator()
    with connection:
        first = join(connection, group, instance="one")
        equal((first["ErrorCode"], first["GenerationId"]), (0, 1), "it needs no second join")
        equal(sync(connection, group, first, "one")["ErrorCode"], 0)
        second = join(connection, group, instance="one")
        equal((second["ErrorCode"], second["GenerationId"]), (0, 1), "its successor takes its place, and nobody is disturbed")
        assert second["MemberId"] != first["MemberId"]
        equal(heartbeat(connection, group, first["MemberId"], 1, "one"), FENCED_INSTANCE_ID)
        equal(heartbeat(connection, group, second["MemberId"], 1, "one"), 0)


def test_a_commit_of_a_stale_generation_or_of_a_stranger_is_refused():
    connection, group = coordinator()
    with connection:
        topic = new_topic(connection)
        member = new_member(connection, group)
        id, generation = member["MemberId"], member["GenerationId"]
        equal(commit(connection, group, topic, 5, id, generation), 0)
        equal(commit(connection, group, topic, 6, id, generation - 1), ILLEGAL_GENERATION)
        equal(commit(connection, group, topic, 6, id, generation + 1), ILLEGAL_GENERATION)
        equal(commit(connection, group, topic, 6, "stranger", generation), UNKNOWN_MEMBER_ID)
        equal(commit(connection, group, topic, 6), UNKNOWN_MEMBER_ID, "a commit of no member to a group with members")
        equal(heartbeat(connection, group, id, generation + 1), ILLEGAL_GENERATION)
        equal(heartbeat(connection, group, "stranger", generation), UNKNOWN_MEMBER_ID)
        equal(committed(connection, [group], topic), {group: (0, 5, "")})


def test_a_member_that_others_wait_for_learns_it_by_its_heartbeat():
    connection, group = coordinator()
    with connection, connect() as other:
        member = new_member(connection, group)
        id = join(other, group)["MemberId"]
        body = {"GroupId": group, "SessionTimeoutMs": 10_000, "RebalanceTimeoutMs": 10_000, "MemberId": id}
        waiting = other.send("JoinGroup", 9, {**body, "ProtocolType": "consumer", "Protocols": [PROTOCOL]})
        deadline = time.monotonic() + 5 * checks.SLOWNESS
        while heartbeat(connection, group, member["MemberId"], member["GenerationId"]) != REBALANCE_IN_PROGRESS:
            assert time.monotonic() < deadline, "never told"
            ask_again(0.02)
        again = join(connection, group, member["MemberId"])
        joined = other.receive("JoinGroup", 9, waiting)
        equal([again["GenerationId"], joined["GenerationId"]], [member["GenerationId"] + 1] * 2)
        equal(len(again["Members"]) + len(joined["Members"]), 2, "the leader alone is told of both")


def test_offsets_of_many_groups_are_fetched_by_one_request_and_none_is_minus_1_without_an_error():
    connection, group = coordinator()
    with connection:
        topic = new_topic(connection)
        groups = [f"{group}-{number}" for number in range(5)]
        for number, each in enumerate(groups[:4]):
            equal(commit(connection, each, topic, 10 * number, metadata=f"of {number}"), 0, "a group without members takes commits of no member")
        expected = {each: (0, 10 * number, f"of {number}") for number, each in enumerate(groups[:4])} | {groups[4]: (0, -1, "")}
        for version in (8, 9):
            equal(committed(connection, groups, topic, version), expected, f"v{version}")
        for version in range(1, 8):
            for each in (groups[1], groups[4]):
                equal(committed(connection, [each], topic, version), {each: expected[each]}, f"v{version}")


def test_every_version_of_offset_commit_commits():
    connection, group = coordinator()
    with connection:
        topic = new_topic(connection)
        for version in range(2, 10):
            equal(commit(connection, group, topic, 100 + version, version=version), 0, f"v{version}")
            equal(committed(connection, [group], topic)[group][:2], (0, 100 + version))


def delete_offset(connection, group, topic):
    """The code of the whole, or of the one partition."""
    topics = [{"Name": topic, "Partitions": [{"PartitionIndex": 0}]}]
    answer = connection.call("OffsetDelete", 0, {"GroupId": group, "Topics": topics})
    return answer["ErrorCode"] or answer["Topics"][0]["Partitions"][0]["ErrorCode"]


def delete_group(connection, group):
    return connection.call("DeleteGroups", 2, {"GroupsNames": [group]})["Results"][0]["ErrorCode"]


def test_a_group_that_is_not_there_is_told_so_by_every_call():
    connection, group = coordinator()
    with connection:
        topic = new_topic(connection)
        equal(commit(connection, group, topic, 5, "m", 1, version=8), ILLEGAL_GENERATION)
        equal(commit(connection, group, topic, 5, "m", 1, version=9), GROUP_ID_NOT_FOUND)
        equal(join(connection, group, "made-up")["ErrorCode"], UNKNOWN_MEMBER_ID)
        equal(heartbeat(connection, group, "made-up", 1), UNKNOWN_MEMBER_ID)
        equal(delete_offset(connection, group, topic), GROUP_ID_NOT_FOUND)
        equal(delete_group(connection, group), GROUP_ID_NOT_FOUND)
        for version, code in ((5, 0), (6, GROUP_ID_NOT_FOUND)):
            described = connection.call("DescribeGroups", version, {"Groups": [group]})["Groups"][0]
            equal((described["ErrorCode"], described["GroupState"]), (code, "Dead"), f"v{version}")
        equal(heartbeat(connection, "", "made-up", 1), INVALID_GROUP_ID)
        equal(delete_offset(connection, "", topic), INVALID_GROUP_ID)


def test_offsets_can_be_deleted_where_no_member_is_subscribed_and_groups_where_nobody_is():
    connection, group = coordinator()
    with connection:
        topic, other = new_topic(connection), new_topic(connection)
        name = topic.encode()
        subscription = b"\0\0" + b"\0\0\0\1" + len(name).to_bytes(2) + name + b"\xff\xff\xff\xff"
        protocols = [{"Name": "range", "Metadata": subscription}]
        joined = join(connection, group, join(connection, group, Protocols=protocols)["MemberId"], Protocols=protocols)
        equal(sync(connection, group, joined)["ErrorCode"], 0)
        member, generation = joined["MemberId"], joined["GenerationId"]
        for each in (topic, other):
            equal(commit(connection, group, each, 5, member, generation), 0)
        equal(delete_offset(connection, group, topic), GROUP_SUBSCRIBED_TO_TOPIC)
        equal(delete_offset(connection, group, other), 0)
        equal(committed(connection, [group], other)[group], (0, -1, ""))
        equal(delete_group(connection, group), NONEMPTY_GROUP)
        connection.call("LeaveGroup", 5, {"GroupId": group, "Members": [{"MemberId": member}]})
        equal(committed(connection, [group], topic)[group], (0, 5, ""), "it outlives the members")
        equal(delete_group(connection, group), 0)
        equal(committed(connection, [group], topic)[group], (0, -1, ""))
        equal(delete_group(connection, group), GROUP_ID_NOT_FOUND)


def test_the_length_of_metadata_is_counted_in_utf_16():
    connection, group = coordinator()
    with connection:
        topic = new_topic(connection)
        for metadata, code in (("x" * 4096, 0), ("x" * 4097, OFFSET_METADATA_TOO_LARGE), ("\u00e4" * 4096, 0)):
            equal(commit(connection, group, topic, 5, metadata=metadata), code)
        equal(committed(connection, [group], topic)[group], (0, 5, "\u00e4" * 4096))
