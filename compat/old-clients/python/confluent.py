"""Some version of librdkafka behind confluent-kafka against one broker: confluent.py BOOTSTRAP."""

import confluent_kafka
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import reach
from steps import BOOTSTRAP, BROKERS, TOPIC, VALUES, equal, run, until

# The SCRAM of a librdkafka before 2.6.1 is refused (../../FINDINGS.md).
REACH = reach.librdkafka(BOOTSTRAP, "PLAIN")
ADMIN = AdminClient(REACH)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def consumer(group, **settings):
    return Consumer({**REACH, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, **settings})


def read(client, count):
    found = []

    def poll():
        message = client.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message.value())
        return len(found) >= count

    until(poll)
    return found


def create():
    ADMIN.create_topics([NewTopic(TOPIC, 1, BROKERS)])[TOPIC].result(30)


def produce():
    for codec in CODECS:
        producer = Producer({**REACH, "enable.idempotence": True, "compression.type": codec})
        for value in VALUES:
            producer.produce(TOPIC, value, b"key", 0)
        equal(producer.flush(30), 0)


def consume():
    client = consumer(TOPIC)
    client.subscribe([TOPIC])
    equal(read(client, 50), VALUES * 5)
    client.commit(asynchronous=False)
    equal(client.committed([TopicPartition(TOPIC, 0)], 30)[0].offset, 50)
    client.close()


def list_offsets():
    client = consumer(TOPIC)
    equal(client.get_watermark_offsets(TopicPartition(TOPIC, 0), 30), (0, 50))
    equal(client.offsets_for_times([TopicPartition(TOPIC, 0, 1)], 30)[0].offset, 0)
    client.close()


def transact():
    group = TOPIC + "-offsets"
    client = consumer(group)
    producer = Producer({**REACH, "transactional.id": TOPIC})
    producer.init_transactions(30)
    for number in range(4):
        producer.begin_transaction()
        producer.produce(TOPIC, b"committed" if number % 2 == 0 else b"aborted", b"key", 0)
        producer.flush(30)
        producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, number + 1)], client.consumer_group_metadata(), 30)
        if number % 2 == 0:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    equal(client.committed([TopicPartition(TOPIC, 0)], 30)[0].offset, 3)
    client.assign([TopicPartition(TOPIC, 0, 50)])
    equal(read(client, 2), [b"committed"] * 2)
    client.close()


def delete():
    ADMIN.delete_topics([TOPIC])[TOPIC].result(30)


run(
    f"confluent-kafka {confluent_kafka.version()[0]}, librdkafka {confluent_kafka.libversion()[0]},",
    {
        "creates a topic": create,
        "produces with idempotence in every codec": produce,
        "consumes in a group and commits": consume,
        "lists offsets": list_offsets,
        "commits and aborts transactions, and offsets with them": transact,
        "deletes a topic": delete,
    },
)
