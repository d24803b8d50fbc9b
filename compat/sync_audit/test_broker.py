"""Audits a real broker with a real client: BROKER_KIND is duramen or kafka.

Duramen runs under strace three times: on an empty directory; killed, again on what it left; and with its syncs taken away,
which the audit must find. confluent-kafka produces small, middle and large batches with acks=all to several partitions over
several connections; transactions go step by step over another one.

Kafka is there to try the audit on another broker: told to sync before it answers it must pass, and as it comes it must not.
"""

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from trace import events, strace, wait_for_end

import pytest
from confluent_kafka import Producer

import calls
import checks
from audit import CELL, LAYOUTS, Audit, cells
from broker import free_port, start
from transactional import Transactional, until_settled

PARTITIONS = 8
TRANSACTIONS = 10
# How many messages of how many bytes; the last kind is far above what fits a journal's record.
MESSAGES = [(300, 200), (150, 3_000), (40, 40_000), (12, 800_000)]
SYNCING_KAFKA = {"flush.messages": "1", "broker.session.timeout.ms": "6000"}


@dataclass
class Run:
    settings: dict
    syncs_taken_away: bool = False
    # Whether the audit must find fault, instead of none.
    at_fault: bool = False


RUNS = {
    "duramen": [Run({}), Run({}), Run({}, syncs_taken_away=True, at_fault=True)],
    "kafka": [Run(SYNCING_KAFKA), Run({}, at_fault=True)],
}


def produce(bootstrap, topic, first_id):
    """Sends every kind of message over three connections and returns the ids that were acknowledged."""
    fixed = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "compression.type": "none", "message.timeout.ms": 60_000, "log_level": 3}
    producers = [
        Producer({**fixed, "enable.idempotence": True}),
        Producer({**fixed, "max.in.flight.requests.per.connection": 1}),
        Producer({**fixed, "batch.num.messages": 1}),
    ]
    acknowledged = set()
    message_id = first_id
    for count, size in MESSAGES:
        for _ in range(count):

            def told(error, _message, message_id=message_id):
                assert error is None, error
                acknowledged.add(message_id)

            producer = producers[message_id % len(producers)]
            producer.produce(topic, cells(message_id, size), partition=message_id % PARTITIONS, on_delivery=told)
            message_id += 1
            for each in producers:
                each.poll(0)
            time.sleep(0.001)
    for each in producers:
        assert each.flush(60) == 0, "messages were never answered"
    return acknowledged


def go_through_transactions(connection, first_id):
    """By hand, so that each step waits for its answer. Returns the ids of the messages, and the number of steps."""
    topic = calls.new_topic(connection)
    connection.call("FindCoordinator", 6, {"KeyType": 0, "CoordinatorKeys": ["any"]})
    until_settled(lambda: connection.call("FindCoordinator", 6, {"KeyType": 1, "CoordinatorKeys": ["any"]})["Coordinators"][0])
    message_ids, steps = set(), 0
    for version in (1, 2):
        for number in range(TRANSACTIONS):
            producer = Transactional(connection, version, f"transaction-{first_id}-{version}-{number}").init()
            message_id = first_id + 500_000 + len(message_ids)
            producer.send(topic, [cells(message_id, 1_000)])
            message_ids.add(message_id)
            producer.send_offset(f"group-{first_id}-{version}-{number}", topic, number)
            producer.finish(number % 2 == 0)
            # The first one, its offset and its end; and the older protocol adds partition and group.
            steps += {1: 5, 2: 3}[version]
    return message_ids, steps


def audited_run(kind, run, directory, phase):
    """Runs the broker under strace once and returns what is wrong."""
    data_dir, trace = directory / "data", directory / f"trace-{phase}"
    existing = {str(path) for path in [data_dir, *data_dir.rglob("*")]} if data_dir.exists() else set()
    broker = start(kind, free_port(), data_dir, run.settings, wrapper=strace(trace, run.syncs_taken_away))
    with calls.connect(broker.bootstrap) as connection:
        topic = calls.new_topic(connection, PARTITIONS)
        acknowledged, steps = go_through_transactions(connection, phase * 1_000_000)
    acknowledged |= produce(broker.bootstrap, topic, first_id=phase * 1_000_000)
    time.sleep(0.5)  # so that strace sees the end of the last send as well
    broker.kill9()
    wait_for_end(trace)
    with open(trace) as lines:
        audit = Audit(events(lines), data_dir, broker.port, LAYOUTS[kind], existing)
    acks = audit.acks()
    seen = {int(CELL.match(needle)[1], 16) for ack in acks if ack.is_batch for needle in ack.needles}
    wrong = audit.violations(acks)
    if not acknowledged <= seen:
        wrong.append(f"{len(acknowledged - seen)} messages were acknowledged, but the audit did not see it")
    if all(ack.is_batch or ack.is_step for ack in acks):
        wrong.append("the audit saw no topic created")
    if sum(ack.is_step for ack in acks) < steps:
        wrong.append(f"transactions had {steps} steps, but the audit saw {sum(ack.is_step for ack in acks)}")
    size_mb = trace.stat().st_size / 1e6
    in_bulk = sum(audit.is_in_bulk_only(ack) for ack in acks if ack.is_batch)
    print(f"run {phase}: {len(acks)} acknowledgements for {len(seen)} messages audited, {in_bulk} held by segments alone, trace of {size_mb:.0f} MB")
    if LAYOUTS[kind].bulk and not in_bulk:
        wrong.append("no batch was large enough to be held by a segment alone")
    return wrong


# The runs use one directory, one after the other.
@pytest.mark.timeout(300 * checks.SLOWNESS)
def test_every_acknowledged_byte_was_synced_before_its_answer_left():
    kind = checks.broker_kind()
    directory = Path(tempfile.mkdtemp(prefix="duramen-audit-"))
    faults = []
    for phase, run in enumerate(RUNS[kind], start=1):
        wrong = audited_run(kind, run, directory, phase)
        print(f"run {phase}: {len(wrong)} things are wrong{', as they should be' if wrong and run.at_fault else ''}", flush=True)
        if bool(wrong) != run.at_fault:
            faults += wrong[:20] or [f"run {phase}: the audit found no fault with a broker that does not sync"]
    assert not faults, "\n".join([*faults, f"the traces are kept in {directory}"])
    shutil.rmtree(directory)
