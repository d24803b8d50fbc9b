"""Settings of topics and brokers: what they are, where they come from, and how those of brokers change while they run."""

import time

import checks
import schema
from batch import batch
from calls import connect, new_topic, produce
from checks import equal
from differences import check
from golden import ask_again

MESSAGE_TOO_LARGE, INVALID_TOPIC, INVALID_CONFIG, INVALID_REQUEST, UNKNOWN_TOPIC = 10, 17, 40, 42, 3
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7
OF_TOPIC, OF_BROKER, OF_CLUSTER, GIVEN, DEFAULT = 1, 2, 3, 4, 5
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
FOREVER, HOUR, DAY, WEEK = "9223372036854775807", "3600000", "86400000", "604800000"

# name, type, default, the broker's setting that stands in for it
TOPIC_SETTINGS = [
    ("cleanup.policy", LIST, "delete", "log.cleanup.policy"),
    ("compression.gzip.level", INT, "-1", "compression.gzip.level"),
    ("compression.lz4.level", INT, "9", "compression.lz4.level"),
    ("compression.type", STRING, "producer", "compression.type"),
    ("compression.zstd.level", INT, "3", "compression.zstd.level"),
    ("delete.retention.ms", LONG, DAY, "log.cleaner.delete.retention.ms"),
    ("file.delete.delay.ms", LONG, "60000", "log.segment.delete.delay.ms"),
    ("flush.messages", LONG, FOREVER, "log.flush.interval.messages"),
    ("flush.ms", LONG, FOREVER, None),
    ("follower.replication.throttled.replicas", LIST, "", None),
    ("index.interval.bytes", INT, "4096", "log.index.interval.bytes"),
    ("leader.replication.throttled.replicas", LIST, "", None),
    ("local.retention.bytes", LONG, "-2", "log.local.retention.bytes"),
    ("local.retention.ms", LONG, "-2", "log.local.retention.ms"),
    ("max.compaction.lag.ms", LONG, FOREVER, "log.cleaner.max.compaction.lag.ms"),
    ("max.message.bytes", INT, "1048588", "message.max.bytes"),
    ("message.timestamp.after.max.ms", LONG, HOUR, "log.message.timestamp.after.max.ms"),
    ("message.timestamp.before.max.ms", LONG, FOREVER, "log.message.timestamp.before.max.ms"),
    ("message.timestamp.type", STRING, "CreateTime", "log.message.timestamp.type"),
    ("min.cleanable.dirty.ratio", DOUBLE, "0.5", "log.cleaner.min.cleanable.ratio"),
    ("min.compaction.lag.ms", LONG, "0", "log.cleaner.min.compaction.lag.ms"),
    ("min.insync.replicas", INT, "1", "min.insync.replicas"),
    ("preallocate", BOOLEAN, "false", "log.preallocate"),
    ("remote.log.copy.disable", BOOLEAN, "false", None),
    ("remote.log.delete.on.disable", BOOLEAN, "false", None),
    ("remote.storage.enable", BOOLEAN, "false", None),
    ("retention.bytes", LONG, "-1", "log.retention.bytes"),
    ("retention.ms", LONG, WEEK, "log.retention.ms"),
    ("segment.bytes", INT, "1073741824", "log.segment.bytes"),
    ("segment.index.bytes", INT, "10485760", "log.index.size.max.bytes"),
    ("segment.jitter.ms", LONG, "0", "log.roll.jitter.ms"),
    ("segment.ms", LONG, WEEK, "log.roll.ms"),
    ("unclean.leader.election.enable", BOOLEAN, "false", "unclean.leader.election.enable"),
]

# Kafka has these in other units, too, and shows no default of the finest one.
IN_SEVERAL_UNITS = {"log.retention.ms", "log.roll.ms", "log.roll.jitter.ms"}

# name, type, default, whether it changes while the broker runs
BROKER_SETTINGS = [
    ("auto.create.topics.enable", BOOLEAN, "true", False),
    ("connections.max.idle.ms", LONG, "600000", False),
    ("default.replication.factor", INT, "1", False),
    ("delete.topic.enable", BOOLEAN, "true", False),
    ("fetch.max.bytes", INT, "57671680", False),
    ("log.index.interval.bytes", INT, "4096", True),
    ("max.connections", INT, "2147483647", True),
    ("num.partitions", INT, "1", False),
    ("producer.id.expiration.ms", INT, DAY, True),
    ("socket.request.max.bytes", INT, "104857600", False),
    ("socket.send.buffer.bytes", INT, "102400", False),
    *[(name, kind, default, True) for _, kind, default, name in TOPIC_SETTINGS if name],
]


def describe(connection, kind, name, keys=None, version=4, synonyms=True, documentation=False):
    resource = {"ResourceType": kind, "ResourceName": name, "ConfigurationKeys": keys}
    body = {"Resources": [resource], "IncludeSynonyms": synonyms}
    if version >= 3:
        body["IncludeDocumentation"] = documentation
    [result] = connection.call("DescribeConfigs", version, body)["Results"]
    equal((result["ResourceType"], result["ResourceName"]), (kind, name))
    return result


def rows(connection, kind, name, *keys, **fields):
    result = describe(connection, kind, name, list(keys) or None, **fields)
    equal((result["ErrorCode"], result["ErrorMessage"]), (0, ""))
    return {row["Name"]: row for row in result["Configs"]}


def layers(row):
    return [(synonym["Name"], synonym["Value"], synonym["Source"]) for synonym in row["Synonyms"]]


def own_id(connection):
    return str(connection.call("DescribeCluster", 2, {"EndpointType": 1})["ControllerId"])


def test_every_setting_of_a_topic_is_described_field_by_field():
    with connect() as connection:
        found = rows(connection, TOPIC, new_topic(connection), documentation=True)
        names = [name for name, *_ in TOPIC_SETTINGS]
        equal(sorted(name for name in found if name in names), names)
        check(tuple(sorted(found.keys() - names)), "settings of a topic that Kafka does not have")
        for name, kind, default, synonym in TOPIC_SETTINGS:
            row = found[name]
            assert row["Documentation"], name
            told = (row["Value"], row["ReadOnly"], row["IsSensitive"], row["ConfigType"])
            equal(told, (default, False, False, kind), name)
            source, behind = row["ConfigSource"], [(name, source) for name, _, source in layers(row)]
            if name == "min.insync.replicas":
                check(source, "source of min.insync.replicas")
            else:
                equal(source, DEFAULT, name)
                if synonym in IN_SEVERAL_UNITS:
                    check(len(behind), "synonyms of a setting that has several units", name)
                else:
                    equal(behind, [(synonym, DEFAULT)] if synonym else [], name)


def test_every_setting_of_a_broker_is_described_field_by_field():
    with connect() as connection:
        found = rows(connection, BROKER, own_id(connection), documentation=True)
        for name, kind, default, is_live in BROKER_SETTINGS:
            row = found[name]
            assert row["Documentation"], name
            equal((row["IsSensitive"], row["ConfigType"]), (False, kind), name)
            if name in ("log.index.interval.bytes", "max.connections"):
                check(row["ReadOnly"], "whether it changes while the broker runs", name)
            else:
                equal(row["ReadOnly"], not is_live, name)
            if name in IN_SEVERAL_UNITS:
                check(row["Value"], f"default of {name}")
            elif name == "min.insync.replicas":
                check(row["ConfigSource"], "source of min.insync.replicas")
            else:
                equal((row["Value"], row["ConfigSource"]), (default, DEFAULT), name)
                equal(layers(row), [(name, default, DEFAULT)])
        for name, kind in [("advertised.listeners", LIST), ("log.retention.check.interval.ms", LONG), ("node.id", INT), ("broker.id", INT)]:
            row = found[name]
            equal((row["ConfigSource"], row["ReadOnly"], row["ConfigType"]), (GIVEN, True, kind), name)
        equal(found["node.id"]["Value"], own_id(connection))


def test_every_version_describes_what_is_asked_for():
    with connect() as connection:
        topic = new_topic(connection, retention_ms="5000")
        for version in schema.valid_versions("DescribeConfigs"):
            row = rows(connection, TOPIC, topic, "retention.ms", "no.such", version=version)["retention.ms"]
            equal((row["Value"], row["ConfigSource"], row["ReadOnly"]), ("5000", OF_TOPIC, False), f"v{version}")
            equal(layers(row)[0], ("retention.ms", "5000", OF_TOPIC))
            bare = rows(connection, TOPIC, topic, "retention.ms", version=version, synonyms=False)["retention.ms"]
            equal((bare["Synonyms"], bare.get("Documentation")), ([], None))
        every = len(rows(connection, TOPIC, topic))
        equal(len(describe(connection, TOPIC, topic, [])["Configs"]), every, "no key is every key")
        equal(list(rows(connection, TOPIC, topic, "no.such")), [])


def test_other_resources_are_described_or_refused():
    with connect() as connection:
        own = own_id(connection)
        for kind, name, error in [
            (TOPIC, "", INVALID_TOPIC),
            (TOPIC, "a b", INVALID_TOPIC),
            (TOPIC, checks.unique("missing"), UNKNOWN_TOPIC),
            (BROKER, "77", INVALID_REQUEST),
            (BROKER, "x", INVALID_REQUEST),
            (BROKER_LOGGER, "", INVALID_REQUEST),
            (BROKER_LOGGER, "77", INVALID_REQUEST),
            (CLIENT_METRICS, "", INVALID_REQUEST),
            (GROUP, "", INVALID_REQUEST),
            (1, own, INVALID_REQUEST),
            (9, own, INVALID_REQUEST),
        ]:
            result = describe(connection, kind, name)
            equal((kind, name, result["ErrorCode"], result["Configs"]), (kind, name, error, []))
        metrics = rows(connection, CLIENT_METRICS, "some")
        told = [(name, row["Value"], row["ConfigType"], row["ConfigSource"]) for name, row in sorted(metrics.items())]
        equal(told, [("interval.ms", "300000", INT, DEFAULT), ("match", "", LIST, DEFAULT), ("metrics", "", LIST, DEFAULT)])
        check(len(describe(connection, BROKER_LOGGER, own)["Configs"]) > 0, "settings of loggers")
        assert rows(connection, GROUP, "some")["share.auto.offset.reset"]["Value"] == "latest"


def test_resources_are_listed_by_type():
    with connect() as connection:
        topic, own = new_topic(connection), own_id(connection)

        def listed(*kinds):
            answer = connection.call("ListConfigResources", 1, {"ResourceTypes": list(kinds)})
            return answer["ErrorCode"], {(r["ResourceType"], r["ResourceName"]) for r in answer["ConfigResources"]}

        error, found = listed()
        assert error == 0 and {(TOPIC, topic), (BROKER, own), (BROKER_LOGGER, own)} <= found, found
        equal(listed(BROKER, BROKER_LOGGER), (0, {(BROKER, own), (BROKER_LOGGER, own)}))
        equal({kind for kind, _ in listed(TOPIC)[1]}, {TOPIC})
        equal(listed(CLIENT_METRICS), (0, set()))
        # Groups are listed that have settings. Other tests may have given some to theirs.
        group = checks.unique("group")
        before = listed(GROUP)
        equal((before[0], {kind for kind, _ in before[1]} - {GROUP}, (GROUP, group) in before[1]), (0, set(), False))
        equal(alter(connection, GROUP, group, ("share.auto.offset.reset", SET, "earliest")), 0)
        wait_for(lambda: listed(GROUP), (0, before[1] | {(GROUP, group)}))
        equal(alter(connection, GROUP, group, ("share.auto.offset.reset", DELETE, None)), 0)
        wait_for(lambda: listed(GROUP), before)
        equal(listed(1), (35, set()))
        equal(listed(TOPIC, 9), (35, set()))
        equal(connection.call("ListConfigResources", 0)["ConfigResources"], [])


# Brokers' settings while they run.


def alter(connection, kind, name, *changes, **fields):
    """`changes` are (name, operation, value). Returns the error code."""
    configs = [{"Name": key, "ConfigOperation": operation, "Value": value} for key, operation, value in changes]
    resource = {"ResourceType": kind, "ResourceName": name, "Configs": configs}
    body = {"Resources": [resource], "ValidateOnly": False, **fields}
    [answer] = connection.call("IncrementalAlterConfigs", 1, body)["Responses"]
    equal(bool(answer["ErrorMessage"]), answer["ErrorCode"] != 0, "a reason beside the code")
    return answer["ErrorCode"]


def replace(connection, kind, name, *configs):
    resource = {"ResourceType": kind, "ResourceName": name, "Configs": [{"Name": key, "Value": value} for key, value in configs]}
    [answer] = connection.call("AlterConfigs", 2, {"Resources": [resource], "ValidateOnly": False})["Responses"]
    return answer["ErrorCode"]


def wait_for(found, expected):
    """Kafka's broker learns of a setting a moment after its controller has answered, Duramen's of many topics likewise."""
    deadline = time.monotonic() + 10 * checks.SLOWNESS
    while (now := found()) != expected:
        assert time.monotonic() < deadline, f"expected {expected}, got {now}"
        ask_again(0.02)


def test_settings_of_a_running_broker_reach_the_topics_that_do_not_override_them():
    with connect() as connection:
        own, topic = own_id(connection), new_topic(connection)
        other = new_topic(connection, max_message_bytes="1000000")
        name, given = "message.max.bytes", (("message.max.bytes", "1048588", DEFAULT),)

        def behind(kind, resource, key):
            return lambda: layers(rows(connection, kind, resource, key)[key])

        def answer(to):
            return lambda: produce(connection, to, batch([b"x" * 4000]))["ErrorCode"]

        try:
            equal(alter(connection, BROKER, "", (name, SET, "3000")), 0)
            wait_for(behind(TOPIC, topic, "max.message.bytes"), [(name, "3000", OF_CLUSTER), *given])
            equal(behind(BROKER, "", name)(), [(name, "3000", OF_CLUSTER)])
            wait_for(answer(topic), MESSAGE_TOO_LARGE)
            equal(answer(other)(), 0)
            equal(alter(connection, BROKER, own, (name, SET, "5000")), 0)
            wait_for(behind(BROKER, own, name), [(name, "5000", OF_BROKER), (name, "3000", OF_CLUSTER), *given])
            wait_for(answer(topic), 0)
            row = rows(connection, TOPIC, other, "max.message.bytes")["max.message.bytes"]
            equal((row["Value"], row["ConfigSource"]), ("1000000", OF_TOPIC))
            equal(layers(row)[:2], [("max.message.bytes", "1000000", OF_TOPIC), (name, "5000", OF_BROKER)])
            equal(replace(connection, BROKER, own, ("log.retention.bytes", "7000000")), 0)
            wait_for(answer(topic), MESSAGE_TOO_LARGE)
            wait_for(lambda: rows(connection, TOPIC, topic, "retention.bytes")["retention.bytes"]["Value"], "7000000")
        finally:
            equal(replace(connection, BROKER, own), 0)
            equal(alter(connection, BROKER, "", (name, DELETE, None)), 0)
            wait_for(behind(BROKER, own, name), list(given))
        wait_for(answer(topic), 0)


def test_what_a_broker_does_not_change_while_it_runs_is_refused():
    with connect() as connection:
        own = own_id(connection)
        for name in (own, ""):
            for change, error in [
                (("num.partitions", SET, "4"), INVALID_REQUEST),
                (("node.id", SET, "4"), INVALID_REQUEST),
                (("auto.create.topics.enable", SET, "false"), INVALID_REQUEST),
                (("fetch.max.bytes", SET, "2000000"), INVALID_REQUEST),
                (("advertised.listeners", SET, "PLAINTEXT://h:1"), INVALID_REQUEST),
                (("log.retention.hours", SET, "5"), INVALID_REQUEST),
                (("log.retention.ms", SET, "soon"), INVALID_REQUEST),
                (("log.retention.ms", SET, None), INVALID_REQUEST),
                (("log.retention.ms", 7, "1"), INVALID_REQUEST),
                (("log.roll.ms", SET, "0"), INVALID_REQUEST),
                (("log.cleanup.policy", SET, "burn"), INVALID_REQUEST),
                (("max.connections", SET, "-1"), INVALID_REQUEST),
                (("message.max.bytes", APPEND, "5"), INVALID_CONFIG),
                (("no.such.setting", APPEND, "5"), INVALID_CONFIG),
            ]:
                good = ("message.max.bytes", SET, "2000000") if change[0] != "message.max.bytes" else ("log.retention.ms", SET, "1")
                equal((change, alter(connection, BROKER, name, good, change)), (change, error))
            equal(alter(connection, BROKER, name, ("message.max.bytes", SET, "5"), ("message.max.bytes", SET, "6")), INVALID_REQUEST)
            equal(alter(connection, BROKER, name, ("no.such.setting", DELETE, None)), 0)
            equal(alter(connection, BROKER, name, ("log.cleanup.policy", APPEND, "compact"), ValidateOnly=True), 0)
            equal(alter(connection, BROKER, name, ("producer.id.expiration.ms", SET, "100000"), ValidateOnly=True), 0)
            check(alter(connection, BROKER, name, ("no.such.setting", SET, "4"), ValidateOnly=True), "unknown setting of a broker")
            equal(replace(connection, BROKER, name, ("num.partitions", "3")), INVALID_REQUEST)
        equal(alter(connection, BROKER, own, ("min.insync.replicas", SET, "2")), INVALID_CONFIG)
        good = ("message.max.bytes", SET, "2000000")
        for kind, name, error in [
            (BROKER, "77", INVALID_REQUEST),
            (BROKER, "x", INVALID_REQUEST),
            (BROKER_LOGGER, own, INVALID_CONFIG),
            (BROKER_LOGGER, "", INVALID_REQUEST),
            (CLIENT_METRICS, "some", INVALID_REQUEST),
            (CLIENT_METRICS, "", INVALID_REQUEST),
            (GROUP, "some", INVALID_CONFIG),
            (GROUP, "", INVALID_REQUEST),
        ]:
            equal((kind, name, alter(connection, kind, name, good)), (kind, name, error))
        equal(replace(connection, BROKER_LOGGER, own, ("root", "INFO")), INVALID_REQUEST)
        twice = {"ResourceType": BROKER, "ResourceName": own, "Configs": []}
        answers = connection.call("IncrementalAlterConfigs", 1, {"Resources": [twice, twice], "ValidateOnly": False})["Responses"]
        equal([answer["ErrorCode"] for answer in answers], [INVALID_REQUEST] * 2)
        changed = {name for name, row in rows(connection, BROKER, own).items() if row["ConfigSource"] == OF_BROKER}
        equal(changed, set(), "nothing of it was kept")
