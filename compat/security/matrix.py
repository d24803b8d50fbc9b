"""The matrix of requests and rules: each request of `requests`, under each of `STATES`. A request changes nothing that a later one sees."""

import itertools
import uuid
from base64 import urlsafe_b64encode

import calls
from batch import TRANSACTIONAL, batch
from checks import equal, eventually
from rules import CLUSTER_NAME, PREFIXED, allow, deny, filter_of
from transactional import Transactional, until_settled

OPERATIONS = {
    "Topic": ["Read", "Write", "Create", "Delete", "Alter", "Describe", "DescribeConfigs", "AlterConfigs"],
    "Group": ["Read", "Delete", "Describe", "DescribeConfigs", "AlterConfigs"],
    "Cluster": ["Create", "Delete", "Alter", "Describe", "ClusterAction", "DescribeConfigs", "AlterConfigs", "IdempotentWrite"],
    "TransactionalId": ["Write", "Describe"],
}
RIGHTS = [(kind, operation) for kind, operations in OPERATIONS.items() for operation in operations]
# All names begin so.
NAME = "acl-"
TOPIC, SECOND = "acl-topic", "acl-second"
GROUP, CONSUMERS, SHARERS = "acl-group", "acl-consumers", "acl-sharers"
OPEN = "acl-open"
NOT_ASKED = -(1 << 31)
TOPIC_TYPE, BROKER_TYPE, GROUP_TYPE = 2, 4, 32
SESSION = 60_000


def on(make, kind, operation):
    return make(kind, operation, CLUSTER_NAME) if kind == "Cluster" else make(kind, operation, NAME, PREFIXED)


# Some requests want two rights, and for some one of two is enough.
TOGETHER = [
    [("Topic", "Describe"), ("Topic", "Create")],
    [("Topic", "Describe"), ("Cluster", "Create")],
    [("Topic", "Create"), ("Topic", "DescribeConfigs")],
    [("Group", "Read"), ("Topic", "Read")],
    [("Group", "Delete"), ("Topic", "Read")],
    [("Group", "Describe"), ("Topic", "Describe")],
    [("TransactionalId", "Write"), ("Topic", "Write")],
    [("TransactionalId", "Write"), ("Group", "Read"), ("Topic", "Read")],
    [("TransactionalId", "Describe"), ("Topic", "Describe")],
]
EITHER = [
    [("Cluster", "Create"), ("Topic", "Create")],
    [("Cluster", "Delete"), ("Topic", "Delete")],
    [("Cluster", "Delete"), ("Topic", "Describe")],
    [("Cluster", "Alter"), ("Cluster", "ClusterAction")],
    [("Cluster", "ClusterAction"), ("Topic", "Describe")],
    [("Cluster", "Describe"), ("Group", "Describe")],
    [("Cluster", "IdempotentWrite"), ("Topic", "Write")],
]
EVERYTHING = [on(allow, kind, "All") for kind in OPERATIONS]


def named(effect, rights):
    return f"{effect} {', '.join(f'{kind} {operation}' for kind, operation in rights)}"


ONE = [[right] for right in RIGHTS]
STATES = {
    "none": [],
    **{named("allow", rights): [on(allow, *right) for right in rights] for rights in ONE + TOGETHER},
    "all": EVERYTHING,
    **{named("deny", rights): [*EVERYTHING, *(on(deny, *right) for right in rights)] for rights in ONE + EITHER},
}


def base(state):
    """The state that another one is a small change of."""
    return "all" if state == "all" or state.startswith("deny") else "none"


class World:
    """What the requests find: two topics, a group with offsets, one member each of a consumer and a share group, an open transaction."""

    def __init__(self, guarded):
        self.guarded, self.admin = guarded, guarded.admin
        self.numbers = itertools.count()
        for topic in (TOPIC, SECOND):
            equal(calls.create_topic(self.admin, topic)["ErrorCode"], 0)
            calls.wait_for_leaders(self.admin, topic, 1)
        self.ids = {topic: calls.topic_id(self.admin, topic) for topic in (TOPIC, SECOND)}
        self.known = {it: it for it in (TOPIC, SECOND, GROUP, CONSUMERS, SHARERS, OPEN)} | {id: f"id of {topic}" for topic, id in self.ids.items()}
        self.share = f"{SHARERS}:{urlsafe_b64encode(uuid.UUID(self.ids[TOPIC]).bytes).decode().rstrip('=')}:0"
        guarded.wait_for_coordinator(1, OPEN)
        guarded.wait_for_coordinator(2, self.share)
        self.commit_offsets()
        Transactional(self.admin, 1, OPEN, timeout_ms=900_000).init().send(SECOND, [b"open"])
        self.members = {"ConsumerGroup": str(uuid.uuid4()), "ShareGroup": str(uuid.uuid4())}
        self.epochs = dict.fromkeys(self.members, 0)
        self.beat(SubscribedTopicNames=[SECOND])
        for kind, group in (("ConsumerGroup", CONSUMERS), ("ShareGroup", SHARERS)):
            eventually(f"{group} has its topic", lambda: self.beat() or self.is_assigned(kind, group))

    def commit_offsets(self):
        committed = until_settled(lambda: self.admin.call("OffsetCommit", 9, commit(TOPIC, SECOND))["Topics"][0]["Partitions"][0])
        equal(committed["ErrorCode"], 0, "OffsetCommit")

    def beat(self, **fields):
        """Keeps the sessions of both members."""
        for kind, group in (("ConsumerGroup", CONSUMERS), ("ShareGroup", SHARERS)):
            own = {"RebalanceTimeoutMs": SESSION, "TopicPartitions": []} if kind == "ConsumerGroup" and fields else {}
            body = {"GroupId": group, "MemberId": self.members[kind], "MemberEpoch": self.epochs[kind], "SubscribedTopicNames": None, **own, **fields}
            answer = until_settled(lambda: self.admin.call(f"{kind}Heartbeat", 1, body))
            equal(answer["ErrorCode"], 0, group)
            self.epochs[kind] = answer["MemberEpoch"]

    def is_assigned(self, kind, group):
        described = self.admin.call(f"{kind}Describe", 1, {"GroupIds": [group]})["Groups"][0]
        return any(member["Assignment"]["TopicPartitions"] for member in described["Members"])

    def outcomes(self, state):
        """The outcome of each request by ada, by its name."""
        self.guarded.rule(*STATES[state])
        self.beat()
        # OffsetDelete has taken some of them under earlier rules.
        self.commit_offsets()
        found, known = {}, dict(self.known)
        for name, api, version, body in requests(self, known, f"-{next(self.numbers)}"):
            assert name not in found, name
            found[name] = outcome(self.guarded.ada.call(api, version, body), known)
        return found


def outcome(answer, known):
    """The codes, the sets of operations, and the names and ids that the answer tells."""
    found = set()

    def walk(value, path):
        if isinstance(value, dict):
            for field, inner in value.items():
                walk(inner, [*path, field])
        elif isinstance(value, list):
            for inner in value:
                walk(inner, path)
        elif path[-1].endswith("ErrorCode") or path[-1].endswith("AuthorizedOperations") and value != NOT_ASKED:
            found.add(f"{'.'.join(path)} {value}")
        elif isinstance(value, str) and value in known:
            found.add(f"{'.'.join(path)} {known[value]}")

    walk(answer, [])
    return "; ".join(sorted(found))


def commit(*topics):
    entries = [{"Name": it, "Partitions": [{"PartitionIndex": 0, "CommittedOffset": 0, "CommittedMetadata": ""}]} for it in topics]
    return {"GroupId": GROUP, "GenerationIdOrMemberEpoch": -1, "Topics": entries}


def resource(kind, name, *configs, **fields):
    return {"Resources": [{"ResourceType": kind, "ResourceName": name, "Configs": list(configs)}], "ValidateOnly": True, **fields}


def described(kind, name, key):
    return {"Resources": [{"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": [key]}]}


def requests(world, known, own):
    """Yields name, API, version and body of each. `own` ends the names that one run alone has."""
    topic_id, missing = world.ids[TOPIC], str(uuid.uuid4())
    topic = {"Name": TOPIC, "Partitions": [0]}
    states = {"TransactionalId": "acl-unknown", "ProducerId": 4242, "ProducerEpoch": 0}

    # Records.
    yield "Produce", "Produce", 12, calls.produce_body(TOPIC, batch([b"value"]))
    records = batch([b"value"], attributes=TRANSACTIONAL, producer_id=4242, epoch=0, sequence=0)
    yield "Produce in a transaction", "Produce", 12, calls.produce_body(TOPIC, records, transactional_id="acl-unknown")
    yield "Fetch", "Fetch", 12, calls.fetch_body([(TOPIC, 0, 0)])
    yield "Fetch by id", "Fetch", 18, calls.fetch_body([(topic_id, 0, 0)])
    yield "Produce by id", "Produce", 13, calls.produce_body(topic_id, batch([b"value"]))
    yield "Produce by an unknown id", "Produce", 13, calls.produce_body(missing, batch([b"value"]))
    yield "Fetch by an unknown id", "Fetch", 18, calls.fetch_body([(missing, 0, 0)])
    yield "Fetch of a replica", "Fetch", 12, calls.fetch_body([(TOPIC, 0, 0)], ReplicaId=99)
    at = {"PartitionIndex": 0, "Timestamp": calls.LATEST}
    yield "ListOffsets", "ListOffsets", 11, {"ReplicaId": -1, "Topics": [{"Name": TOPIC, "Partitions": [at]}]}
    yield "DeleteRecords", "DeleteRecords", 2, {"Topics": [{"Name": TOPIC, "Partitions": [{"PartitionIndex": 0, "Offset": 0}]}], "TimeoutMs": 10_000}
    epoch = {"Topic": TOPIC, "Partitions": [{"Partition": 0, "CurrentLeaderEpoch": -1, "LeaderEpoch": 0}]}
    yield "OffsetForLeaderEpoch", "OffsetForLeaderEpoch", 4, {"ReplicaId": -1, "Topics": [epoch]}
    yield "DescribeProducers", "DescribeProducers", 0, {"Topics": [{"Name": TOPIC, "PartitionIndexes": [0]}]}

    # Topics.
    asked = {"AllowAutoTopicCreation": False, "IncludeTopicAuthorizedOperations": True}
    yield "Metadata", "Metadata", 12, {"Topics": [{"Name": TOPIC}], **asked}
    yield "Metadata by id", "Metadata", 12, {"Topics": [{"TopicId": topic_id, "Name": None}], **asked}
    yield "Metadata by an unknown id", "Metadata", 12, {"Topics": [{"TopicId": missing, "Name": None}], **asked}
    yield "Metadata of all topics", "Metadata", 12, {"Topics": None, "AllowAutoTopicCreation": False}
    yield "Metadata of a missing topic", "Metadata", 12, {"Topics": [{"Name": "acl-missing"}], **asked}
    yield "Metadata, which creates", "Metadata", 12, {"Topics": [{"Name": f"acl-made{own}"}], "AllowAutoTopicCreation": True}
    yield "Metadata with the cluster's operations", "Metadata", 10, {"Topics": [], "IncludeClusterAuthorizedOperations": True}
    yield "DescribeTopicPartitions", "DescribeTopicPartitions", 0, {"Topics": [{"Name": TOPIC}], "ResponsePartitionLimit": 10, "Cursor": None}
    yield "DescribeTopicPartitions of all topics", "DescribeTopicPartitions", 0, {"ResponsePartitionLimit": 1000, "Cursor": None}
    missing_topic = {"Topics": [{"Name": "acl-missing"}], "ResponsePartitionLimit": 10, "Cursor": None}
    yield "DescribeTopicPartitions of a missing topic", "DescribeTopicPartitions", 0, missing_topic
    for what, name in (("", f"acl-new{own}"), (" of a topic that is there", TOPIC)):
        new = {"Name": name, "NumPartitions": 1, "ReplicationFactor": 1}
        yield f"CreateTopics{what}", "CreateTopics", 7, {"Topics": [new], "timeoutMs": 10_000, "validateOnly": True}
    yield "DeleteTopics of a missing topic", "DeleteTopics", 6, {"Topics": [{"Name": "acl-missing"}], "TimeoutMs": 10_000}
    yield "DeleteTopics by an unknown id", "DeleteTopics", 6, {"Topics": [{"Name": None, "TopicId": missing}], "TimeoutMs": 10_000}
    gone, lost = f"acl-gone{own}", f"acl-lost{own}"
    for it, label in ((gone, "acl-gone"), (lost, "acl-lost")):
        id = calls.create_topic(world.admin, it)["TopicId"]
        known |= {it: label, id: f"id of {label}"}
    yield "DeleteTopics", "DeleteTopics", 6, {"Topics": [{"Name": gone}], "TimeoutMs": 10_000}
    yield "DeleteTopics by id", "DeleteTopics", 6, {"Topics": [{"Name": None, "TopicId": id}], "TimeoutMs": 10_000}
    # Kafka's broker still lists them for a moment.
    known.clear()
    known.update(world.known)
    grown = {"Topics": [{"Name": TOPIC, "Count": 2, "Assignments": None}], "TimeoutMs": 10_000, "ValidateOnly": True}
    yield "CreatePartitions", "CreatePartitions", 3, grown
    yield "ElectLeaders", "ElectLeaders", 2, {"TopicPartitions": [{"Topic": TOPIC, "Partitions": [0]}], "TimeoutMs": 10_000}
    cancel = {"Topics": [{"Name": TOPIC, "Partitions": [{"PartitionIndex": 0, "Replicas": None}]}], "TimeoutMs": 10_000}
    yield "AlterPartitionReassignments", "AlterPartitionReassignments", 0, cancel
    yield "ListPartitionReassignments", "ListPartitionReassignments", 0, {"Topics": None, "TimeoutMs": 10_000}

    # Groups.
    yield "FindCoordinator of a group", "FindCoordinator", 6, {"KeyType": 0, "CoordinatorKeys": [GROUP]}
    yield "FindCoordinator of a group, of old", "FindCoordinator", 3, {"KeyType": 0, "Key": GROUP}
    yield "FindCoordinator of a transaction", "FindCoordinator", 6, {"KeyType": 1, "CoordinatorKeys": [OPEN]}
    yield "FindCoordinator of a share", "FindCoordinator", 6, {"KeyType": 2, "CoordinatorKeys": [world.share]}
    yield "OffsetCommit", "OffsetCommit", 9, commit(TOPIC)
    by_id = {"TopicId": topic_id, "Partitions": commit(TOPIC)["Topics"][0]["Partitions"]}
    yield "OffsetCommit by id", "OffsetCommit", 10, {**commit(), "Topics": [by_id]}
    wanted = {"GroupId": GROUP, "Topics": [{"TopicId": topic_id, "PartitionIndexes": [0]}]}
    yield "OffsetFetch by id", "OffsetFetch", 10, {"Groups": [wanted]}
    yield "OffsetFetch", "OffsetFetch", 9, {"Groups": [{"GroupId": GROUP, "Topics": [{"Name": TOPIC, "PartitionIndexes": [0]}]}]}
    yield "OffsetFetch of all topics", "OffsetFetch", 9, {"Groups": [{"GroupId": GROUP, "Topics": None}]}
    yield "OffsetDelete", "OffsetDelete", 0, {"GroupId": GROUP, "Topics": [{"Name": TOPIC, "Partitions": [{"PartitionIndex": 0}]}]}
    join = {"SessionTimeoutMs": 10_000, "RebalanceTimeoutMs": 10_000, "ProtocolType": "consumer", "Protocols": [{"Name": "range", "Metadata": b""}]}
    yield "JoinGroup", "JoinGroup", 9, {"GroupId": f"acl-joined{own}", **join}
    nobody = {"GroupId": GROUP, "GenerationId": 1, "MemberId": "nobody"}
    yield "SyncGroup", "SyncGroup", 5, {**nobody, "ProtocolType": "consumer", "ProtocolName": "range"}
    yield "Heartbeat", "Heartbeat", 4, nobody
    yield "LeaveGroup", "LeaveGroup", 5, {"GroupId": GROUP, "Members": [{"MemberId": "nobody"}]}
    yield "DescribeGroups", "DescribeGroups", 6, {"Groups": [GROUP], "IncludeAuthorizedOperations": True}
    yield "ListGroups", "ListGroups", 5, {}
    yield "DeleteGroups", "DeleteGroups", 2, {"GroupsNames": ["acl-missing"]}
    for kind, group in (("ConsumerGroup", CONSUMERS), ("ShareGroup", SHARERS)):
        begin = {"RebalanceTimeoutMs": SESSION, "TopicPartitions": []} if kind == "ConsumerGroup" else {}
        member = {"GroupId": f"{group}{own}", "MemberId": str(uuid.uuid4()), "SubscribedTopicNames": [TOPIC], **begin}
        yield f"{kind}Heartbeat", f"{kind}Heartbeat", 1, member
        yield f"{kind}Describe", f"{kind}Describe", 1, {"GroupIds": [group], "IncludeAuthorizedOperations": True}
    shared = {"GroupId": SHARERS, "MemberId": str(uuid.uuid4())}
    # A partition that is not there: whether one that is there has an answer at once is by chance.
    fetched = {"TopicId": topic_id, "Partitions": [{"PartitionIndex": 7}]}
    yield "ShareFetch", "ShareFetch", 1, {**shared, "ShareSessionEpoch": 0, "MaxBytes": 1, "MaxRecords": 1, "BatchSize": 1, "Topics": [fetched]}
    decided = [{"FirstOffset": 1_000_000, "LastOffset": 1_000_000, "AcknowledgeTypes": [1]}]
    decision = {"TopicId": topic_id, "Partitions": [{"PartitionIndex": 7, "AcknowledgementBatches": decided}]}
    yield "ShareAcknowledge", "ShareAcknowledge", 1, {**shared, "ShareSessionEpoch": 1, "Topics": [decision]}
    one = {"GroupId": SHARERS, "Topics": [{"TopicName": TOPIC, "Partitions": [0]}]}
    yield "DescribeShareGroupOffsets", "DescribeShareGroupOffsets", 0, {"Groups": [one]}
    yield "DescribeShareGroupOffsets of all topics", "DescribeShareGroupOffsets", 0, {"Groups": [{"GroupId": SHARERS, "Topics": None}]}
    made = f"acl-moved{own}"
    start = {"GroupId": made, "Topics": [{"TopicName": TOPIC, "Partitions": [{"PartitionIndex": 0, "StartOffset": 0}]}]}
    yield "AlterShareGroupOffsets", "AlterShareGroupOffsets", 0, start
    yield "DeleteShareGroupOffsets", "DeleteShareGroupOffsets", 0, {"GroupId": made, "Topics": [{"TopicName": TOPIC}]}
    for what in ("InitializeShareGroupState", "ReadShareGroupState", "WriteShareGroupState", "ReadShareGroupStateSummary", "DeleteShareGroupState"):
        yield what, what, 0, {"GroupId": f"acl-state{own}", "Topics": [{"TopicId": topic_id, "Partitions": [{"Partition": 0}]}]}

    # Transactions. No producer has the id, so that none is disturbed.
    yield "InitProducerId", "InitProducerId", 5, {"TransactionalId": None, "TransactionTimeoutMs": 60_000}
    yield "InitProducerId of a transaction", "InitProducerId", 5, {"TransactionalId": f"acl-begun{own}", "TransactionTimeoutMs": 60_000}
    added = {f"V3AndBelow{name}": value for name, value in {**states, "Topics": [topic]}.items()}
    yield "AddPartitionsToTxn", "AddPartitionsToTxn", 3, added
    yield "AddPartitionsToTxn of a node", "AddPartitionsToTxn", 4, {"Transactions": [{**states, "VerifyOnly": True, "Topics": [topic]}]}
    yield "AddOffsetsToTxn", "AddOffsetsToTxn", 3, {**states, "GroupId": GROUP}
    yield "TxnOffsetCommit", "TxnOffsetCommit", 3, {**states, "GroupId": GROUP, "GenerationId": -1, "Topics": commit(TOPIC)["Topics"]}
    yield "EndTxn", "EndTxn", 3, {**states, "Committed": True}
    marker = {"ProducerId": 4242, "ProducerEpoch": 0, "TransactionResult": True, "Topics": [{"Name": "acl-missing", "PartitionIndexes": [0]}]}
    yield "WriteTxnMarkers", "WriteTxnMarkers", 1, {"Markers": [marker]}
    yield "DescribeTransactions", "DescribeTransactions", 0, {"TransactionalIds": [OPEN]}
    yield "DescribeTransactions of a missing one", "DescribeTransactions", 0, {"TransactionalIds": ["acl-missing"]}
    yield "ListTransactions", "ListTransactions", 1, {}

    # Settings.
    yield "DescribeConfigs of a topic", "DescribeConfigs", 4, described(TOPIC_TYPE, TOPIC, "retention.ms")
    yield "DescribeConfigs of a broker", "DescribeConfigs", 4, described(BROKER_TYPE, "1", "message.max.bytes")
    yield "DescribeConfigs of a group", "DescribeConfigs", 4, described(GROUP_TYPE, GROUP, "consumer.session.timeout.ms")
    for kind, what, name, key, value in (
        (TOPIC_TYPE, "topic", TOPIC, "retention.ms", "3600000"),
        (BROKER_TYPE, "broker", "1", "message.max.bytes", "1000000"),
        (GROUP_TYPE, "group", GROUP, "consumer.session.timeout.ms", "30000"),
    ):
        yield f"AlterConfigs of a {what}", "AlterConfigs", 2, resource(kind, name, {"Name": key, "Value": value})
        change = {"Name": key, "ConfigOperation": 0, "Value": value}
        yield f"IncrementalAlterConfigs of a {what}", "IncrementalAlterConfigs", 1, resource(kind, name, change)
    yield "ListConfigResources", "ListConfigResources", 1, {"ResourceTypes": [TOPIC_TYPE]}
    quota = {"EntityType": "user", "EntityName": "nobody"}
    yield "DescribeClientQuotas", "DescribeClientQuotas", 1, {"Components": [{"EntityType": "user", "MatchType": 0, "Match": "nobody"}]}
    limited = {"Entity": [quota], "Ops": [{"Key": "consumer_byte_rate", "Value": 1000.0}]}
    yield "AlterClientQuotas", "AlterClientQuotas", 1, {"Entries": [limited], "ValidateOnly": True}
    yield "DescribeUserScramCredentials", "DescribeUserScramCredentials", 0, {"Users": [{"Name": "nobody"}]}
    yield "AlterUserScramCredentials", "AlterUserScramCredentials", 0, {"Deletions": [{"Name": "nobody", "Mechanism": 1}]}

    # The cluster.
    bob = allow("Topic", "Read", "another", user="bob")
    yield "DescribeAcls", "DescribeAcls", 3, filter_of("User:nobody")
    yield "DeleteAcls", "DeleteAcls", 3, {"Filters": [filter_of("User:nobody")]}
    yield "CreateAcls", "CreateAcls", 3, {"Creations": [bob]}
    yield "DescribeCluster", "DescribeCluster", 1, {"IncludeClusterAuthorizedOperations": True}
    yield "DescribeLogDirs", "DescribeLogDirs", 4, {"Topics": [{"Topic": TOPIC, "Partitions": [0]}]}
    moved = {"Path": "/nowhere", "Topics": [{"Name": TOPIC, "Partitions": [0]}]}
    yield "AlterReplicaLogDirs", "AlterReplicaLogDirs", 2, {"Dirs": [moved]}
    quorum = {"TopicName": "__cluster_metadata", "Partitions": [{"PartitionIndex": 0}]}
    yield "DescribeQuorum", "DescribeQuorum", 2, {"Topics": [quorum]}
    yield "UpdateFeatures", "UpdateFeatures", 2, {"timeoutMs": 10_000, "ValidateOnly": True}
    yield "UnregisterBroker", "UnregisterBroker", 0, {"BrokerId": 999}
