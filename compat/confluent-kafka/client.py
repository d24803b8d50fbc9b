"""confluent-kafka as the tests use it: clients with settings of the tests, topics, what was produced and read."""

import time
from functools import cache

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import checks
import reach
from checks import equal

MIB = 1 << 20


@cache
def admin(bootstrap=None):
    """Cached, because a client that is collected cancels what it was asked for."""
    return AdminClient(reach.librdkafka(bootstrap))


def new_topic(partitions=1, bootstrap=None, **configs):
    name = checks.unique("rdkafka")
    create(name, partitions, bootstrap, **configs)
    return name


def create(name, partitions=1, bootstrap=None, replication_factor=None, **configs):
    config = {key.replace("_", "."): value for key, value in configs.items()}
    topic = NewTopic(name, partitions, replication_factor or checks.brokers(), config=config)
    admin(bootstrap).create_topics([topic])[name].result(30)


def producer(**settings):
    return Producer({**reach.librdkafka(), "linger.ms": 5, **dotted(settings)})


def dotted(settings):
    """Settings by Kafka's names; a callback's name is the binding's own."""
    return {key if callable(value) else key.replace("_", "."): value for key, value in settings.items()}


class Deliveries:
    """Collects what the broker said about each message, in the order it was said."""

    def __init__(self):
        self.errors, self.messages = [], []

    def __call__(self, error, message):
        (self.errors if error else self.messages).append(error or message)

    def offsets(self):
        assert not self.errors, self.errors
        return [message.offset() for message in self.messages]


def produce(topic, messages, partition=0, **settings):
    """Sends dictionaries of Producer.produce's arguments, waits, and returns what was said."""
    deliveries, sender = Deliveries(), producer(**settings)
    for message in messages:
        sender.produce(topic, partition=partition, on_delivery=deliveries, **message)
    equal(sender.flush(40), 0, "messages still in flight")
    return deliveries


def consumer(bootstrap=None, **settings):
    fixed = {
        **reach.librdkafka(bootstrap),
        "group.id": "assigned-only",
        "enable.auto.commit": False,
        "check.crcs": True,
        "fetch.wait.max.ms": 200,
        "fetch.message.max.bytes": 16 * MIB,
        "receive.message.max.bytes": 64 * MIB,
        "fetch.max.bytes": 48 * MIB,
    }
    return Consumer({**fixed, **dotted(settings)})


def consume(topic, count, partition=0, offset=0, timeout_s=30, **settings):
    """Reads exactly `count` messages from `offset` on."""
    reader = consumer(**settings)
    reader.assign([TopicPartition(topic, partition, offset)])
    found, deadline = [], time.monotonic() + timeout_s * checks.SLOWNESS
    while len(found) < count and time.monotonic() < deadline:
        for message in reader.consume(count - len(found), timeout=0.5):
            assert not message.error(), message.error()
            found.append(message)
    reader.close()
    equal(len(found), count, "messages read")
    return found


def error_code(call):
    try:
        call()
    except KafkaException as error:
        return error.args[0].code()
    return 0
