"""A client of librdkafka's for chaos: librdkafka.py BOOTSTRAP TOPIC PARTITIONS NAME [USER PASSWORD]

An idempotent producer that never gives up, a consumer of all partitions from their beginning, and one who asks where they
end, until standard input ends. Each prints what it did as lines that history.go understands. All times are CLOCK_MONOTONIC.
"""

import faulthandler
import hashlib
import json
import logging
import os
import random
import sys
import threading
import time
import zlib

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

PER_SECOND = 120
FLUSH_S = 60
# What history.go says for an append that was acknowledged in one with a later one, so that nobody knows its offset.
UNTOLD = -2
COMMON = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 500, "socket.timeout.ms": 4000}

# Its reasons for a new epoch of the producer: records of which it does not know the end may then be sent anew.
TOLD = ("bump", "drain", "ERRSEQ", "UNKPID", "DUPSEQ")

# Clients that have nothing left to say. librdkafka may wait for ever to close one whose broker is gone (its issue 4519).
LEFT_OPEN = []

stop = threading.Event()


def value_of(name):
    """See values.go."""
    digest, crc = hashlib.sha256(name.encode()).hexdigest().encode(), zlib.crc32(name.encode())
    size = 100_000 + crc % 500_000 if crc % 100 == 99 else 10 + crc % 2000
    return (digest * (size // len(digest) + 1))[:size]


def name_of(message):
    name = message.key().decode()
    if message.value() != value_of(name):
        return f"{name} damaged: {hashlib.sha256(message.value()).hexdigest()}"
    return name


def say(client, kind, partition, call, outcome="ok", error=None, **more):
    op = {"client": client, "kind": kind, "partition": partition, "call": call, "return": time.monotonic_ns(), "outcome": outcome}
    if error is not None:
        op |= {"error": str(error), "retriable": is_of_the_way(error), "code": max(error.code(), 0)}
    # One write: three threads print.
    print(json.dumps(op | more) + "\n", end="", flush=True)


def is_of_the_way(error):
    """librdkafka's own errors are numbers below 0. Most are of the way to the broker; these end a client's work."""
    ends = (KafkaError._FATAL, KafkaError._BAD_MSG, KafkaError._INCONSISTENT, KafkaError._AUTO_OFFSET_RESET)
    return error.code() < 0 and error.code() not in (*ends, KafkaError._GAPLESS_GUARANTEE, KafkaError._LOG_TRUNCATION)


class Reasons(logging.Handler):
    def emit(self, record):
        text = record.getMessage()
        if any(it in text for it in TOLD):
            print(time.monotonic_ns(), text, file=sys.stderr, flush=True)


def logger():
    told = logging.getLogger("producer")
    told.setLevel(logging.DEBUG)
    told.propagate = False
    told.addHandler(Reasons())
    return told


def produce(bootstrap, topic, partitions, name):
    settings = {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "message.timeout.ms": 0, "linger.ms": 5}
    pace = {"retry.backoff.ms": 20, "request.timeout.ms": 3000, "queue.buffering.max.messages": 100}
    producer = Producer(settings | pace | COMMON | {"debug": "eos", "log_level": 7}, logger=logger())
    sent, untold = 0, {}
    while not stop.wait(1 / PER_SECOND):
        partition, value, call = random.randrange(partitions), f"{name}:{sent}", time.monotonic_ns()

        def told(error, message, partition=partition, value=value, call=call, number=sent):
            del untold[number]
            offset = -1 if error else UNTOLD if message.offset() is None else message.offset()
            told = {"value": value, "number": number, "offset": offset}
            say(name, "append", partition, call, "unknown" if error else "ok", error, **told)

        try:
            producer.produce(topic, value_of(value), key=value, partition=partition, on_delivery=told)
            untold[sent] = partition, value, call
            sent += 1
        except BufferError:
            producer.poll(0.05)
        producer.poll(0)
    producer.flush(FLUSH_S)
    for number, (partition, value, call) in sorted(untold.items()):
        say(name, "append", partition, call, "unknown", KafkaError(KafkaError._TIMED_OUT), value=value, number=number, offset=-1)
    LEFT_OPEN.append(producer)


def consumer(bootstrap, name):
    settings = {"bootstrap.servers": bootstrap, "group.id": name, "enable.auto.commit": False, "check.crcs": True}
    pace = {"auto.offset.reset": "error", "fetch.wait.max.ms": 100, "isolation.level": "read_uncommitted"}
    return Consumer(settings | pace | COMMON)


def consume(bootstrap, topic, partitions, name):
    reader = consumer(bootstrap, name)
    reader.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    while not stop.is_set():
        call, seen = time.monotonic_ns(), {}
        for message in reader.consume(500, timeout=0.2):
            if message.error():
                say(name, "read", message.partition(), call, "unknown", message.error())
            else:
                seen.setdefault(message.partition(), []).append(message)
        for partition, messages in seen.items():
            say(name, "read", partition, call, offset=messages[0].offset(), values=[name_of(it) for it in messages])
    LEFT_OPEN.append(reader)


def ask(bootstrap, topic, partitions, name):
    asker = consumer(bootstrap, name)
    while not stop.wait(0.1):
        partition, call = random.randrange(partitions), time.monotonic_ns()
        try:
            _, end = asker.get_watermark_offsets(TopicPartition(topic, partition), timeout=3, cached=False)
            say(name, "end", partition, call, offset=end)
        except KafkaException as failure:
            say(name, "end", partition, call, "unknown", failure.args[0])
    LEFT_OPEN.append(asker)


def main():
    faulthandler.enable()
    bootstrap, topic, partitions, name, *login = sys.argv[1:]
    if login:
        user, password = login
        COMMON.update({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": user, "sasl.password": password})
    work = [produce, consume, ask]
    names = [name, name + "-reader", name + "-asker"]
    threads = [threading.Thread(target=each, args=(bootstrap, topic, int(partitions), it)) for each, it in zip(work, names)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()
    sys.stdout.flush()
    os._exit(0)


main()
