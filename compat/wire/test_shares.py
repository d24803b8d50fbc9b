"""Share groups (KIP-932), for what their clients hide: epochs of members and of sessions, what becomes of decisions, and where a
group starts."""

import time
import uuid

import schema
from batch import batch
from calls import configure_group, connect, new_topic_for_groups, produce, topic_id
from checks import SLOWNESS, equal
from differences import check
from golden import ask_again
from test_groups import GROUP_ID_NOT_FOUND, NONEMPTY_GROUP, UNKNOWN_MEMBER_ID, coordinator, until_ready

INVALID_GROUP_ID, UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST = 24, 3, 42
UNKNOWN_TOPIC_ID, FENCED_MEMBER_EPOCH = 100, 110
INVALID_RECORD_STATE, SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH = 121, 122, 123
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
LEAVE, FINAL = -1, -1
NO_TOPIC = "This server does not host this topic-partition."


def heartbeat(connection, group, member, epoch, **fields):
    body = {"GroupId": group, "MemberId": member, "MemberEpoch": epoch, "RackId": None, "SubscribedTopicNames": None}
    return until_ready(lambda: connection.call("ShareGroupHeartbeat", 1, {**body, **fields}))


def join(connection, group, member, topics):
    return heartbeat(connection, group, member, 0, SubscribedTopicNames=topics)


def member_id():
    return str(uuid.uuid4())


def shared(topic_partitions=1, **configs):
    """A connection, a group that begins with the first record, a member of it, its epoch, a topic that it is given, and its id."""
    connection, group = coordinator()
    equal(configure_group(connection, group, share_auto_offset_reset="earliest", **configs)["ErrorCode"], 0)
    topic, member = new_topic_for_groups(connection, topic_partitions), member_id()
    answer = join(connection, group, member, [topic])
    deadline = time.monotonic() + 20 * SLOWNESS
    while not answer["Assignment"] or not answer["Assignment"]["TopicPartitions"]:
        assert time.monotonic() < deadline, answer
        ask_again(0.05)
        answer = heartbeat(connection, group, member, answer["MemberEpoch"])
        equal(answer["ErrorCode"], 0)
    return connection, group, member, answer["MemberEpoch"], topic, topic_id(connection, topic)


def said(topic, partition, decisions):
    batches = [{"FirstOffset": first, "LastOffset": last, "AcknowledgeTypes": types} for first, last, types in decisions]
    return [{"TopicId": topic, "Partitions": [{"PartitionIndex": partition, "AcknowledgementBatches": batches}]}]


def fetch(connection, group, member, epoch, topic, decisions=(), partition=0, version=2, **fields):
    body = {"GroupId": group, "MemberId": member, "ShareSessionEpoch": epoch, "MaxWaitMs": 300, "MinBytes": 1, "MaxBytes": 1 << 20}
    body |= {"MaxRecords": 100, "BatchSize": 100, "ForgottenTopicsData": []}
    body["Topics"] = said(topic, partition, decisions) if topic else []
    return connection.call("ShareFetch", version, {**body, **fields})


def acknowledge(connection, group, member, epoch, topic, decisions, partition=0, version=2, **fields):
    body = {"GroupId": group, "MemberId": member, "ShareSessionEpoch": epoch, "Topics": said(topic, partition, decisions)}
    return connection.call("ShareAcknowledge", version, {**body, **fields})


def only(answer):
    """The one partition that an answer tells of."""
    equal(answer["ErrorCode"], 0, answer["ErrorMessage"])
    [topic] = answer["Responses"]
    [partition] = topic["Partitions"]
    return partition


def acquired(answer):
    return [(each["FirstOffset"], each["LastOffset"], each["DeliveryCount"]) for each in only(answer)["AcquiredRecords"]]


def some(connection, group, member, epoch, topic, decisions=(), **fields):
    """What is acquired, and the next epoch. Kafka may answer before it has read anything."""
    for _ in range(40):
        answer = fetch(connection, group, member, epoch, topic, decisions, **fields)
        epoch += 1
        decisions = ()
        if answer["Responses"] and only(answer)["AcquiredRecords"]:
            return acquired(answer), epoch
        equal(answer["ErrorCode"], 0, answer["ErrorMessage"])
    raise AssertionError("nothing is acquired")


def is_refused(answer, code, message):
    equal((answer["ErrorCode"], answer["ErrorMessage"]), (code, message))


def test_what_is_wrong_with_a_heartbeat_of_a_share_group_is_said():
    connection, group = coordinator()
    topic, member = new_topic_for_groups(connection), member_id()
    wrong = {
        "no member": ("", 0, {"SubscribedTopicNames": [topic]}),
        "no subscription": (member, 0, {}),
        "no such epoch": (member, -2, {"SubscribedTopicNames": [topic]}),
        "an empty rack": (member, 0, {"RackId": "", "SubscribedTopicNames": [topic]}),
    }
    for what, (who, epoch, fields) in wrong.items():
        equal(heartbeat(connection, group, who, epoch, **fields)["ErrorCode"], INVALID_REQUEST, what)
    equal(heartbeat(connection, "", member, 0, SubscribedTopicNames=[topic])["ErrorCode"], INVALID_REQUEST, "no group")
    is_refused(heartbeat(connection, group, member, 1), GROUP_ID_NOT_FOUND, f"Share group {group} not found.")
    epoch = join(connection, group, member, [topic])["MemberEpoch"]
    stranger = f"Member nobody is not a member of group {group}."
    is_refused(heartbeat(connection, group, "nobody", 1), UNKNOWN_MEMBER_ID, stranger)
    is_refused(heartbeat(connection, group, "nobody", LEAVE), UNKNOWN_MEMBER_ID, stranger)
    problem = f"The share group member has a greater member epoch (9) than the one known by the group coordinator ({epoch})."
    is_refused(heartbeat(connection, group, member, 9), FENCED_MEMBER_EPOCH, f"{problem} The member must abandon all its partitions and rejoin.")
    left = heartbeat(connection, group, member, LEAVE)
    equal((left["ErrorCode"], left["MemberEpoch"], left["MemberId"]), (0, LEAVE, member))
    is_refused(heartbeat(connection, group, member, epoch), UNKNOWN_MEMBER_ID, f"Member {member} is not a member of group {group}.")


def test_times_of_members_are_their_groups_own():
    connection, group = coordinator()
    topic, member = new_topic_for_groups(connection), member_id()
    equal(configure_group(connection, group, share_heartbeat_interval_ms="3000")["ErrorCode"], 0)
    for name, value in (("share_heartbeat_interval_ms", "100"), ("share_session_timeout_ms", "5000"), ("share_session_timeout_ms", "70000")):
        equal(configure_group(connection, group, **{name: value})["ErrorCode"], 40, f"{name}={value} is beyond what the broker allows")
    equal(configure_group(connection, group, share_auto_offset_reset="by_duration:-PT1H")["ErrorCode"], 40)
    # Kafka's broker learns of it a moment after its controller.
    deadline = time.monotonic() + 10 * SLOWNESS
    epoch, interval = 0, None
    while interval != 3000:
        assert time.monotonic() < deadline, interval
        answer = heartbeat(connection, group, member, epoch, SubscribedTopicNames=[topic])
        epoch, interval = answer["MemberEpoch"], answer["HeartbeatIntervalMs"]
        if interval != 3000:
            ask_again()


def test_a_share_group_is_described_and_is_of_no_other_kind():
    connection, group, member, epoch, topic, id = shared(2)
    asked = {"GroupIds": [group, "nobody"], "IncludeAuthorizedOperations": False}
    answers = {each["GroupId"]: each for each in connection.call("ShareGroupDescribe", 1, asked)["Groups"]}
    is_refused(answers["nobody"], GROUP_ID_NOT_FOUND, "Group nobody not found.")
    found = answers[group]
    equal((found["ErrorCode"], found["GroupState"], found["AssignorName"]), (0, "Stable", "simple"))
    equal((found["GroupEpoch"] >= epoch, found["AssignmentEpoch"] >= epoch), (True, True))
    [one] = found["Members"]
    equal((one["MemberId"], one["SubscribedTopicNames"], one["RackId"]), (member, [topic], None))
    equal(one["Assignment"], {"TopicPartitions": [{"TopicId": id, "TopicName": topic, "Partitions": [0, 1]}]})
    [other] = connection.call("ConsumerGroupDescribe", 1, {"GroupIds": [group], "IncludeAuthorizedOperations": False})["Groups"]
    is_refused(other, GROUP_ID_NOT_FOUND, f"Group {group} is not a consumer group.")
    [deleted] = connection.call("DeleteGroups", 2, {"GroupsNames": [group]})["Results"]
    equal(deleted["ErrorCode"], NONEMPTY_GROUP)
    heartbeat(connection, group, member, LEAVE)
    [deleted] = connection.call("DeleteGroups", 2, {"GroupsNames": [group]})["Results"]
    equal(deleted["ErrorCode"], 0)
    # Those of the consumer protocol are no share groups.
    body = {"GroupId": group, "MemberId": member, "MemberEpoch": 0, "RebalanceTimeoutMs": 10_000, "SubscribedTopicNames": [topic], "TopicPartitions": []}
    equal(until_ready(lambda: connection.call("ConsumerGroupHeartbeat", 1, body))["ErrorCode"], 0)
    is_refused(join(connection, group, member, [topic]), GROUP_ID_NOT_FOUND, f"Group {group} is not a share group.")


def test_share_sessions_count_their_requests():
    connection, group, member, _, _, topic = shared()
    other = member_id()
    equal(fetch(connection, group, other, 5, topic)["ErrorCode"], SHARE_SESSION_NOT_FOUND)
    equal(fetch(connection, group, other, FINAL, topic)["ErrorCode"], SHARE_SESSION_NOT_FOUND)
    equal(acknowledge(connection, group, other, 1, topic, [(0, 0, [ACCEPT])])["ErrorCode"], SHARE_SESSION_NOT_FOUND)
    equal(fetch(connection, group, member, 0, topic)["ErrorCode"], 0)
    equal(fetch(connection, group, member, 2, topic)["ErrorCode"], INVALID_SHARE_SESSION_EPOCH)
    equal(fetch(connection, group, member, 1, topic)["ErrorCode"], 0)
    equal(acknowledge(connection, group, member, 0, topic, [(0, 0, [ACCEPT])])["ErrorCode"], INVALID_SHARE_SESSION_EPOCH)
    equal(acknowledge(connection, group, member, 1, topic, [(0, 0, [ACCEPT])])["ErrorCode"], INVALID_SHARE_SESSION_EPOCH)
    equal(acknowledge(connection, group, member, 2, topic, [])["ErrorCode"], 0)
    equal(fetch(connection, group, member, 0, topic)["ErrorCode"], 0, "it begins anew")
    equal(fetch(connection, group, member, 0, topic, [(0, 0, [ACCEPT])])["ErrorCode"], INVALID_REQUEST, "a new one has nothing to decide on")
    equal(acknowledge(connection, group, member, FINAL, topic, [])["ErrorCode"], 0)
    equal(fetch(connection, group, member, 1, topic)["ErrorCode"], SHARE_SESSION_NOT_FOUND)


def test_whoever_fetches_for_a_group_says_which_and_who_it_is():
    connection, group, member, _, _, topic = shared()
    for who in (None, "", "x" * 37):
        equal(fetch(connection, group, who, 0, topic)["ErrorCode"], INVALID_REQUEST, repr(who))
        equal(acknowledge(connection, group, who, 1, topic, [])["ErrorCode"], INVALID_REQUEST, repr(who))
    equal(fetch(connection, None, member, 0, topic)["ErrorCode"], INVALID_REQUEST)
    equal(acknowledge(connection, None, member, 1, topic, [])["ErrorCode"], INVALID_REQUEST)
    unknown = str(uuid.uuid4())
    answer = fetch(connection, group, member, 0, unknown)
    check(answer["ErrorCode"] or only(answer)["ErrorCode"], "share fetch of a topic id that is none")
    equal(only(fetch(connection, group, member, 0, topic, partition=7))["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION)


def test_records_are_acquired_decided_on_and_sent_whole():
    for version in schema.valid_versions("ShareFetch"):
        connection, group, member, _, name, topic = shared()
        equal(produce(connection, name, batch([b"a", b"b", b"c"]))["ErrorCode"], 0)
        body = fetch(connection, group, member, 0, topic, version=version)
        while not body["Responses"] or not only(body)["AcquiredRecords"]:
            ask_again()
            body = fetch(connection, group, member, 0, topic, version=version)
        equal((acquired(body), body["AcquisitionLockTimeoutMs"]), ([(0, 2, 1)], 30_000), f"v{version}")
        assert len(only(body)["Records"]) > 61, "the batch as it is"
        told = only(fetch(connection, group, member, 1, topic, [(0, 0, [ACCEPT]), (1, 2, [RELEASE, REJECT])], version=version))
        equal(told["AcknowledgeErrorCode"], 0)
        got = [(each["FirstOffset"], each["DeliveryCount"]) for each in told["AcquiredRecords"]]
        if not got:
            ((first, _, count),), _ = some(connection, group, member, 2, topic, version=version)
            got = [(first, count)]
        equal(got, [(1, 2)], "what was released")


def test_decisions_on_what_is_not_held_are_refused():
    connection, group, member, _, name, topic = shared()
    equal(produce(connection, name, batch([b"a", b"b", b"c", b"d"]))["ErrorCode"], 0)
    got, epoch = some(connection, group, member, 0, topic)
    equal(got, [(0, 3, 1)])
    wrong = [
        ([(1, 0, [ACCEPT])], INVALID_REQUEST, "the last before the first"),
        ([(2, 2, [ACCEPT]), (0, 1, [ACCEPT])], INVALID_REQUEST, "not in their order"),
        ([(0, 1, [])], INVALID_REQUEST, "without a decision"),
        ([(0, 3, [ACCEPT, ACCEPT])], INVALID_REQUEST, "neither one for all nor one for each"),
        ([(0, 0, [5])], INVALID_REQUEST, "a decision that is none"),
        ([(0, 0, [-1])], INVALID_REQUEST, "a decision that is none"),
        ([(0, 0, [RENEW])], INVALID_REQUEST, "without saying that it is renewed"),
        ([(4, 9, [ACCEPT])], INVALID_REQUEST, "beyond what there is"),
        ([(2, 4, [ACCEPT])], INVALID_REQUEST, "partly beyond what there is"),
    ]
    for decisions, code, what in wrong:
        equal(only(acknowledge(connection, group, member, epoch, topic, decisions))["ErrorCode"], code, what)
        epoch += 1
    # By somebody who does not hold it.
    other = member_id()
    equal(fetch(connection, group, other, 0, topic)["ErrorCode"], 0)
    equal(only(acknowledge(connection, group, other, 1, topic, [(0, 0, [ACCEPT])]))["ErrorCode"], INVALID_RECORD_STATE)
    # All or nothing: the first is good, the second was never there.
    both = [(0, 0, [ACCEPT]), (3, 6, [ACCEPT])]
    equal(only(acknowledge(connection, group, member, epoch, topic, both))["ErrorCode"], INVALID_REQUEST)
    rest = [
        ((1, 3), 0, "what is held"),
        ((3, 3), INVALID_RECORD_STATE, "done with"),
        ((0, 0), 0, "the last one"),
        ((3, 3), 0, "what is behind the group is passed by"),
    ]
    for range, code, what in rest:
        epoch += 1
        equal(only(acknowledge(connection, group, member, epoch, topic, [(*range, [ACCEPT])]))["ErrorCode"], code, what)
    missing = str(uuid.uuid4())
    equal(only(acknowledge(connection, group, member, epoch + 1, missing, [(0, 0, [ACCEPT])]))["ErrorCode"], UNKNOWN_TOPIC_ID)


def test_whoever_renews_locks_fetches_nothing():
    connection, group, member, _, name, topic = shared()
    equal(produce(connection, name, batch([b"a"]))["ErrorCode"], 0)
    got, epoch = some(connection, group, member, 0, topic)
    renewal = [(0, 0, [RENEW])]
    refused = fetch(connection, group, member, epoch, topic, renewal, IsRenewAck=True)
    equal(refused["ErrorCode"], INVALID_REQUEST)
    nothing = {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 0, "MaxRecords": 0, "IsRenewAck": True}
    told = fetch(connection, group, member, epoch, topic, renewal, **nothing)
    equal((only(told)["AcknowledgeErrorCode"], only(told)["AcquiredRecords"]), (0, []))
    told = acknowledge(connection, group, member, epoch + 1, topic, renewal, IsRenewAck=True)
    equal((only(told)["ErrorCode"], told["AcquisitionLockTimeoutMs"]), (0, 30_000))


def test_what_a_connection_held_that_is_gone_is_there_for_others():
    connection, group, member, _, name, topic = shared()
    equal(produce(connection, name, batch([b"a"]))["ErrorCode"], 0)
    there, other = connect(), member_id()
    equal(some(there, group, other, 0, topic)[0], [(0, 0, 1)])
    there.close()
    [(first, last, _)], _ = some(connection, group, member, 0, topic)
    equal((first, last), (0, 0))


def described(connection, group, topics, version=1):
    wanted = topics and [{"TopicName": topic, "Partitions": partitions} for topic, partitions in topics]
    [answer] = connection.call("DescribeShareGroupOffsets", version, {"Groups": [{"GroupId": group, "Topics": wanted}]})["Groups"]
    equal((answer["GroupId"], answer["ErrorCode"]), (group, 0))
    return {
        (topic["TopicName"], each["PartitionIndex"]): (each["StartOffset"], each.get("Lag"), each["ErrorCode"])
        for topic in answer["Topics"]
        for each in topic["Partitions"]
    }


def altered(connection, group, starts):
    topics = {}
    for topic, partition, start in starts:
        topics.setdefault(topic, []).append({"PartitionIndex": partition, "StartOffset": start})
    wanted = [{"TopicName": topic, "Partitions": partitions} for topic, partitions in topics.items()]
    return until_ready(lambda: connection.call("AlterShareGroupOffsets", 0, {"GroupId": group, "Topics": wanted}))


def forgotten(connection, group, topics):
    wanted = [{"TopicName": topic} for topic in topics]
    return until_ready(lambda: connection.call("DeleteShareGroupOffsets", 0, {"GroupId": group, "Topics": wanted}))


def test_where_a_share_group_starts_is_seen_set_and_forgotten():
    connection, group, member, epoch, topic, id = shared(2)
    produce(connection, topic, batch([b"a", b"b", b"c"]))
    is_refused(altered(connection, group, [(topic, 0, 1)]), NONEMPTY_GROUP, "The group is not empty.")
    is_refused(forgotten(connection, group, [topic]), NONEMPTY_GROUP, "The group is not empty.")
    heartbeat(connection, group, member, LEAVE)
    answer = altered(connection, group, [(topic, 0, 1), (topic, 9, 1), ("nowhere", 0, 1)])
    is_refused(answer, 0, None)
    parts = {(it["TopicName"], each["PartitionIndex"]): each for it in answer["Responses"] for each in it["Partitions"]}
    is_refused(parts[topic, 0], 0, None)
    for missing in ((topic, 9), ("nowhere", 0)):
        is_refused(parts[missing], UNKNOWN_TOPIC_OR_PARTITION, NO_TOPIC)
    equal({it["TopicName"]: it["TopicId"] for it in answer["Responses"]}[topic], id)
    equal(described(connection, group, [(topic, [0, 1]), ("nowhere", [0])]), {(topic, 0): (1, 2, 0), (topic, 1): (-1, -1, 0), ("nowhere", 0): (-1, -1, 0)})
    equal(described(connection, group, None), {(topic, 0): (1, 2, 0), (topic, 1): (-1, -1, 0)}, "all that it has")
    equal(described(connection, group, None, version=0)[topic, 0], (1, None, 0))
    equal(described(connection, group, []), {})
    other = new_topic_for_groups(connection)
    answer = forgotten(connection, group, [topic, other, "nowhere"])
    is_refused(answer, 0, None)
    parts = {it["TopicName"]: it for it in answer["Responses"]}
    is_refused(parts[topic], 0, None)
    is_refused(parts[other], UNKNOWN_TOPIC_OR_PARTITION, "There is no offset information to delete.")
    is_refused(parts["nowhere"], UNKNOWN_TOPIC_OR_PARTITION, NO_TOPIC)
    equal(described(connection, group, None), {})


def test_a_share_group_begins_where_it_was_told_to_before_anybody_was_in_it():
    connection, group = coordinator()
    topic, member = new_topic_for_groups(connection), member_id()
    produce(connection, topic, batch([b"a", b"b", b"c"]))
    equal(altered(connection, "", [(topic, 0, 1)])["ErrorCode"], INVALID_GROUP_ID)
    is_refused(forgotten(connection, group, [topic]), GROUP_ID_NOT_FOUND, f"Group {group} not found.")
    equal(described(connection, group, None), {})
    is_refused(altered(connection, group, [(topic, 0, 2)]), 0, None)
    [listed] = [it for it in connection.call("ListGroups", 5, {"StatesFilter": [], "TypesFilter": ["share"]})["Groups"] if it["GroupId"] == group]
    equal((listed["GroupState"], listed["GroupType"], listed["ProtocolType"]), ("Empty", "share", "share"))
    join(connection, group, member, [topic])
    id = topic_id(connection, topic)
    equal(some(connection, group, member, 0, id)[0], [(2, 2, 1)])
