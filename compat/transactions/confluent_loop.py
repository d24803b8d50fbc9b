"""Reads, writes and commits by transactions until its standard input ends: confluent_loop.py BOOTSTRAP SOURCE TARGET GROUP ID

What it does and prints is what test_transactions.py says.
"""

import os
import random
import sys
import threading
import time
import traceback

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, Producer, TopicPartition

AT_ONCE, PAUSE_S = 10, 0.005
TIMEOUT_S = 20
# `send_offsets_to_transaction` may not return for minutes, whatever its timeout, after a broker was killed under it.
PATIENCE_S = 6

bootstrap, source, target, group, transactional_id = sys.argv[1:]
settings = {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 300, "log_level": 0}
stop = threading.Event()
last_turn = time.monotonic()


def until_input_ends():
    sys.stdin.read()
    stop.set()


def give_up_when_stuck():
    while time.monotonic() - last_turn < PATIENCE_S:
        time.sleep(0.2)
    fail("nothing has happened for a while")


def fail(why):
    """The clients are not destroyed: with a broker that is away librdkafka may wait for ever there, too."""
    print(why, file=sys.stderr, flush=True)
    os._exit(1)


def again(call, *arguments):
    """As librdkafka wants it: what is retriable is called again."""
    while True:
        try:
            return call(*arguments, TIMEOUT_S)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def go_back(consumer):
    [committed] = again(consumer.committed, [TopicPartition(source, 0)])
    assert committed.error is None, committed.error
    consumer.assign([TopicPartition(source, 0, 0 if committed.offset == OFFSET_INVALID else committed.offset)])


def loop():
    global last_turn
    for watch in (until_input_ends, give_up_when_stuck):
        threading.Thread(target=watch, daemon=True).start()
    producer = Producer({**settings, "transactional.id": transactional_id, "transaction.timeout.ms": 20_000, "linger.ms": 1})
    consumer = Consumer({**settings, "group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed"})
    again(producer.init_transactions)
    go_back(consumer)
    count = 0
    while not stop.is_set():
        last_turn = time.monotonic()
        messages = [message for message in consumer.consume(AT_ONCE, timeout=0.1) if not message.error()]
        if not messages:
            continue
        attempt, count = f"{os.getpid()}.{count}", count + 1
        after = messages[-1].offset() + 1
        producer.begin_transaction()
        try:
            for message in messages:
                for partition in range(2):
                    producer.produce(target, value=f"{message.value().decode()} {attempt}", partition=partition)
            again(producer.send_offsets_to_transaction, [TopicPartition(source, 0, after)], consumer.consumer_group_metadata())
            commits = random.randrange(5) > 0
            if commits:
                again(producer.commit_transaction)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            commits = False
        if commits:
            print(f"committed {attempt} {after}", flush=True)
        else:
            producer.flush(TIMEOUT_S)
            again(producer.abort_transaction)
            print(f"aborted {attempt}", flush=True)
            go_back(consumer)
        time.sleep(PAUSE_S)


try:
    loop()
except Exception:
    fail(traceback.format_exc())
