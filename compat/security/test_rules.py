"""The rules themselves, Kafka's tool for them, and clients that people have under them. What is asserted of Duramen is asserted of Kafka."""

import re
import subprocess
import uuid

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

import calls
import tools
from batch import batch
from broker import HOST
from checks import equal, eventually, unique
from connection import Connection
from logins import PASSWORD, USER, log_in, log_in_on, make_user, only_duramen
from matrix import OPERATIONS, commit
from rules import ADA, CLUSTER_NAME, PREFIXED, TOPIC_AUTHORIZATION_FAILED, allow, bits, deny

# By the codes of three requests.


def may(guarded, topic):
    """Whether ada may write, read and describe a topic."""
    produced = calls.produce(guarded.ada, topic, batch([b"value"]))["ErrorCode"]
    fetched = calls.fetch(guarded.ada, topic)["ErrorCode"]
    codes = {"write": produced, "read": fetched, "describe": calls.describe_topic(guarded.ada, topic)["ErrorCode"]}
    assert set(codes.values()) <= {0, TOPIC_AUTHORIZATION_FAILED}, codes
    return {right for right, code in codes.items() if code == 0}


ALL_THREE = {"write", "read", "describe"}


def test_without_a_rule_nothing_is_allowed(guarded):
    guarded.rule()
    equal(may(guarded, guarded.new_topic()), set())


def test_a_literal_rule_is_for_its_name_alone(guarded):
    topic = guarded.new_topic()
    equal(calls.create_topic(guarded.admin, f"{topic}-1")["ErrorCode"], 0)
    calls.wait_for_leaders(guarded.admin, f"{topic}-1", 1)
    guarded.rule(allow("Topic", "Write", topic))
    equal(may(guarded, topic), {"write", "describe"})
    equal(may(guarded, f"{topic}-1"), set())


def test_a_prefixed_rule_is_for_all_names_that_begin_so(guarded):
    topic, other = guarded.new_topic(), guarded.new_topic()
    guarded.rule(allow("Topic", "Read", topic[:-1], PREFIXED))
    for name in (topic, other):
        equal(may(guarded, name), {"read", "describe"} if name.startswith(topic[:-1]) else set(), name)
    guarded.rule(allow("Topic", "Read", topic, PREFIXED))
    equal((may(guarded, topic), may(guarded, other)), ({"read", "describe"}, set()))


def test_a_star_is_for_every_name_and_not_for_its_beginning(guarded):
    topic = guarded.new_topic()
    guarded.rule(allow("Topic", "Read", "*"))
    equal(may(guarded, topic), {"read", "describe"})
    guarded.rule(allow("Topic", "Read", "*", PREFIXED))
    equal(may(guarded, topic), set())


def test_a_rule_is_for_its_host_alone(guarded):
    topic = guarded.new_topic()
    guarded.rule(allow("Topic", "Read", topic, host=HOST), allow("Topic", "Write", topic, host="10.1.2.3"))
    equal(may(guarded, topic), {"read", "describe"})
    guarded.rule(allow("Topic", "All", topic), deny("Topic", "Read", topic, host="10.1.2.3"), deny("Topic", "Write", topic, host=HOST))
    equal(may(guarded, topic), {"read", "describe"})


def test_a_rule_of_every_user_is_for_this_one_too(guarded):
    topic = guarded.new_topic()
    guarded.rule(allow("Topic", "Read", topic, user="*"), allow("Topic", "Write", topic, user=ADA.upper()))
    equal(may(guarded, topic), {"read", "describe"})
    guarded.rule(allow("Topic", "All", topic), deny("Topic", "Read", topic, user="*"))
    equal(may(guarded, topic), {"write", "describe"})


@pytest.mark.parametrize("name, pattern", [("{}", {}), ("wire", {"pattern": PREFIXED}), ("*", {})])
def test_a_denial_wins_whatever_its_pattern(guarded, name, pattern):
    topic = guarded.new_topic()
    guarded.rule(allow("Topic", "All", topic), deny("Topic", "Read", name.format(topic), **pattern))
    equal(may(guarded, topic), {"write", "describe"})


def test_all_allows_and_denies_everything(guarded):
    topic = guarded.new_topic()
    guarded.rule(allow("Topic", "All", topic))
    equal(may(guarded, topic), ALL_THREE)
    guarded.rule(allow("Topic", "All", topic), deny("Topic", "All", topic))
    equal(may(guarded, topic), set())


def test_a_denial_of_write_leaves_the_describe_that_comes_with_it(guarded):
    topic = guarded.new_topic()
    guarded.rule(allow("Topic", "Write", topic), deny("Topic", "Write", topic))
    equal(may(guarded, topic), {"describe"})


def test_a_denial_of_describe_alone_leaves_reading_and_writing(guarded):
    topic = guarded.new_topic()
    guarded.rule(allow("Topic", "All", topic), deny("Topic", "Describe", topic))
    equal(may(guarded, topic), {"read", "write"})


@pytest.mark.parametrize("operation", OPERATIONS["Topic"])
def test_describe_comes_with_what_implies_it(guarded, operation):
    topic = guarded.new_topic()
    guarded.rule(allow("Topic", operation, topic))
    equal("describe" in may(guarded, topic), operation in ("Read", "Write", "Delete", "Alter", "Describe"))


def test_sets_of_operations_have_those_that_are_allowed(guarded):
    topic = guarded.new_topic()
    guarded.rule(allow("Topic", "Read", topic), allow("Topic", "Write", topic), *(allow("Cluster", it, CLUSTER_NAME) for it in ("Alter", "Create")))
    asked = {"Topics": [{"Name": topic}], "IncludeTopicAuthorizedOperations": True, "IncludeClusterAuthorizedOperations": True}
    answer = guarded.ada.call("Metadata", 10, asked)
    equal(answer["Topics"][0]["TopicAuthorizedOperations"], bits("Read", "Write", "Describe"))
    equal(answer["ClusterAuthorizedOperations"], bits("Alter", "Create", "Describe"))
    described = guarded.ada.call("DescribeCluster", 1, {"IncludeClusterAuthorizedOperations": True})
    equal(described["ClusterAuthorizedOperations"], bits("Alter", "Create", "Describe"))
    guarded.rule(allow("Topic", "All", topic), allow("Cluster", "All", CLUSTER_NAME))
    answer = guarded.ada.call("Metadata", 10, asked)
    equal(answer["Topics"][0]["TopicAuthorizedOperations"], bits(*OPERATIONS["Topic"]))
    equal(answer["ClusterAuthorizedOperations"], bits(*(it for it in OPERATIONS["Cluster"] if it != "Delete")))


# One request about several topics, of which one is allowed. One that is missing is not told from one that is refused.


def partitions(**fields):
    return [{"PartitionIndex": 0, **fields}]


def produce_body(names):
    bodies = [calls.produce_body(it, batch([b"value"])) for it in names]
    return {**bodies[0], "TopicData": [body["TopicData"][0] for body in bodies]}


OF_SEVERAL = {
    "Produce": lambda names: (12, produce_body(names)),
    "Fetch": lambda names: (12, calls.fetch_body([(it, 0, 0) for it in names])),
    "ListOffsets": lambda names: (11, {"ReplicaId": -1, "Topics": [{"Name": it, "Partitions": partitions(Timestamp=calls.LATEST)} for it in names]}),
    "Metadata": lambda names: (12, {"Topics": [{"Name": it} for it in names], "AllowAutoTopicCreation": True}),
    "DeleteRecords": lambda names: (2, {"Topics": [{"Name": it, "Partitions": partitions(Offset=0)} for it in names], "TimeoutMs": 10_000}),
    "OffsetCommit": lambda names: (9, {**commit(*names), "GroupId": names[0]}),
    "DescribeProducers": lambda names: (0, {"Topics": [{"Name": it, "PartitionIndexes": [0]} for it in names]}),
    "DescribeTopicPartitions": lambda names: (0, {"Topics": [{"Name": it} for it in names], "ResponsePartitionLimit": 10, "Cursor": None}),
    "DescribeConfigs": lambda names: (4, {"Resources": [{"ResourceType": 2, "ResourceName": it, "ConfigurationKeys": []} for it in names]}),
    "CreatePartitions": lambda names: (
        3,
        {"Topics": [{"Name": it, "Count": 2, "Assignments": None} for it in names], "TimeoutMs": 10_000, "ValidateOnly": True},
    ),
}


def codes_by_name(answer, names):
    """The codes beneath each structure that has one of the names."""
    found = {}

    def walk(value, name):
        if isinstance(value, list):
            for inner in value:
                walk(inner, name)
        elif isinstance(value, dict):
            name = next((it for it in value.values() if isinstance(it, str) and it in names), name)
            for field, inner in value.items():
                if field == "ErrorCode" and name:
                    found.setdefault(name, set()).add(inner)
                walk(inner, name)

    walk(answer, None)
    return found


@pytest.mark.parametrize("api", OF_SEVERAL)
def test_each_topic_of_a_request_is_decided_by_itself(guarded, api):
    allowed, refused, missing = guarded.new_topic(), guarded.new_topic(), unique("missing")
    guarded.rule(allow("Topic", "All", allowed), allow("Group", "Read", allowed))
    version, body = OF_SEVERAL[api]([allowed, refused, missing])
    codes = codes_by_name(guarded.ada.call(api, version, body), {allowed, refused, missing})
    equal(codes, {allowed: {0}, refused: {TOPIC_AUTHORIZATION_FAILED}, missing: {TOPIC_AUTHORIZATION_FAILED}})


def test_a_regular_expression_stands_for_the_topics_that_the_member_may_describe(guarded):
    allowed, refused, group = guarded.new_topic(), guarded.new_topic(), unique("group")
    guarded.rule(allow("Topic", "Describe", allowed), allow("Group", "Read", group))
    member = {"GroupId": group, "MemberId": str(uuid.uuid4()), "MemberEpoch": 0, "TopicPartitions": []}
    began = {"RebalanceTimeoutMs": 60_000, "SubscribedTopicNames": [], "SubscribedTopicRegex": f"{allowed}|{refused}"}

    def assigned():
        answer = guarded.ada.call("ConsumerGroupHeartbeat", 1, {**member, **began})
        equal(answer["ErrorCode"], 0, answer)
        member["MemberEpoch"] = answer["MemberEpoch"]
        return answer["Assignment"] and answer["Assignment"]["TopicPartitions"]

    given = eventually("a topic is assigned", assigned)
    equal([it["TopicId"] for it in given], [calls.topic_id(guarded.admin, allowed)])


def of_ada(guarded):
    connection = Connection(guarded.plain)
    equal(log_in_on(connection, "SCRAM-SHA-256", ADA), 0)
    return connection


def test_a_refused_produce_request_that_wants_no_answer_closes_the_connection(guarded):
    topic = guarded.new_topic()
    guarded.rule(allow("Topic", "Read", topic))
    with of_ada(guarded) as connection:
        connection.send("Produce", 12, calls.produce_body(topic, batch([b"value"]), acks=0))
        assert connection.is_closed_by_broker()
    equal(calls.fetched_values(guarded.ada, topic), [])


@only_duramen
def test_a_fetch_that_waits_brings_nothing_once_its_rule_is_gone(guarded):
    """Kafka decides when it begins to wait."""
    topic = guarded.new_topic()
    guarded.rule(allow("Topic", "Read", topic))
    with of_ada(guarded) as connection:
        asked = connection.send("Fetch", 12, calls.fetch_body([(topic, 0, 0)], max_wait_ms=15_000))
        guarded.rule()
        equal(calls.produce(guarded.admin, topic, batch([b"secret"]))["ErrorCode"], 0)
        answer = connection.receive("Fetch", 12, asked)["Responses"][0]["Partitions"][0]
    equal((answer["ErrorCode"], answer["Records"] or b""), (TOPIC_AUTHORIZATION_FAILED, b""))


@only_duramen
def test_fast_appends_need_to_write_the_topic(guarded):
    topic = guarded.new_topic()
    id = calls.topic_id(guarded.admin, topic)
    append = {"Wait": 1, "TimeoutMs": 10_000, "Topics": [{"TopicId": id, "Partitions": [{"Index": 0, "Records": batch([b"value"])}]}]}
    for rules, refused in (([], True), ([allow("Topic", "Read", topic)], True), ([allow("Topic", "Write", topic)], False)):
        guarded.rule(*rules)
        described = guarded.ada.call("DescribeFast", 0, {"Topics": [{"TopicId": id, "Partitions": [0]}]})
        appended = guarded.ada.call("AppendFast", 0, append)
        codes = [answer["Topics"][0]["Partitions"][0]["ErrorCode"] for answer in (described, appended)]
        equal([code == TOPIC_AUTHORIZATION_FAILED for code in codes], [refused] * 2, codes)


# Kafka's tool.


def acls(guarded, *arguments):
    done = tools.run("kafka-acls", "--bootstrap-server", guarded.broker.bootstrap, *arguments)
    equal(done.code, 0, str(done))
    return done.out


def listed(guarded, *arguments):
    """The operations by kind and name, as `kafka-acls --list` has them for a user."""
    found = {}
    for line in acls(guarded, "--list", *arguments).splitlines():
        if resource := re.search(r"resourceType=(\w+), name=(\S+), patternType=(\w+)", line):
            operations = found.setdefault(resource.groups(), set())
        elif rule := re.search(r"principal=(\S+), host=(\S+), operation=(\w+), permissionType=(\w+)", line):
            operations.add(rule.groups())
    return found


def test_kafka_acls_adds_lists_and_removes(guarded):
    topic, group, user = unique("by-tool"), unique("by-tool"), f"User:{unique('carol')}"
    producer = ["--allow-principal", user, "--producer", "--topic", topic]
    names = ["--topic", topic, "--group", group, "--resource-pattern-type", "prefixed"]
    consumer = ["--allow-principal", user, "--allow-host", HOST, "--consumer", *names]
    denial = ["--deny-principal", user, "--operation", "Alter", "--cluster"]
    of_user = ["--principal", user]

    def rules(host, *operations, effect="ALLOW"):
        return {(user, host, operation, effect) for operation in operations}

    ours = {
        ("TOPIC", topic, "LITERAL"): rules("*", "WRITE", "DESCRIBE", "CREATE"),
        ("TOPIC", topic, "PREFIXED"): rules(HOST, "READ", "DESCRIBE"),
        ("GROUP", group, "PREFIXED"): rules(HOST, "READ"),
        ("CLUSTER", CLUSTER_NAME, "LITERAL"): rules("*", "ALTER", effect="DENY"),
    }
    for arguments in (producer, consumer, denial):
        acls(guarded, "--add", *arguments)
    eventually("all are listed", lambda: listed(guarded, *of_user) == ours)
    # A second time they are there already.
    acls(guarded, "--add", *producer)
    equal(listed(guarded, *of_user), ours)
    equal(listed(guarded, "--topic", topic), {at: ours[at] for at in ours if at[1:] == (topic, "LITERAL")})
    both = listed(guarded, "--topic", topic, "--resource-pattern-type", "match")
    equal(both, {at: ours[at] for at in ours if at[:2] == ("TOPIC", topic)})
    acls(guarded, "--remove", "--force", *consumer)
    eventually("they are gone", lambda: listed(guarded, *of_user) == {at: ours[at] for at in ours if at[2] == "LITERAL"})
    acls(guarded, "--remove", "--force", "--topic", topic)
    eventually("all of the topic are gone", lambda: listed(guarded, *of_user) == {at: ours[at] for at in ours if at[0] == "CLUSTER"})
    acls(guarded, "--remove", "--force", *denial)
    eventually("none is left", lambda: listed(guarded, *of_user) == {})


# Clients that people have, with just the rights that they need.


def librdkafka(guarded, user=ADA, mechanism="SCRAM-SHA-256", **settings):
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": PASSWORD}
    return {"bootstrap.servers": guarded.plain, **login, **settings}


def produced(guarded, topic, idempotent):
    """The error of the record, None for none."""
    told = []
    producer = Producer(librdkafka(guarded, **{"enable.idempotence": idempotent}))
    producer.produce(topic, b"value", on_delivery=lambda error, _: told.append(error and error.code()))
    equal(producer.flush(30), 0)
    return told[0]


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_producer_needs_to_write_its_topic(guarded, idempotent):
    topic, other = guarded.new_topic(), guarded.new_topic()
    guarded.rule(allow("Topic", "Write", topic))
    equal(produced(guarded, topic, idempotent), None)
    equal(produced(guarded, other, idempotent), KafkaError.TOPIC_AUTHORIZATION_FAILED)
    equal([calls.fetched_values(guarded.admin, it) for it in (topic, other)], [[b"value"], []])


def test_an_idempotent_producer_needs_to_write_some_topic(guarded):
    guarded.rule(allow("Topic", "Describe", guarded.new_topic()))
    producer = Producer(librdkafka(guarded, **{"enable.idempotence": True}))
    with pytest.raises(KafkaException) as told:
        # It raises what is fatal.
        eventually("a fatal error", lambda: producer.poll(0.1) > 0)
    equal(told.value.args[0].code(), KafkaError.CLUSTER_AUTHORIZATION_FAILED, told)


def consumed(guarded, topic, group):
    """A record of the topic, or the error."""
    consumer = Consumer(librdkafka(guarded, **{"group.id": group, "auto.offset.reset": "earliest"}))
    consumer.subscribe([topic])
    read = consumer.poll(30)
    consumer.close()
    assert read, "nothing came"
    return read.error().code() if read.error() else read.value()


def test_a_consumer_needs_to_read_its_topic_and_its_group(guarded):
    topic, group = guarded.new_topic(), unique("group")
    equal(calls.produce(guarded.admin, topic, batch([b"value"]))["ErrorCode"], 0)
    guarded.rule(allow("Topic", "Read", topic))
    equal(consumed(guarded, topic, group), KafkaError.GROUP_AUTHORIZATION_FAILED)
    guarded.rule(allow("Group", "Read", group))
    equal(consumed(guarded, topic, group), KafkaError.TOPIC_AUTHORIZATION_FAILED)
    guarded.rule(allow("Topic", "Read", topic), allow("Group", "Read", group))
    equal(consumed(guarded, topic, group), b"value")


def test_kcat_needs_the_same(guarded):
    topic, group = guarded.new_topic(), unique("group")
    make_user(guarded.broker, USER, PASSWORD)
    eventually("the user is known", lambda: log_in(guarded.plain, "PLAIN") == 0)

    def run(*arguments, **options):
        words = [word for name, value in librdkafka(guarded, USER, "PLAIN").items() for word in ("-X", f"{name}={value}")]
        return subprocess.run(["kcat", *words, *arguments], capture_output=True, text=True, timeout=100, **options)

    guarded.rule(allow("Topic", "Write", topic, user=USER))
    written = run("-P", "-t", topic, input="one\n")
    equal(written.returncode, 0, written.stderr)
    refused = run("-C", "-t", topic, "-e", "-q")
    assert refused.returncode != 0 and "Topic authorization failed" in refused.stderr, refused
    guarded.rule(allow("Topic", "Read", topic, user=USER))
    refused = run("-G", group, "-X", "auto.offset.reset=earliest", topic)
    assert refused.returncode != 0 and re.search("group.authorization.failed", refused.stderr, re.IGNORECASE), refused
    guarded.rule(allow("Topic", "Read", topic, user=USER), allow("Group", "Read", group, user=USER))
    read = run("-G", group, "-X", "auto.offset.reset=earliest", "-c", "1", topic)
    equal((read.returncode, read.stdout), (0, "one\n"), read.stderr)
