"""kafka-topics, kafka-configs."""

import checks
from checks import equal
from console import IDS, MIN_INSYNC, NODES, contains, new_topic, plain, refused, same, tool


def describe(topic):
    """Kafka has min.insync.replicas as a setting of the whole cluster and shows it with every topic (eligible.leader.replicas.version 1)."""
    return tool("kafka-topics", "--describe", "--topic", topic).replace("min.insync.replicas=1,", "")


def test_kafka_topics_creates_describes_widens_and_deletes():
    topic = checks.unique("tools-topics")
    said = tool("kafka-topics", "--create", "--topic", topic, "--partitions", 2, "--config", "retention.ms=3600000")
    same(said, "Created topic T.", T=topic)
    # What the brokers' configuration files set is shown, too.
    of_brokers = "min.insync.replicas=2," if len(NODES) > 1 else ""
    expected = f"""
        Topic: T TopicId: ID PartitionCount: 2 ReplicationFactor: {len(NODES)} Configs: {of_brokers}retention.ms=3600000
        Topic: T Partition: 0 Leader: ONE Replicas: ALL Isr: ALL Elr: LastKnownElr:
        Topic: T Partition: 1 Leader: ONE Replicas: ALL Isr: ALL Elr: LastKnownElr:
    """
    same(describe(topic), expected, T=topic)
    tool("kafka-topics", "--alter", "--topic", topic, "--partitions", 3)
    contains(plain(describe(topic), T=topic), "Topic: T Partition: 2 Leader: ONE Replicas: ALL Isr: ALL")
    contains(refused("kafka-topics", "--alter", "--topic", topic, "--partitions", 2), "InvalidPartitionsException")
    assert topic in tool("kafka-topics", "--list").splitlines()
    tool("kafka-topics", "--delete", "--topic", topic)
    if len(NODES) > 1:
        checks.eventually("all have heard of it", lambda: topic not in tool("kafka-topics", "--list").splitlines())
    assert topic not in tool("kafka-topics", "--list").splitlines()
    contains(refused("kafka-topics", "--describe", "--topic", topic), f"Topic '{topic}' does not exist as expected")


def test_kafka_topics_says_why_a_topic_is_refused():
    topic = new_topic()
    contains(refused("kafka-topics", "--create", "--topic", topic), f"opic '{topic}' already exists")
    equal(tool("kafka-topics", "--create", "--if-not-exists", "--topic", topic), "")
    contains(refused("kafka-topics", "--create", "--topic", "no good"), "InvalidTopicException")
    contains(refused("kafka-topics", "--create", "--topic", f"{topic}-2", "--replication-factor", 9), "InvalidReplicationFactorException")
    contains(refused("kafka-topics", "--create", "--topic", f"{topic}-2", "--config", "retention.ms=soon"), "Invalid value soon")
    contains(refused("kafka-topics", "--delete", "--topic", f"{topic}-2"), "does not exist as expected")


def test_kafka_topics_lists_what_is_wrong_with_partitions():
    healthy, least = new_topic(), checks.unique("tools-least")
    tool("kafka-topics", "--create", "--topic", least, "--replication-factor", MIN_INSYNC)
    # Of all topics on one broker; on three other suites leave some that have fewer replicas than they must.
    which = () if len(NODES) == 1 else ("--topic", f"{healthy}|{least}")
    for flag in ("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions", "--at-min-isr-partitions"):
        found = tool("kafka-topics", "--describe", "--exclude-internal", *which, flag)
        # It has exactly as many replicas as it must, as each partition does on one broker.
        assert bool(found) == (least in found) == (flag == "--at-min-isr-partitions"), f"{flag}: {found}"
        assert (healthy in found) == (bool(found) and len(NODES) == 1), f"{flag}: {found}"


def test_kafka_topics_shows_which_topics_have_settings_of_their_own():
    bare, other = new_topic(), new_topic(max_message_bytes=2000)
    overridden = tool("kafka-topics", "--describe", "--topics-with-overrides")
    # On Kafka every topic has one, min.insync.replicas: see describe. On three brokers, too, since their files set it.
    equal((bare in overridden, other in overridden), (checks.broker_kind() == "kafka" or len(NODES) > 1, True))


def test_kafka_configs_adds_shows_and_deletes_the_settings_of_a_topic():
    topic = new_topic(segment_bytes=2000000)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    said = tool("kafka-configs", "--alter", *entity, "--add-config", "max.message.bytes=2000,cleanup.policy=[compact,delete]")
    same(said, "Completed updating config for topic T.", T=topic)
    expected = """
        Dynamic configs for topic T are:
        cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete, DEFAULT_CONFIG:log.cleanup.policy=delete}
        max.message.bytes=2000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=2000, DEFAULT_CONFIG:message.max.bytes=1048588}
        segment.bytes=2000000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:segment.bytes=2000000, DEFAULT_CONFIG:log.segment.bytes=1073741824}
    """
    same(in_order(tool("kafka-configs", "--describe", *entity)), expected, T=topic)
    tool("kafka-configs", "--alter", *entity, "--delete-config", "cleanup.policy,segment.bytes")
    expected = """
        Dynamic configs for topic T are:
        max.message.bytes=2000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=2000, DEFAULT_CONFIG:message.max.bytes=1048588}
    """
    same(tool("kafka-configs", "--describe", *entity), expected, T=topic)
    every = tool("kafka-configs", "--describe", "--all", *entity)
    contains(every, "cleanup.policy=delete sensitive=false synonyms={DEFAULT_CONFIG:log.cleanup.policy=delete}")
    contains(every, "segment.bytes=1073741824 sensitive=false synonyms={DEFAULT_CONFIG:log.segment.bytes=1073741824}")
    contains(every, f"min.insync.replicas={MIN_INSYNC} sensitive=false")


def in_order(described):
    first, *settings = described.splitlines()
    return "\n".join([first, *sorted(settings)])


def test_kafka_configs_says_why_a_setting_is_refused():
    topic = new_topic()
    entity = ("--entity-type", "topics", "--entity-name", topic)
    contains(refused("kafka-configs", "--alter", *entity, "--add-config", "no.such.thing=1"), "InvalidConfigurationException")
    contains(refused("kafka-configs", "--alter", *entity, "--add-config", "retention.ms=soon"), "InvalidConfigurationException")
    nowhere = ("--entity-type", "topics", "--entity-name", f"{topic}-2")
    contains(tool("kafka-configs", "--describe", *nowhere), f"The topic '{topic}-2' doesn't exist")


def test_kafka_configs_shows_the_settings_of_the_broker():
    for node in IDS:
        described = tool("kafka-configs", "--describe", "--all", "--entity-type", "brokers", "--entity-name", node)
        contains(described, f"All configs for broker {node} are:")
        for setting in ("message.max.bytes=1048588", "num.partitions=1", "auto.create.topics.enable=true", f"broker.id={node}"):
            contains(described, f"  {setting} sensitive=false")


def test_kafka_configs_changes_a_setting_of_the_broker_while_it_runs():
    entity = ("--entity-type", "brokers", "--entity-default")
    tool("kafka-configs", "--alter", *entity, "--add-config", "log.retention.ms=86400000")
    try:
        contains(tool("kafka-configs", "--describe", *entity), "log.retention.ms=86400000")
        topic = new_topic()
        described = tool("kafka-configs", "--describe", "--all", "--entity-type", "topics", "--entity-name", topic)
        contains(described, "retention.ms=86400000 sensitive=false synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=86400000")
    finally:
        tool("kafka-configs", "--alter", *entity, "--delete-config", "log.retention.ms")
    assert "log.retention.ms" not in tool("kafka-configs", "--describe", *entity)
