"""A broker whose clients may do what rules allow: its rules, frame by frame, and a user `ada` under them."""

from enum import IntEnum

import calls
from broker import HOST
from checks import equal, eventually, unique
from connection import Connection
from logins import SCRAM_SHA_256, alter, log_in, log_in_on
from transactional import until_settled

ADA = "ada"
TOPIC_AUTHORIZATION_FAILED = 29
ANY, EVERY_PATTERN = 1, 1
LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
CLUSTER_NAME = "kafka-cluster"


class Kind(IntEnum):
    Topic = 2
    Group = 3
    Cluster = 4
    TransactionalId = 5


class Operation(IntEnum):
    All = 2
    Read = 3
    Write = 4
    Create = 5
    Delete = 6
    Alter = 7
    Describe = 8
    ClusterAction = 9
    DescribeConfigs = 10
    AlterConfigs = 11
    IdempotentWrite = 12


def allow(kind, operation, name, pattern=LITERAL, host="*", user=ADA, effect=ALLOW):
    return {
        "ResourceType": Kind[kind],
        "ResourceName": name,
        "ResourcePatternType": pattern,
        "Principal": f"User:{user}",
        "Host": host,
        "Operation": Operation[operation],
        "PermissionType": effect,
    }


def deny(*arguments, **fields):
    return allow(*arguments, **fields, effect=DENY)


def bits(*operations):
    """As `authorized_operations` has them."""
    return sum(1 << Operation[operation] for operation in operations)


class Guarded:
    """A listener that asks nobody has the administrator, who is a super user; the other one has ada."""

    def __init__(self, broker, port):
        self.broker = broker
        self.plain = f"{HOST}:{port}"
        self.admin = Connection(broker.bootstrap)
        equal(alter(broker, (ADA, SCRAM_SHA_256, 4096)), {ADA: 0})
        eventually("ada is a user", lambda: log_in(self.plain, "SCRAM-SHA-256", ADA) == 0)
        self.ada = Connection(self.plain)
        equal(log_in_on(self.ada, "SCRAM-SHA-256", ADA), 0)
        self.users = set()
        self.wait_for_coordinator(0, "any")

    def wait_for_coordinator(self, kind, key):
        """Of a group (0), a transaction (1) or a share (2): whose topic the first question makes."""
        asked = {"KeyType": kind, "CoordinatorKeys": [key]}
        found = until_settled(lambda: self.admin.call("FindCoordinator", 6, asked)["Coordinators"][0])
        equal(found["ErrorCode"], 0, key)

    def rule(self, *rules):
        """These become the only rules of the users whom this object has given any, once they hold."""
        # Rules take effect in the order of the metadata. In Kafka the broker and the controller hear of it at different times, so
        # both are asked about a last rule, which is new each time.
        marker = unique("marker")
        rules = [*rules, allow("Topic", "Alter", marker)]
        answer = self.admin.call("DeleteAcls", 3, {"Filters": [filter_of(user) for user in self.users or {f"User:{ADA}"}]})
        equal({result["ErrorCode"] for result in answer["FilterResults"]}, {0})
        self.users = {it["Principal"] for it in rules}
        answer = self.admin.call("CreateAcls", 3, {"Creations": rules})
        equal({result["ErrorCode"] for result in answer["Results"]}, {0})
        eventually("the broker has the rules", lambda: calls.describe_topic(self.ada, marker)["ErrorCode"] != TOPIC_AUTHORIZATION_FAILED)
        eventually("the controller has the rules", lambda: self.grow(marker) != TOPIC_AUTHORIZATION_FAILED)
        equal(sum(self.count(user) for user in self.users), len(rules), "rules")

    def count(self, user):
        described = self.admin.call("DescribeAcls", 3, filter_of(user))
        return sum(len(resource["Acls"]) for resource in described["Resources"])

    def grow(self, topic):
        body = {"Topics": [{"Name": topic, "Count": 2, "Assignments": None}], "TimeoutMs": 10_000, "ValidateOnly": True}
        return self.ada.call("CreatePartitions", 3, body)["Results"][0]["ErrorCode"]

    def new_topic(self):
        return calls.new_topic(self.admin)


def filter_of(user):
    """DescribeAcls and DeleteAcls name the same fields alike."""
    return {
        "ResourceTypeFilter": ANY,
        "ResourceNameFilter": None,
        "PatternTypeFilter": EVERY_PATTERN,
        "PrincipalFilter": user,
        "HostFilter": None,
        "Operation": ANY,
        "PermissionType": ANY,
    }
