"""kafka-python as the tests use it: topics, what was produced and read."""

import time

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

import checks
import reach
from checks import equal


def new_topic(partitions=1, name=None, **configs):
    name = name or checks.unique("kafka-python")
    admin = KafkaAdminClient(**reach.kafka_python())
    topic = NewTopic(name, partitions, checks.brokers(), topic_configs={key.replace("_", "."): value for key, value in configs.items()})
    admin.create_topics([topic])
    admin.close()
    return name


def produce(topic, values, **settings):
    producer = KafkaProducer(**reach.kafka_python(), **settings)
    sent = [producer.send(topic, value=value, key=b"k", partition=0, headers=[("h", b"x")], timestamp_ms=1000 + n) for n, value in enumerate(values)]
    offsets = [future.get(30).offset for future in sent]
    producer.close()
    return offsets


def consume(topic, count, offset=0, **settings):
    consumer = KafkaConsumer(**reach.kafka_python(), enable_auto_commit=False, fetch_max_wait_ms=200, **settings)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek(TopicPartition(topic, 0), offset)
    found, deadline = [], time.monotonic() + 30 * checks.SLOWNESS
    while len(found) < count and time.monotonic() < deadline:
        for records in consumer.poll(500).values():
            found += records
    consumer.close()
    equal(len(found), count, "records read")
    return found
