"""What administrators ask of the cluster: directories, producers, elections, moves, the quorum, features, access."""

import checks
import schema
from batch import batch
from calls import connect, describe_topic, new_producer_id, new_topic, produce
from checks import equal
from differences import check

UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT, INVALID_TOPIC, INVALID_REQUEST = 3, 7, 17, 42
INVALID_REPLICA_ASSIGNMENT, SECURITY_DISABLED, LOG_DIR_NOT_FOUND = 39, 54, 57
TOKEN_REQUEST_NOT_ALLOWED, ELECTION_NOT_NEEDED, NO_REASSIGNMENT_IN_PROGRESS = 64, 84, 85
RESOURCE_NOT_FOUND, DUPLICATE_RESOURCE, INVALID_UPDATE_VERSION, BROKER_ID_NOT_REGISTERED = 91, 92, 95, 102


def broker_of(connection, topic):
    return describe_topic(connection, topic)["Partitions"][0]["LeaderId"]


# DescribeLogDirs and AlterReplicaLogDirs.


def log_dir(connection, topics, version=5):
    answer = connection.call("DescribeLogDirs", version, {"Topics": topics})
    equal(answer.get("ErrorCode", 0), 0)
    [result] = answer["Results"]
    equal((result["ErrorCode"], result.get("IsCordoned", False)), (0, False))
    return result


def sizes(result):
    found = {}
    for topic in result["Topics"]:
        for partition in topic["Partitions"]:
            equal((partition["OffsetLag"], partition["IsFutureKey"]), (0, False))
            found[topic["Name"], partition["PartitionIndex"]] = partition["PartitionSize"]
    return found


def test_directories_are_described_with_the_bytes_of_each_partition():
    with connect() as connection:
        topic, missing = new_topic(connection, partitions=2), checks.unique("missing")
        records = [batch([b"x" * 1000]), batch([b"y" * 500])]
        for data in records:
            equal(produce(connection, topic, data)["ErrorCode"], 0)
        expected = {(topic, 0): sum(map(len, records)), (topic, 1): 0}
        for version in schema.valid_versions("DescribeLogDirs"):
            result = log_dir(connection, [{"Topic": topic, "Partitions": [0, 1, 9]}, {"Topic": missing, "Partitions": [0]}], version)
            equal(sizes(result), expected, f"v{version}")
            assert result["LogDir"].startswith("/"), result["LogDir"]
            if version >= 4:
                assert 0 < result["UsableBytes"] < result["TotalBytes"], result
            equal(sizes(log_dir(connection, [{"Topic": topic, "Partitions": [1]}], version)), {(topic, 1): 0})
            equal(log_dir(connection, [], version)["Topics"], [])
            everything = sizes(log_dir(connection, None, version))
            assert expected.items() <= everything.items(), everything


def test_replicas_stay_in_the_only_directory():
    with connect() as connection:
        topic, missing = new_topic(connection), checks.unique("missing")
        here = log_dir(connection, [])["LogDir"]
        for version in schema.valid_versions("AlterReplicaLogDirs"):
            for path, name, partition, error in [
                (here, topic, 0, 0),
                (here, topic, 9, UNKNOWN_TOPIC_OR_PARTITION),
                (here, missing, 0, UNKNOWN_TOPIC_OR_PARTITION),
                ("/no/such", topic, 0, LOG_DIR_NOT_FOUND),
                ("/no/such", missing, 0, LOG_DIR_NOT_FOUND),
                ("relative", topic, 0, LOG_DIR_NOT_FOUND),
            ]:
                body = {"Dirs": [{"Path": path, "Topics": [{"Name": name, "Partitions": [partition]}]}]}
                [result] = connection.call("AlterReplicaLogDirs", version, body)["Results"]
                told = (result["TopicName"], result["Partitions"])
                equal(told, (name, [{"PartitionIndex": partition, "ErrorCode": error}]), path)
        equal(connection.call("AlterReplicaLogDirs", 2, {"Dirs": []})["Results"], [])


# DescribeProducers.


def test_active_producers_are_described():
    with connect() as connection:
        topic, missing = new_topic(connection, partitions=2), checks.unique("missing")
        producer, epoch = new_producer_id(connection)
        at = 1_700_000_000_000
        for sequence, count in [(0, 2), (2, 3)]:
            at += 1000
            data = batch([b"v"] * count, producer_id=producer, epoch=epoch, sequence=sequence, timestamp=at)
            equal(produce(connection, topic, data)["ErrorCode"], 0)
        equal(produce(connection, topic, batch([b"v"], timestamp=at + 5000))["ErrorCode"], 0)
        asked = [(topic, [0, 1, 9, -1]), (missing, [0]), ("a b", [0])]
        body = {"Topics": [{"Name": name, "PartitionIndexes": indexes} for name, indexes in asked]}
        answer = connection.call("DescribeProducers", 0, body)["Topics"]
        told = [(t["Name"], [(p["PartitionIndex"], p["ErrorCode"]) for p in t["Partitions"]]) for t in answer]
        unknown = UNKNOWN_TOPIC_OR_PARTITION
        equal(
            sorted(told),
            sorted([(topic, [(0, 0), (1, 0), (9, unknown), (-1, unknown)]), (missing, [(0, unknown)]), ("a b", [(0, INVALID_TOPIC)])]),
        )
        partitions = {p["PartitionIndex"]: p["ActiveProducers"] for t in answer for p in t["Partitions"] if t["Name"] == topic}
        expected = {
            "ProducerId": producer,
            "ProducerEpoch": epoch,
            "LastSequence": 4,
            "LastTimestamp": at,
            "CoordinatorEpoch": -1,
            "CurrentTxnStartOffset": -1,
        }
        equal((partitions[0], partitions[1]), ([expected], []))


# ElectLeaders.


def elect(connection, topics, version=2, kind=0, timeout_ms=5000):
    body = {"TopicPartitions": topics and [{"Topic": name, "Partitions": partitions} for name, partitions in topics]}
    if version >= 1:
        body["ElectionType"] = kind
    answer = connection.call("ElectLeaders", version, {**body, "TimeoutMs": timeout_ms})
    told = [
        (r["Topic"], p["PartitionId"], p["ErrorCode"]) for r in answer["ReplicaElectionResults"] for p in r["PartitionResult"]
    ]
    return answer.get("ErrorCode", 0), sorted(told)


def test_partitions_of_one_broker_need_no_election():
    with connect() as connection:
        topic, missing = new_topic(connection, partitions=2), checks.unique("missing")
        for version in schema.valid_versions("ElectLeaders"):
            equal(elect(connection, [(topic, [0])], version), (0, [(topic, 0, ELECTION_NOT_NEEDED)]), f"v{version}")
        asked = [(topic, [0, 1, 9]), (missing, [0]), ("a b", [0])]
        codes = [ELECTION_NOT_NEEDED, ELECTION_NOT_NEEDED, *[UNKNOWN_TOPIC_OR_PARTITION] * 3]
        places = [(name, partition) for name, partitions in asked for partition in partitions]
        for kind in (0, 1):
            expected = sorted((name, partition, code) for (name, partition), code in zip(places, codes))
            equal(elect(connection, asked, kind=kind), (0, expected))
            equal(elect(connection, None, kind=kind), (0, []))
            equal(elect(connection, [], kind=kind), (0, []))
        refused = sorted((name, partition, INVALID_REQUEST) for name, partition in places)
        equal(elect(connection, asked, kind=5), (INVALID_REQUEST, refused))
        equal(elect(connection, None, kind=5), (INVALID_REQUEST, []))
        equal(elect(connection, [(topic, [0])], timeout_ms=0), (REQUEST_TIMED_OUT, [(topic, 0, REQUEST_TIMED_OUT)]))


# AlterPartitionReassignments and ListPartitionReassignments.


def move(connection, moves, version=1, timeout_ms=5000, **fields):
    """`moves` are (topic, partition, brokers)."""
    topics = [{"Name": name, "Partitions": [{"PartitionIndex": at, "Replicas": brokers}]} for name, at, brokers in moves]
    answer = connection.call("AlterPartitionReassignments", version, {"TimeoutMs": timeout_ms, "Topics": topics, **fields})
    return answer["ErrorCode"], [p["ErrorCode"] for topic in answer["Responses"] for p in topic["Partitions"]]


def test_partitions_of_one_broker_are_moved_nowhere():
    with connect() as connection:
        topic, missing = new_topic(connection), checks.unique("missing")
        own = broker_of(connection, topic)
        for brokers, error in [
            ([own], 0),
            ([77], INVALID_REPLICA_ASSIGNMENT),
            ([own, 77], INVALID_REPLICA_ASSIGNMENT),
            ([own, own], INVALID_REPLICA_ASSIGNMENT),
            ([-1], INVALID_REPLICA_ASSIGNMENT),
            ([], INVALID_REPLICA_ASSIGNMENT),
            (None, NO_REASSIGNMENT_IN_PROGRESS),
        ]:
            for version in schema.valid_versions("AlterPartitionReassignments"):
                equal((brokers, move(connection, [(topic, 0, brokers)], version)), (brokers, (0, [error])))
            equal(move(connection, [(topic, 0, brokers)], AllowReplicationFactorChange=False), (0, [error]))
        asked = [(topic, 9, [own]), (topic, 9, None), (missing, 0, [own]), (missing, 0, None), (topic, 0, [own])]
        equal(move(connection, asked), (0, [*[UNKNOWN_TOPIC_OR_PARTITION] * 4, 0]))
        equal(move(connection, []), (0, []))
        equal(move(connection, [(topic, 0, [own])], timeout_ms=0), (REQUEST_TIMED_OUT, [REQUEST_TIMED_OUT]))
        for topics in (None, [], [{"Name": topic, "PartitionIndexes": [0, 9]}, {"Name": missing, "PartitionIndexes": [0]}]):
            answer = connection.call("ListPartitionReassignments", 0, {"TimeoutMs": 5000, "Topics": topics})
            equal((answer["ErrorCode"], answer["ErrorMessage"], answer["Topics"]), (0, None, []))


# DescribeQuorum.

METADATA = "__cluster_metadata"


def quorum(connection, asked, version=2):
    topics = [{"TopicName": name, "Partitions": [{"PartitionIndex": at} for at in indexes]} for name, indexes in asked]
    return connection.call("DescribeQuorum", version, {"Topics": topics})


def test_the_metadata_log_is_described_and_no_other():
    with connect() as connection:
        topic = new_topic(connection)
        own = broker_of(connection, topic)
        ends = []
        for version in schema.valid_versions("DescribeQuorum"):
            new_topic(connection)
            answer = quorum(connection, [(METADATA, [0])], version)
            [described] = answer["Topics"]
            [partition] = described["Partitions"]
            equal((answer["ErrorCode"], described["TopicName"], partition["PartitionIndex"]), (0, METADATA, 0))
            equal((partition["ErrorCode"], partition["LeaderId"], partition["Observers"]), (0, own, []))
            [voter] = partition["CurrentVoters"]
            equal(voter["ReplicaId"], own)
            assert partition["LeaderEpoch"] > 0 and 0 < partition["HighWatermark"] <= voter["LogEndOffset"], partition
            ends.append(partition["HighWatermark"])
            if version >= 1:
                assert voter["LastFetchTimestamp"] == voter["LastCaughtUpTimestamp"] > 1_700_000_000_000, voter
            if version >= 2:
                equal((answer["ErrorMessage"], partition["ErrorMessage"]), ("", ""))
                check(voter["ReplicaDirectoryId"] == schema.NO_UUID, "directory of a voter")
                [node] = answer["Nodes"]
                equal(node["NodeId"], own)
                assert all(listener["Port"] > 0 and listener["Host"] for listener in node["Listeners"]), node
        equal(ends, sorted(set(ends)), "the log grows")
        for asked in [[(topic, [0])], [(METADATA, [1])], [(METADATA, [0, 1])], [(METADATA, [0]), (topic, [0])]]:
            answer = quorum(connection, asked)
            told = [(t["TopicName"], p["PartitionIndex"], p["ErrorCode"]) for t in answer["Topics"] for p in t["Partitions"]]
            equal(told, [(name, at, UNKNOWN_TOPIC_OR_PARTITION) for name, indexes in asked for at in indexes])
            equal((answer["ErrorCode"], answer["Nodes"]), (0, []))
        equal(quorum(connection, [])["Topics"], [])


# UpdateFeatures and UnregisterBroker.


def test_unknown_features_are_not_updated():
    with connect() as connection:
        name = checks.unique("no.such.feature")
        for version in schema.valid_versions("UpdateFeatures"):
            for level, kind in [(1, 1), (0, 1), (0, 2), (0, 3), (-1, 1)]:
                how = {"UpgradeType": kind} if version >= 1 else {"AllowDowngrade": kind > 1}
                updates = [{"Feature": name, "MaxVersionLevel": level, **how}]
                answer = connection.call("UpdateFeatures", version, {"timeoutMs": 5000, "FeatureUpdates": updates})
                equal((answer["ErrorCode"], answer.get("Results", [])), (INVALID_UPDATE_VERSION, []), f"v{version} {level} {kind}")
                assert name in answer["ErrorMessage"], answer
            answer = connection.call("UpdateFeatures", version, {"timeoutMs": 5000, "FeatureUpdates": []})
            equal((answer["ErrorCode"], answer["ErrorMessage"], answer.get("Results", [])), (0, None, []))


def test_a_feature_that_is_at_its_level_stays_there():
    with connect() as connection:
        for version in schema.valid_versions("UpdateFeatures"):
            for name, level in (("group.version", 1), ("share.version", 1), ("transaction.version", 2)):
                updates = [{"Feature": name, "MaxVersionLevel": level, **({"UpgradeType": 1} if version >= 1 else {})}]
                answer = connection.call("UpdateFeatures", version, {"timeoutMs": 5000, "FeatureUpdates": updates})
                codes = [answer["ErrorCode"], *(result["ErrorCode"] for result in answer.get("Results", []))]
                assert not any(codes), f"v{version} {name}: {answer}"


def test_an_unknown_broker_is_not_unregistered():
    with connect() as connection:
        for broker in (77, -1):
            answer = connection.call("UnregisterBroker", 0, {"BrokerId": broker})
            equal(answer["ErrorCode"], BROKER_ID_NOT_REGISTERED)
            assert str(broker) in answer["ErrorMessage"], answer


# Credentials, access control, tokens.


def test_nobody_has_credentials():
    with connect() as connection:

        def told(*users):
            body = {"Users": [{"Name": name} for name in users] if users != (None,) else None}
            answer = connection.call("DescribeUserScramCredentials", 0, body)
            equal((answer["ErrorCode"], answer["ErrorMessage"]), (0, ""))
            assert all(result["ErrorMessage"] and not result["CredentialInfos"] for result in answer["Results"]), answer
            return sorted((result["User"], result["ErrorCode"]) for result in answer["Results"])

        equal((told(None), told()), ([], []))
        equal(told("a", "", "b"), [("", RESOURCE_NOT_FOUND), ("a", RESOURCE_NOT_FOUND), ("b", RESOURCE_NOT_FOUND)])
        equal(told("a", "b", "a"), [("a", DUPLICATE_RESOURCE), ("b", RESOURCE_NOT_FOUND)])


def test_there_is_no_access_control():
    entry = {"ResourceType": 2, "ResourceName": "x", "Principal": "User:a", "Host": "*", "Operation": 3, "PermissionType": 3}
    any_entry = {"ResourceTypeFilter": 1, "Operation": 1, "PermissionType": 1}
    any_entry |= {"ResourceNameFilter": None, "PrincipalFilter": None, "HostFilter": None}
    with connect() as connection:
        for version in schema.valid_versions("DescribeAcls"):
            answer = connection.call("DescribeAcls", version, any_entry)
            equal((answer["ErrorCode"], bool(answer["ErrorMessage"]), answer["Resources"]), (SECURITY_DISABLED, True, []))
        for version in schema.valid_versions("CreateAcls"):
            results = connection.call("CreateAcls", version, {"Creations": [entry, entry]})["Results"]
            equal([(result["ErrorCode"], bool(result["ErrorMessage"])) for result in results], [(SECURITY_DISABLED, True)] * 2)
        for version in schema.valid_versions("DeleteAcls"):
            results = connection.call("DeleteAcls", version, {"Filters": [any_entry, any_entry]})["FilterResults"]
            equal([(result["ErrorCode"], result["MatchingAcls"]) for result in results], [(SECURITY_DISABLED, [])] * 2)
        equal(connection.call("CreateAcls", 3, {"Creations": []})["Results"], [])
        equal(connection.call("DeleteAcls", 3, {"Filters": []})["FilterResults"], [])


def test_no_tokens_without_authentication():
    with connect() as connection:
        for version in schema.valid_versions("CreateDelegationToken"):
            answer = connection.call("CreateDelegationToken", version, {"MaxLifetimeMs": 1000})
            equal((answer["ErrorCode"], answer["TokenId"], answer["Hmac"]), (TOKEN_REQUEST_NOT_ALLOWED, "", b""))
            equal((answer["PrincipalType"], answer["PrincipalName"]), ("User", "ANONYMOUS"))
            equal((answer["IssueTimestampMs"], answer["ExpiryTimestampMs"], answer["MaxTimestampMs"]), (-1, -1, -1))
            if version >= 3:
                equal((answer["TokenRequesterPrincipalType"], answer["TokenRequesterPrincipalName"]), ("User", "ANONYMOUS"))
        for api in ("RenewDelegationToken", "ExpireDelegationToken"):
            for version in schema.valid_versions(api):
                answer = connection.call(api, version, {"Hmac": b"x"})
                equal((answer["ErrorCode"], answer["ExpiryTimestampMs"]), (TOKEN_REQUEST_NOT_ALLOWED, -1))
        for version in schema.valid_versions("DescribeDelegationToken"):
            answer = connection.call("DescribeDelegationToken", version, {"Owners": None})
            equal((answer["ErrorCode"], answer["Tokens"]), (TOKEN_REQUEST_NOT_ALLOWED, []))
