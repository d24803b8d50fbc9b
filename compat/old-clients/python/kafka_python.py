"""Some version of kafka-python against one broker: kafka_python.py BOOTSTRAP. It has neither idempotence nor transactions."""

from kafka import KafkaConsumer, KafkaProducer, TopicPartition, __version__
from kafka.admin import KafkaAdminClient, NewTopic

import reach
from steps import BOOTSTRAP, BROKERS, TOPIC, VALUES, equal, run, until

# Before 2.0 it has no SCRAM.
REACH = reach.kafka_python(BOOTSTRAP, "PLAIN" if __version__ < "2" else "SCRAM-SHA-512")
FIRST = TopicPartition(TOPIC, 0)


def admin(use):
    client = KafkaAdminClient(**REACH)
    try:
        return use(client)
    finally:
        client.close()


def create():
    admin(lambda it: it.create_topics([NewTopic(TOPIC, 1, BROKERS)]))


def produce():
    for offset, codec in ((0, None), (10, "gzip")):
        producer = KafkaProducer(**REACH, compression_type=codec, acks="all")
        sent = [producer.send(TOPIC, value=value, key=b"key", partition=0) for value in VALUES]
        equal([it.get(30).offset for it in sent], list(range(offset, offset + 10)))
        producer.close()


def consume():
    consumer = KafkaConsumer(TOPIC, **REACH, group_id=TOPIC, auto_offset_reset="earliest", enable_auto_commit=False)
    found = []
    until(lambda: found.extend(record.value for records in consumer.poll(200).values() for record in records) or len(found) >= 20)
    equal(found, VALUES * 2)
    consumer.commit()
    equal(consumer.committed(FIRST), 20)
    consumer.close()


def list_offsets():
    consumer = KafkaConsumer(**REACH)
    equal((consumer.beginning_offsets([FIRST])[FIRST], consumer.end_offsets([FIRST])[FIRST]), (0, 20))
    equal(consumer.offsets_for_times({FIRST: 1})[FIRST].offset, 0)
    consumer.close()


def delete():
    admin(lambda it: it.delete_topics([TOPIC]))


run(
    f"kafka-python {__version__}",
    {
        "creates a topic": create,
        "produces": produce,
        "consumes in a group and commits": consume,
        "lists offsets": list_offsets,
        "deletes a topic": delete,
    },
)
