"""Producers that run while something breaks, and the reading of everything afterwards; kill9's judge compares the two."""

import hashlib
import random
import threading
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from judge import Ack, Found, judge

READ_ALL_S = 30
END_S = 30
QUICK = {"retry.backoff.ms": 20, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 300, "log_level": 0}


class Load:
    """An idempotent producer that goes on until it is asked to finish, and never gives a message up.

    Every `large_every`-th message is larger than what the journal takes inline.
    """

    def __init__(self, broker, topic, partition=0, name="load", per_second=300, large_every=60, **settings):
        self.broker, self.topic, self.partition, self.name = broker, topic, partition, name
        self.per_second, self.large_every = per_second, large_every
        self.acks, self.failures = [], []
        self.sent = 0
        self.producer = Producer({
            "bootstrap.servers": broker.bootstrap, "acks": "all", "enable.idempotence": True, "message.timeout.ms": 0, "linger.ms": 2,
            "socket.timeout.ms": 10_000, **QUICK, **{key.replace("_", "."): value for key, value in settings.items()},
        })  # fmt: skip
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        chance = random.Random(self.name)
        while not self.stop.wait(1 / self.per_second):
            large = self.sent % self.large_every == self.large_every - 1
            try:
                self.send(chance.randbytes(700_000 if large else chance.randrange(10, 2000)))
            except BufferError:
                self.producer.poll(0.1)
            self.producer.poll(0)

    def send(self, value):
        number, digest = self.sent, hashlib.sha256(value).hexdigest()

        def told(error, message):
            if error:
                self.failures.append(f"{self.name}:{number}: {error}")
            else:
                self.acks.append(Ack(number, self.partition, message.offset(), digest))

        self.producer.produce(self.topic, value, key=f"{self.name}:{number}", partition=self.partition, on_delivery=told)
        self.sent += 1

    def wait_for_acks(self, more=20, timeout_s=15):
        """Waits until so many more messages are acknowledged than now, by a broker that lives."""
        wanted, deadline = len(self.acks) + more, time.monotonic() + timeout_s
        while len(self.acks) < wanted:
            assert self.broker.is_alive(), f"ended with {self.broker.process.returncode}\n{self.broker.log_tail(3)}"
            assert time.monotonic() < deadline, f"{self.name}: {len(self.acks)} of {wanted} acknowledgements within {timeout_s} s"
            time.sleep(0.02)

    def finish(self):
        self.stop.set()
        self.thread.join()
        left = self.producer.flush(END_S)
        assert not self.failures, f"told of failures: {self.failures[:5]}"
        assert left == 0 and len(self.acks) == self.sent, f"{self.name} sent {self.sent}, {len(self.acks)} were acknowledged, {left} are left"


def read_all(broker, topic, partitions=1):
    """Every message of a topic, partition by partition."""
    consumer = Consumer({
        "bootstrap.servers": broker.bootstrap, "group.id": "assigned-only", "enable.auto.commit": False, "check.crcs": True,
        "auto.offset.reset": "error", "fetch.wait.max.ms": 50, **QUICK,
    })  # fmt: skip
    found = []
    for partition in range(partitions):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)
        consumer.assign([TopicPartition(topic, partition, low)])
        at, deadline = low, time.monotonic() + READ_ALL_S
        while at < high:
            assert time.monotonic() < deadline, f"{topic}-{partition} was read up to {at} of {high} within {READ_ALL_S} s"
            for message in consumer.consume(1000, timeout=1):
                if message.error():
                    raise KafkaException(message.error())
                digest = hashlib.sha256(message.value()).hexdigest()
                found.append(Found(partition, message.offset(), message.key().decode(), digest))
                at = message.offset() + 1
    consumer.close()
    return found


def assert_nothing_lost(broker, topic, loads, partitions=1):
    """Everything that was acknowledged is there, at its offset, once and in order."""
    found = read_all(broker, topic, partitions)
    wrong = judge({load.name: load.acks for load in loads}, found, idempotent=[load.name for load in loads])
    assert not wrong, "\n".join(wrong[:20])
    assert all(load.acks for load in loads), "nothing was acknowledged, so nothing was tested"
    return found
