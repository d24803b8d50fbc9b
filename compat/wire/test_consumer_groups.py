"""The consumer protocol of groups (KIP-848), for what its clients hide: epochs, who is who, what is refused and how it is put."""

import struct
import time
import uuid

from calls import configure_group, new_topic_for_groups, topic_id
from checks import SLOWNESS, equal
from differences import check
from golden import ask_again
from test_groups import GROUP_ID_NOT_FOUND, NONEMPTY_GROUP, UNKNOWN_MEMBER_ID, coordinator, until_ready

INVALID_CONFIG, INVALID_REQUEST, UNSUPPORTED_VERSION, INCONSISTENT_GROUP_PROTOCOL = 40, 42, 35, 23
MEMBER_ID_REQUIRED, FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID = 79, 82, 110, 111
UNSUPPORTED_ASSIGNOR, STALE_MEMBER_EPOCH, INVALID_REGULAR_EXPRESSION = 112, 113, 128


def heartbeat(connection, group, member, epoch, version=1, **fields):
    body = {"GroupId": group, "MemberId": member, "MemberEpoch": epoch, "InstanceId": None, "RackId": None, "RebalanceTimeoutMs": -1}
    body |= {"SubscribedTopicNames": None, "ServerAssignor": None, "TopicPartitions": None}
    body |= {"SubscribedTopicRegex": None} if version >= 1 else {}
    return until_ready(lambda: connection.call("ConsumerGroupHeartbeat", version, {**body, **fields}))


def join(connection, group, member, topics, version=1, **fields):
    first = {"RebalanceTimeoutMs": 10_000, "SubscribedTopicNames": topics, "TopicPartitions": []}
    return heartbeat(connection, group, member, 0, version, **{**first, **fields})


def share(answer):
    """The partitions of a member that is told some, of one topic."""
    topics = answer["Assignment"]["TopicPartitions"]
    return sorted(partition for topic in topics for partition in topic["Partitions"])


def having(connection, topic, partitions):
    return [{"TopicId": topic_id(connection, topic), "Partitions": partitions}]


def is_refused(answer, code, message):
    equal((answer["ErrorCode"], answer["ErrorMessage"]), (code, message))


def member_id():
    return str(uuid.uuid4())


def test_a_partition_is_given_only_after_it_was_given_up():
    connection, group = coordinator()
    topic = new_topic_for_groups(connection, 4)
    first, second = member_id(), member_id()
    joined = join(connection, group, first, [topic])
    equal((joined["ErrorCode"], joined["MemberId"], share(joined)), (0, first, [0, 1, 2, 3]))
    epoch = joined["MemberEpoch"]
    equal(heartbeat(connection, group, first, epoch)["Assignment"], None, "nothing has changed")
    # Between two decisions passes a second.
    waits = join(connection, group, second, [topic])
    equal(share(waits), [])
    kept = until(lambda: heartbeat(connection, group, first, epoch), lambda it: it["Assignment"] is not None)
    equal((kept["MemberEpoch"], len(share(kept))), (epoch, 2), "it keeps its epoch until it has given up")
    waits = heartbeat(connection, group, second, waits["MemberEpoch"])
    assert not waits["Assignment"] or share(waits) == [], waits
    given_up = [partition for partition in range(4) if partition not in share(kept)]
    equal(commit(connection, group, first, epoch, topic, given_up[0]), 0, "it has been asked to, and has not yet")
    done = heartbeat(connection, group, first, epoch, TopicPartitions=having(connection, topic, share(kept)))
    equal((done["MemberEpoch"] > epoch, done["Assignment"]), (True, None))
    gets = heartbeat(connection, group, second, waits["MemberEpoch"])
    equal(sorted(share(gets) + share(kept)), [0, 1, 2, 3])
    # In its present epoch a member is believed whatever it commits for; in an earlier one only for what it has had since.
    now = done["MemberEpoch"]
    equal([commit(connection, group, first, now, topic, partition) for partition in range(4)], [0, 0, 0, 0])
    equal([commit(connection, group, first, epoch, topic, partition) for partition in share(kept)], [0, 0])
    equal([commit(connection, group, first, epoch, topic, partition) for partition in given_up], [STALE_MEMBER_EPOCH] * 2)


def until(ask, is_so):
    # Kafka looks for what fits a regular expression every ten seconds.
    for _ in range(400):
        answer = ask()
        equal(answer["ErrorCode"], 0)
        if is_so(answer):
            return answer
        ask_again(0.05)
    raise AssertionError(f"never so: {answer}")


def test_what_is_wrong_with_a_request_is_said():
    connection, group = coordinator()
    ask = lambda **fields: join(connection, **{"group": group, "member": member_id(), "topics": ["t"], **fields})
    is_refused(ask(member=""), INVALID_REQUEST, "MemberId can't be empty.")
    is_refused(ask(group=""), INVALID_REQUEST, "GroupId can't be empty.")
    is_refused(ask(InstanceId=""), INVALID_REQUEST, "InstanceId can't be empty.")
    is_refused(ask(RackId=""), INVALID_REQUEST, "RackId can't be empty.")
    is_refused(ask(RebalanceTimeoutMs=-1), INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
    is_refused(ask(TopicPartitions=None), INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
    neither = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    is_refused(ask(topics=None), INVALID_REQUEST, neither)
    is_refused(heartbeat(connection, group, "m", -2), INVALID_REQUEST, "InstanceId can't be null.")
    is_refused(heartbeat(connection, group, "m", -3), INVALID_REQUEST, "MemberEpoch is invalid.")
    unsupported = "ServerAssignor sticky is not supported. Supported assignors: uniform, range."
    is_refused(ask(ServerAssignor="sticky"), UNSUPPORTED_ASSIGNOR, unsupported)
    equal(ask(topics=None, SubscribedTopicRegex="[")["ErrorCode"], INVALID_REGULAR_EXPRESSION)


def test_times_of_members_are_their_groups_own():
    connection, group = coordinator()
    topic, member = new_topic_for_groups(connection), member_id()
    own = {"consumer_heartbeat_interval_ms": "3000", "consumer_session_timeout_ms": "50000", "consumer_assignment_interval_ms": "0"}
    equal(configure_group(connection, group, **own)["ErrorCode"], 0)
    for name, value in (
        ("consumer_heartbeat_interval_ms", "100"),
        ("consumer_session_timeout_ms", "5000"),
        ("consumer_session_timeout_ms", "70000"),
        ("consumer_assignment_interval_ms", "20000"),
    ):
        equal(configure_group(connection, group, **{name: value})["ErrorCode"], INVALID_CONFIG, f"{name}={value} is beyond what the broker allows")
    # Kafka's broker learns of it a moment after its controller.
    deadline = time.monotonic() + 10 * SLOWNESS
    epoch = join(connection, group, member, [topic])["MemberEpoch"]
    while (answer := heartbeat(connection, group, member, epoch))["HeartbeatIntervalMs"] != 3000:
        assert time.monotonic() < deadline, answer
        epoch = answer["MemberEpoch"]
        ask_again()


def test_who_is_no_member_or_in_another_epoch_is_told():
    connection, group = coordinator()
    topic, member = new_topic_for_groups(connection), member_id()
    is_refused(heartbeat(connection, group, member, 1), GROUP_ID_NOT_FOUND, f"Consumer group {group} not found.")
    is_refused(heartbeat(connection, group, member, -1), GROUP_ID_NOT_FOUND, f"Group {group} not found.")
    epoch = join(connection, group, member, [topic])["MemberEpoch"]
    nobody = f"Member nobody is not a member of group {group}."
    is_refused(heartbeat(connection, group, "nobody", 1), UNKNOWN_MEMBER_ID, nobody)
    is_refused(heartbeat(connection, group, "nobody", -1), UNKNOWN_MEMBER_ID, nobody)
    greater = f"The consumer group member has a greater member epoch ({epoch + 1}) than the one known by the group coordinator ({epoch}). "
    is_refused(heartbeat(connection, group, member, epoch + 1), FENCED_MEMBER_EPOCH, greater + "The member must abandon all its partitions and rejoin.")
    again = join(connection, group, member, [topic])
    equal((again["ErrorCode"], again["MemberEpoch"], share(again)), (0, epoch, [0]), "it may join again")
    left = heartbeat(connection, group, member, -1)
    equal((left["ErrorCode"], left["MemberId"], left["MemberEpoch"], left["HeartbeatIntervalMs"]), (0, member, -1, 0))


def test_version_0_gives_members_their_ids():
    connection, group = coordinator()
    topic = new_topic_for_groups(connection)
    joined = join(connection, group, "", [topic], version=0)
    equal((joined["ErrorCode"], len(joined["MemberId"]), share(joined)), (0, 22, [0]))
    equal(heartbeat(connection, group, joined["MemberId"], joined["MemberEpoch"], version=0)["ErrorCode"], 0)


def test_a_static_name_belongs_to_one_member_until_that_lets_go():
    connection, group = coordinator()
    topic, one, other = new_topic_for_groups(connection), member_id(), member_id()
    epoch = join(connection, group, one, [topic], InstanceId="name")["MemberEpoch"]
    taken = f"Static member {other} with instance id name cannot join the group because the instance id is owned by {one} member."
    is_refused(join(connection, group, other, [topic], InstanceId="name"), UNRELEASED_INSTANCE_ID, taken)
    fenced = f"Static member {other} with instance id name was fenced by member {one}."
    is_refused(heartbeat(connection, group, other, epoch, InstanceId="name"), FENCED_INSTANCE_ID, fenced)
    is_refused(heartbeat(connection, group, one, epoch, InstanceId="none"), UNKNOWN_MEMBER_ID, "Instance id none is unknown.")
    away = heartbeat(connection, group, one, -2, InstanceId="name")
    equal((away["ErrorCode"], away["MemberEpoch"]), (0, -2))
    back = join(connection, group, other, [topic], InstanceId="name")
    equal((back["ErrorCode"], back["MemberEpoch"], share(back)), (0, epoch, [0]), "what it had, in the epoch that it had")


def commit(connection, group, member, epoch, topic, partition, version=9):
    partitions = [{"PartitionIndex": partition, "CommittedOffset": 3, "CommittedLeaderEpoch": -1, "CommittedMetadata": ""}]
    body = {"GroupId": group, "GenerationIdOrMemberEpoch": epoch, "MemberId": member, "GroupInstanceId": None}
    body["Topics"] = [{"Name": topic, "Partitions": partitions}]
    return connection.call("OffsetCommit", version, body)["Topics"][0]["Partitions"][0]["ErrorCode"]


def test_offsets_are_committed_and_fetched_by_members_in_their_epochs():
    connection, group = coordinator()
    topic, member = new_topic_for_groups(connection, 2), member_id()
    epoch = join(connection, group, member, [topic])["MemberEpoch"]
    equal(commit(connection, group, member, epoch, topic, 0), 0)
    equal(commit(connection, group, member, epoch, topic, 0, version=8), UNSUPPORTED_VERSION)
    equal(commit(connection, group, member, epoch + 1, topic, 0), STALE_MEMBER_EPOCH)
    equal(commit(connection, group, "nobody", epoch, topic, 0), UNKNOWN_MEMBER_ID)
    equal(commit(connection, group, "", -1, topic, 0), UNKNOWN_MEMBER_ID, "somebody is in it")

    def fetch(member, epoch):
        asked = {"GroupId": group, "MemberId": member, "MemberEpoch": epoch, "Topics": None}
        return connection.call("OffsetFetch", 9, {"Groups": [asked], "RequireStable": False})["Groups"][0]["ErrorCode"]

    equal([fetch(None, -1), fetch(member, epoch), fetch(member, epoch + 1)], [0, 0, STALE_MEMBER_EPOCH])
    equal(fetch("nobody", epoch), UNKNOWN_MEMBER_ID)


def test_groups_of_either_protocol_are_described_by_their_own_request():
    connection, group = coordinator()
    topic, member = new_topic_for_groups(connection), member_id()
    gets = join(connection, group, member, [topic])
    # Kafka may hear of a new topic only after it has answered.
    while not gets["Assignment"] or share(gets) != [0]:
        ask_again()
        gets = heartbeat(connection, group, member, gets["MemberEpoch"])
    asked = {"GroupIds": [group, "nobody"], "IncludeAuthorizedOperations": False}
    answers = {each["GroupId"]: each for each in connection.call("ConsumerGroupDescribe", 1, asked)["Groups"]}
    equal((answers["nobody"]["ErrorCode"], answers["nobody"]["ErrorMessage"]), (GROUP_ID_NOT_FOUND, "Group nobody not found."))
    found = answers[group]
    equal((found["ErrorCode"], found["GroupState"], found["AssignorName"]), (0, "Stable", "uniform"))
    [one] = found["Members"]
    equal((one["MemberId"], one["MemberType"], one["SubscribedTopicNames"]), (member, 1, [topic]))
    equal(one["Assignment"], {"TopicPartitions": [{"TopicId": topic_id(connection, topic), "TopicName": topic, "Partitions": [0]}]})
    equal(one["Assignment"], one["TargetAssignment"])
    [other] = connection.call("DescribeGroups", 6, {"Groups": [group], "IncludeAuthorizedOperations": False})["Groups"]
    equal((other["ErrorCode"], other["ErrorMessage"], other["GroupState"]), (GROUP_ID_NOT_FOUND, f"Group {group} is not a classic group.", "Dead"))
    [listed] = [it for it in connection.call("ListGroups", 5, {"StatesFilter": [], "TypesFilter": ["consumer"]})["Groups"] if it["GroupId"] == group]
    equal((listed["ProtocolType"], listed["GroupState"], listed["GroupType"]), ("consumer", "Stable", "consumer"))
    [deleted] = connection.call("DeleteGroups", 2, {"GroupsNames": [group]})["Results"]
    equal(deleted["ErrorCode"], NONEMPTY_GROUP)
    heartbeat(connection, group, member, -1)
    [deleted] = connection.call("DeleteGroups", 2, {"GroupsNames": [group]})["Results"]
    equal(deleted["ErrorCode"], 0)


def subscription(topic, owned):
    """ConsumerProtocolSubscription of version 1: a topic, and which of its partitions the member has."""

    def string(text):
        return struct.pack(">h", len(text)) + text.encode()

    has = struct.pack(">i", bool(owned)) + (string(topic) + struct.pack(f">i{len(owned)}i", len(owned), *owned) if owned else b"")
    return struct.pack(">hi", 1, 1) + string(topic) + struct.pack(">i", -1) + has


def join_classic(connection, group, member, topic, owned):
    protocols = [{"Name": "cooperative-sticky", "Metadata": subscription(topic, owned)}]
    body = {"GroupId": group, "SessionTimeoutMs": 10_000, "RebalanceTimeoutMs": 10_000, "MemberId": member, "GroupInstanceId": None}
    body |= {"ProtocolType": "consumer", "Protocols": protocols, "Reason": None}
    return until_ready(lambda: connection.call("JoinGroup", 9, body))


def test_a_classic_member_that_was_out_lets_go_before_it_joins_again():
    connection, group = coordinator()
    topic = new_topic_for_groups(connection, 2)
    equal(share(join(connection, group, member_id(), [topic])), [0, 1], "all of them")
    asked = join_classic(connection, group, "", topic, [])
    equal(asked["ErrorCode"], MEMBER_ID_REQUIRED)
    check(join_classic(connection, group, asked["MemberId"], topic, [0, 1])["ErrorCode"], "classic member out that has partitions")
    equal(join_classic(connection, group, asked["MemberId"], topic, [])["ErrorCode"], 0)


def test_a_regular_expression_that_quotes_is_understood():
    connection, group = coordinator()
    topic = new_topic_for_groups(connection)
    joined = join(connection, group, member_id(), None, SubscribedTopicRegex=rf"\Q{topic}\E|none")
    equal(joined["ErrorCode"], 0)
    member, epoch = joined["MemberId"], joined["MemberEpoch"]

    got = until(lambda: heartbeat(connection, group, member, epoch), lambda it: it["Assignment"] is not None)
    equal((share(got), got["MemberEpoch"] > epoch), ([0], True), "its topics are looked for after it has joined")
