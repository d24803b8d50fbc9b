"""Which values settings take: a table of them by CreateTopics and IncrementalAlterConfigs, which validate only."""

import checks
from calls import connect, delete_records, new_topic, produce
from batch import batch
from checks import equal
from differences import check
from test_settings import BROKER, GROUP, OF_TOPIC, SET, APPEND, SUBTRACT, TOPIC, alter, layers, own_id, rows, wait_for

INVALID_CONFIG, INVALID_REQUEST = 40, 42
INT, LONG = 2**31 - 1, 2**63 - 1

# Each of these is (values that are taken, values that are refused).
BOOLEAN = (["true", "false", "True", "FALSE", "tRuE", " true "], ["", "yes", "1", "0", "on", "t"])
RATIO = (["0", "1", "0.5", " 0.5 ", ".5", "1.", "1e-3", "+0.5", "-0.0"], ["", "-0.1", "1.1", "nan", "inf", "Infinity", "half"])
POLICIES = (
    ["", " ", "compact", "delete", "compact,delete", "delete,compact", " compact , delete ", "compact,compact"],
    ["nonsense", ",", "compact,", ",compact", "Compact", "[compact]", "none", "compact,none"],
)
REPLICAS = (
    ["", " ", ",", "*", "0:1", "0:1,1:2", "0:1, 1:2", "0:1,", "0:1,,1:2", "0:1,0:1"],
    ["nonsense", "none", "0", "a:b", "0:-1", "*,0:1", "1:2:3", "0: 1"],
)


def numbers(least, most, but=()):
    some = max(least, 5)
    taken = [least, most, f" {some} ", f"+{some}"]
    refused = [*but, most + 1, "", "soon", f"{some}.0", "5e3", "0x10", f"{some}L", f"1_{some}"]
    if least > -LONG - 1:
        refused.append(least - 1)
    return [str(it) for it in taken], [str(it) for it in refused]


def words(*taken, refused=()):
    return [*taken, f" {taken[0]} "], ["", "nonsense", *refused]


TOPICS = {
    "cleanup.policy": POLICIES,
    "compression.gzip.level": numbers(-1, 9, but=[0]),
    "compression.lz4.level": numbers(1, 17),
    "compression.type": words("producer", refused=["Producer", "none", "GZIP"]),
    "compression.zstd.level": numbers(-131_072, 22),
    "delete.retention.ms": numbers(0, LONG),
    "file.delete.delay.ms": numbers(0, LONG),
    "flush.messages": numbers(1, LONG),
    "flush.ms": numbers(0, LONG),
    "follower.replication.throttled.replicas": REPLICAS,
    "index.interval.bytes": numbers(0, INT),
    "leader.replication.throttled.replicas": REPLICAS,
    "local.retention.bytes": numbers(-2, LONG),
    "local.retention.ms": numbers(-2, LONG),
    "max.compaction.lag.ms": numbers(1, LONG),
    "max.message.bytes": numbers(0, INT),
    "message.timestamp.after.max.ms": numbers(0, LONG),
    "message.timestamp.before.max.ms": numbers(0, LONG),
    "message.timestamp.type": words("CreateTime", "LogAppendTime", refused=["createtime", "NoTimestampType"]),
    "min.cleanable.dirty.ratio": RATIO,
    "min.compaction.lag.ms": numbers(0, LONG),
    "min.insync.replicas": numbers(1, INT),
    "preallocate": BOOLEAN,
    "remote.log.copy.disable": BOOLEAN,
    "remote.log.delete.on.disable": BOOLEAN,
    "remote.storage.enable": (["false", "FALSE"], ["true", "True", "", "yes", "0"]),
    "retention.bytes": numbers(-LONG - 1, LONG),
    "retention.ms": numbers(-1, LONG),
    "segment.bytes": (["1048576", "2147483647", " 3600000 "], ["", "0", "2147483648", "1048576.0"]),
    "segment.index.bytes": numbers(4, INT),
    "segment.jitter.ms": numbers(0, LONG),
    "segment.ms": numbers(1, LONG),
    "unclean.leader.election.enable": BOOLEAN,
}

NODES = {
    "compression.gzip.level": TOPICS["compression.gzip.level"],
    "compression.lz4.level": TOPICS["compression.lz4.level"],
    "compression.type": TOPICS["compression.type"],
    "compression.zstd.level": TOPICS["compression.zstd.level"],
    "log.cleaner.delete.retention.ms": numbers(0, LONG),
    "log.cleaner.max.compaction.lag.ms": numbers(1, LONG),
    "log.cleaner.min.cleanable.ratio": RATIO,
    "log.cleaner.min.compaction.lag.ms": numbers(0, LONG),
    "log.cleanup.policy": POLICIES,
    "log.flush.interval.messages": numbers(1, LONG),
    "log.index.size.max.bytes": numbers(4, INT),
    "log.local.retention.bytes": numbers(-2, LONG),
    "log.local.retention.ms": (["-2", "5000"], ["", "-3", "soon"]),
    "log.message.timestamp.after.max.ms": numbers(0, LONG),
    "log.message.timestamp.before.max.ms": numbers(0, LONG),
    "log.message.timestamp.type": TOPICS["message.timestamp.type"],
    "log.preallocate": BOOLEAN,
    "log.retention.bytes": numbers(-LONG - 1, LONG),
    "log.retention.ms": numbers(-LONG - 1, LONG, but=[0]),
    "log.roll.jitter.ms": numbers(0, LONG),
    "log.roll.ms": numbers(1, LONG),
    "log.segment.bytes": TOPICS["segment.bytes"],
    "log.segment.delete.delay.ms": numbers(0, LONG),
    "message.max.bytes": numbers(0, INT),
    "min.insync.replicas": numbers(1, INT),
    "producer.id.expiration.ms": numbers(1, INT),
    "unclean.leader.election.enable": BOOLEAN,
}

# With the bounds that `broker.py` sets.
GROUPS = {
    "consumer.assignment.interval.ms": numbers(0, 15_000),
    "consumer.heartbeat.interval.ms": (["200", "5000", " 500 ", "+500"], ["", "199", "15001", "soon"]),
    "consumer.session.timeout.ms": numbers(6000, 60_000),
    "share.auto.offset.reset": (
        ["earliest", "latest", " latest ", "by_duration:PT1H", "by_duration:P1D", "by_duration:PT0S"],
        ["", "Earliest", "none", "by_duration", "by_duration:", "by_duration:PT-1H", "by_duration:-PT1H", "by_duration:P1Y", "BY_DURATION:PT1H"],
    ),
    "share.delivery.count.limit": numbers(2, 10),
    "share.heartbeat.interval.ms": (["200", "5000", " 500 ", "+500"], ["", "199", "15001", "soon"]),
    "share.isolation.level": (["read_committed", "read_uncommitted"], ["", "nonsense", "READ_COMMITTED", "Read_Committed"]),
    "share.record.lock.duration.ms": numbers(1000, 60_000),
    "share.renew.acknowledge.enable": BOOLEAN,
    "share.session.timeout.ms": numbers(6000, 60_000),
}

# What a broker is started with, and changes while it runs; and what it does not change.
LIVE = sorted([*NODES, "log.index.interval.bytes"])
LIVE_IN_KAFKA = [
    "group.consumer.assignment.interval.ms",
    "log.index.interval.bytes",
    "max.connection.creation.rate",
    "max.connections",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
]


def try_create(connection, **configs):
    entries = [{"Name": name.replace("_", "."), "Value": value} for name, value in configs.items()]
    topic = {"Name": checks.unique("values"), "NumPartitions": 1, "ReplicationFactor": 1, "Configs": entries}
    return connection.call("CreateTopics", 7, {"Topics": [topic], "timeoutMs": 10_000, "validateOnly": True})["Topics"][0]["ErrorCode"]


def try_alter(connection, kind, resource, *changes):
    return alter(connection, kind, resource, *changes, ValidateOnly=True)


def compare(table, refusal, code):
    """All that is answered otherwise, at once. `code` is of a setting and a value."""
    wrong = []
    for name, (taken, refused) in table.items():
        for value, expected in [*((it, 0) for it in taken), *((it, refusal) for it in refused)]:
            found = code(name, value)
            if name == "compression.lz4.level" and not expected:
                check(found, "lz4 level that is not the default", value)
            elif found != expected:
                wrong.append((name, value, found))
    equal(wrong, [])


def test_settings_of_topics_take_the_values_that_kafka_takes():
    with connect() as connection:
        topic = new_topic(connection)
        compare(TOPICS, INVALID_CONFIG, lambda name, value: try_create(connection, **{name: value}))
        compare(TOPICS, INVALID_CONFIG, lambda name, value: try_alter(connection, TOPIC, topic, (name, SET, value)))
        for name in TOPICS:
            equal((name, try_create(connection, **{name: None})), (name, INVALID_CONFIG))
        for codec in ("uncompressed", "gzip", "snappy", "lz4", "zstd"):
            equal(try_create(connection, **{"compression.type": codec}), 0, codec)
        for value in ("NaN", "0.5d", "0.5f", "0x1p-1"):
            check(try_create(connection, **{"min.cleanable.dirty.ratio": value}), "fraction that only Java reads", value)
        for value in ("4096", "1048575"):
            check(try_create(connection, **{"segment.bytes": value}), "segments below a megabyte", value)


def test_settings_of_nodes_take_the_values_that_kafka_takes():
    with connect() as connection:
        own = own_id(connection)
        for resource in (own, ""):
            table = {name: values for name, values in NODES.items() if (name, resource) != ("min.insync.replicas", own)}
            compare(table, INVALID_REQUEST, lambda name, value: try_alter(connection, BROKER, resource, (name, SET, value)))
        check(try_alter(connection, BROKER, own, ("log.local.retention.ms", SET, "-1")), "local retention beside retention")
        equal(try_alter(connection, BROKER, own, ("compression.type", SET, "uncompressed")), 0, "node with a codec of its own")


def test_settings_of_groups_take_the_values_that_kafka_takes():
    with connect() as connection:
        compare(GROUPS, INVALID_CONFIG, lambda name, value: try_alter(connection, GROUP, "some", (name, SET, value)))


def test_the_same_settings_of_a_node_are_live():
    with connect() as connection:
        own = own_id(connection)
        values = {"max.connections.per.ip.overrides": "10.0.0.1:5"}
        for name, row in rows(connection, BROKER, own).items():
            if name not in LIVE and name not in LIVE_IN_KAFKA and name not in FIXED:
                continue
            value = values.get(name) or row["Value"] or "604800000"
            code = try_alter(connection, BROKER, "", (name, SET, value))
            if name in LIVE_IN_KAFKA:
                check(code, "setting that is live in Kafka only", name)
            else:
                equal((name, code), (name, INVALID_REQUEST if name in FIXED else 0))


FIXED = """auto.create.topics.enable auto.leader.rebalance.enable connections.max.idle.ms default.replication.factor delete.topic.enable
fetch.max.bytes group.consumer.assignors group.consumer.heartbeat.interval.ms group.consumer.max.size group.consumer.migration.policy
group.consumer.session.timeout.ms group.initial.rebalance.delay.ms group.max.session.timeout.ms group.max.size group.min.session.timeout.ms
group.share.delivery.count.limit group.share.max.size leader.imbalance.check.interval.seconds log.retention.check.interval.ms node.id
num.partitions offset.metadata.max.bytes offsets.retention.check.interval.ms offsets.retention.minutes offsets.topic.num.partitions
offsets.topic.segment.bytes producer.id.expiration.check.interval.ms queued.max.request.bytes socket.request.max.bytes
socket.send.buffer.bytes transaction.max.timeout.ms transaction.state.log.num.partitions transactional.id.expiration.ms""".split()


def test_the_shortest_compaction_lag_is_no_longer_than_the_longest():
    with connect() as connection:
        own, least, most = own_id(connection), "min.compaction.lag.ms", "max.compaction.lag.ms"
        equal(try_create(connection, **{least: "5", most: "5"}), 0)
        equal(try_create(connection, **{least: "10", most: "5"}), INVALID_CONFIG)
        topic = new_topic(connection, max_compaction_lag_ms="100")
        equal(try_alter(connection, TOPIC, topic, (least, SET, "100")), 0)
        equal(try_alter(connection, TOPIC, topic, (least, SET, "101")), INVALID_CONFIG)
        equal(try_alter(connection, TOPIC, topic, (least, SET, "101"), (most, SET, "101")), 0)
        for name in (own, ""):
            of_node = [(f"log.cleaner.{least}", SET, "10"), (f"log.cleaner.{most}", SET, "5")]
            equal(try_alter(connection, BROKER, name, *of_node), 0, "a node's are not compared with each other")


def test_lists_are_added_to_and_taken_from_as_in_kafka():
    with connect() as connection:
        topic = new_topic(connection)
        for name, operation, value, expected in [
            ("cleanup.policy", APPEND, "compact", 0),
            ("cleanup.policy", APPEND, "delete", 0),
            ("cleanup.policy", APPEND, "", INVALID_CONFIG),
            ("cleanup.policy", APPEND, "nonsense", INVALID_CONFIG),
            ("cleanup.policy", SUBTRACT, "delete", 0),
            ("cleanup.policy", SUBTRACT, "", 0),
            ("cleanup.policy", SUBTRACT, "nonsense", 0),
            ("leader.replication.throttled.replicas", APPEND, "0:1", 0),
            ("leader.replication.throttled.replicas", APPEND, "x", INVALID_CONFIG),
        ]:
            equal((name, operation, value, try_alter(connection, TOPIC, topic, (name, operation, value))), (name, operation, value, expected))


def test_values_are_shown_as_their_type_has_them():
    with connect() as connection:
        topic = new_topic(connection, preallocate=" FALSE ", retention_ms="+7000")
        shown = rows(connection, TOPIC, topic, "preallocate", "retention.ms")
        equal([shown[name]["Value"] for name in ("preallocate", "retention.ms")], ["false", "7000"])
        for name, value, expected in [
            ("preallocate", "True", "true"),
            ("retention.ms", " +5000 ", "5000"),
            ("retention.ms", "-0", "0"),
            ("retention.bytes", "-77", "-77"),
            ("min.cleanable.dirty.ratio", ".5", "0.5"),
            ("min.cleanable.dirty.ratio", "1", "1.0"),
            ("cleanup.policy", " compact , delete ", "compact,delete"),
            ("cleanup.policy", "delete,delete", "delete"),
            ("cleanup.policy", "", ""),
            ("leader.replication.throttled.replicas", "0:1, ,1:2,", "0:1,,1:2,"),
            ("leader.replication.throttled.replicas", "*", "*"),
            ("message.timestamp.type", " LogAppendTime ", "LogAppendTime"),
        ]:
            equal((name, value, alter(connection, TOPIC, topic, (name, SET, value))), (name, value, 0))
            wait_for(lambda: layers(rows(connection, TOPIC, topic, name)[name])[0], (name, expected, OF_TOPIC))


def test_records_of_a_topic_without_a_cleanup_policy_are_deleted_by_request():
    with connect() as connection:
        topic = new_topic(connection, cleanup_policy="")
        equal(produce(connection, topic, batch([b"x"] * 3))["ErrorCode"], 0)
        answer = delete_records(connection, topic, 2)
        equal((answer["ErrorCode"], answer["LowWatermark"]), (0, 2))
