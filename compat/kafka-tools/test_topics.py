"""kafka-topics, kafka-configs."""

import harness
from console import contains, new_topic, plain, refused, same, tool
from harness import equal, test


def describe(topic):
    """Kafka has min.insync.replicas as a setting of the whole cluster and shows it with every topic (eligible.leader.replicas.version 1)."""
    return tool("kafka-topics", "--describe", "--topic", topic).replace("min.insync.replicas=1,", "")


@test
def kafka_topics_creates_describes_widens_and_deletes():
    topic = harness.unique("tools-topics")
    said = tool("kafka-topics", "--create", "--topic", topic, "--partitions", 2, "--config", "retention.ms=3600000")
    same(said, "Created topic T.", T=topic)
    expected = """
        Topic: T TopicId: ID PartitionCount: 2 ReplicationFactor: 1 Configs: retention.ms=3600000
        Topic: T Partition: 0 Leader: 1 Replicas: 1 Isr: 1 Elr: LastKnownElr:
        Topic: T Partition: 1 Leader: 1 Replicas: 1 Isr: 1 Elr: LastKnownElr:
    """
    same(describe(topic), expected, T=topic)
    tool("kafka-topics", "--alter", "--topic", topic, "--partitions", 3)
    contains(plain(describe(topic), T=topic), "Topic: T Partition: 2 Leader: 1 Replicas: 1 Isr: 1")
    contains(refused("kafka-topics", "--alter", "--topic", topic, "--partitions", 2), "InvalidPartitionsException")
    assert topic in tool("kafka-topics", "--list").splitlines()
    tool("kafka-topics", "--delete", "--topic", topic)
    assert topic not in tool("kafka-topics", "--list").splitlines()
    contains(refused("kafka-topics", "--describe", "--topic", topic), f"Topic '{topic}' does not exist as expected")


@test
def kafka_topics_says_why_a_topic_is_refused():
    topic = new_topic()
    contains(refused("kafka-topics", "--create", "--topic", topic), f"opic '{topic}' already exists")
    equal(tool("kafka-topics", "--create", "--if-not-exists", "--topic", topic), "")
    contains(refused("kafka-topics", "--create", "--topic", "no good"), "InvalidTopicException")
    contains(refused("kafka-topics", "--create", "--topic", f"{topic}-2", "--replication-factor", 3), "InvalidReplicationFactorException")
    contains(refused("kafka-topics", "--create", "--topic", f"{topic}-2", "--config", "retention.ms=soon"), "Invalid value soon")
    contains(refused("kafka-topics", "--delete", "--topic", f"{topic}-2"), "does not exist as expected")


@test
def kafka_topics_lists_what_is_wrong_with_partitions():
    new_topic()
    for flag in ("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions", "--at-min-isr-partitions"):
        found = tool("kafka-topics", "--describe", "--exclude-internal", flag)
        # With one replica each partition has exactly as many as it must.
        assert bool(found) == (flag == "--at-min-isr-partitions"), f"{flag}: {found}"


@test
def kafka_topics_shows_which_topics_have_settings_of_their_own():
    bare, other = new_topic(), new_topic(max_message_bytes=2000)
    overridden = tool("kafka-topics", "--describe", "--topics-with-overrides")
    # On Kafka every topic has one, min.insync.replicas: see describe.
    equal((bare in overridden, other in overridden), (harness.broker_kind() == "kafka", True))


@test
def kafka_configs_adds_shows_and_deletes_the_settings_of_a_topic():
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
    contains(every, "min.insync.replicas=1 sensitive=false")


def in_order(described):
    first, *settings = described.splitlines()
    return "\n".join([first, *sorted(settings)])


@test
def kafka_configs_says_why_a_setting_is_refused():
    topic = new_topic()
    entity = ("--entity-type", "topics", "--entity-name", topic)
    contains(refused("kafka-configs", "--alter", *entity, "--add-config", "no.such.thing=1"), "InvalidConfigurationException")
    contains(refused("kafka-configs", "--alter", *entity, "--add-config", "retention.ms=soon"), "InvalidConfigurationException")
    nowhere = ("--entity-type", "topics", "--entity-name", f"{topic}-2")
    contains(tool("kafka-configs", "--describe", *nowhere), f"The topic '{topic}-2' doesn't exist")


@test
def kafka_configs_shows_the_settings_of_the_broker():
    described = tool("kafka-configs", "--describe", "--all", "--entity-type", "brokers", "--entity-name", 1)
    contains(described, "All configs for broker 1 are:")
    for setting in ("message.max.bytes=1048588", "num.partitions=1", "auto.create.topics.enable=true"):
        contains(described, f"  {setting} sensitive=false")


@test
def kafka_configs_changes_a_setting_of_the_broker_while_it_runs():
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
