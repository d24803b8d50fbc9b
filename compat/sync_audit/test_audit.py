"""The audit must find each way to acknowledge too early, in real traces of a small server, and must not cry wolf."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMPAT = Path(__file__).resolve().parent.parent

import calls
import checks
import pytest
import schema
from audit import APPENDED, COMMITTED, HELD, INTERNAL, LAYOUTS, OPEN_ENTRY, OPENS, RECORD_HEAD, RECORD_HELD, UNCOUNTED, Audit, cells
from batch import batch
from broker import free_port
from checks import equal
from connection import Connection, request_header
from toy_server import HABITS, PRODUCE_VERSION, answer
from trace import events, strace, wait_for_end

REQUESTS = 3


def violations_of(habit):
    with tempfile.TemporaryDirectory(prefix="duramen-audit-") as directory:
        data_dir, trace = Path(directory) / "data", Path(directory) / "trace"
        data_dir.mkdir()
        port = free_port()
        server = subprocess.Popen([*strace(trace), sys.executable, str(COMPAT / "sync_audit/toy_server.py"), str(port), str(data_dir), habit])
        with connect_when_ready(port) as connection:
            for number in range(REQUESTS):
                records = batch([cells(number, 4000)])
                answer = connection.call("Produce", PRODUCE_VERSION, calls.produce_body("t", records))
                equal(answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"], 0)
        server.wait(20)
        wait_for_end(trace)
        with open(trace) as lines:
            audit = Audit(events(lines), data_dir, port, LAYOUTS["duramen"], existing={str(data_dir)})
        acks = audit.acks()
        equal(len(acks), REQUESTS, "acknowledgements seen in the trace")
        return audit.violations(acks)


def connect_when_ready(port):
    deadline = time.monotonic() + 20 * checks.SLOWNESS
    while True:
        try:
            return Connection(f"127.0.0.1:{port}")
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.05)


@pytest.mark.parametrize("habit", HABITS)
def test_the_audit_judges_a_server_by_its_habit(habit):
    wrong = violations_of(habit)
    if habit.startswith("honest"):
        equal(wrong, [])
    else:
        assert wrong, "the audit found nothing"
        print(f"     {len(wrong)} found, such as: {wrong[0]}")


def test_a_sync_that_began_before_the_write_ended_covers_nothing():
    trace = Trace()
    trace.request(1)
    trace.line(2, f"fdatasync({trace.journal} <unfinished ...>")
    trace.line(1, f"pwrite64({trace.journal}, {hexed(trace.records)}, {len(trace.records)}, 0) = {len(trace.records)}")
    trace.line(2, "<... fdatasync resumed>) = 0")
    trace.response(1)
    assert trace.violations()


def test_a_sync_that_ended_after_the_answer_began_covers_nothing():
    trace = Trace()
    trace.request(1)
    trace.line(1, f"pwrite64({trace.journal}, {hexed(trace.records)}, {len(trace.records)}, 0) = {len(trace.records)}")
    trace.line(2, f"fdatasync({trace.journal} <unfinished ...>")
    trace.response(1)
    trace.line(2, "<... fdatasync resumed>) = 0")
    assert trace.violations()


def test_a_sync_that_failed_covers_nothing():
    trace = Trace()
    trace.request(1)
    trace.line(1, f"pwrite64({trace.journal}, {hexed(trace.records)}, {len(trace.records)}, 0) = {len(trace.records)}")
    trace.line(1, f"fdatasync({trace.journal}) = -1 EIO (Input/output error)")
    trace.response(1)
    assert trace.violations()


def test_a_sync_between_write_and_answer_covers():
    trace = Trace()
    trace.request(1)
    trace.line(1, f"pwrite64({trace.journal}, {hexed(trace.records)}, {len(trace.records)}, 0) = {len(trace.records)}")
    trace.line(2, f"fdatasync({trace.journal} <unfinished ...>")
    trace.line(2, "<... fdatasync resumed>) = 0")
    trace.response(1)
    equal(trace.violations(), [])


def test_bulk_data_in_a_segment_needs_a_journal_record_too():
    for with_journal in (False, True):
        trace = Trace()
        trace.request(1)
        trace.line(1, f"pwrite64({trace.segment}, {hexed(trace.records)}, {len(trace.records)}, 0) = {len(trace.records)}")
        trace.line(1, f"fdatasync({trace.segment}) = 0")
        if with_journal:
            trace.line(1, f"pwrite64({trace.journal}, {hexed(b'descriptor')}, 10, 0) = 10")
            trace.line(1, f"fdatasync({trace.journal}) = 0")
        trace.response(1)
        equal(bool(trace.violations()), not with_journal)


def test_a_step_of_a_transaction_must_be_written_after_it_was_asked_for():
    record = b"state of some-transaction"
    for written in ("before", "between", "between, not synced", "after"):
        trace = EndOfTransaction()
        write = [f"pwrite64({trace.journal}, {hexed(record)}, {len(record)}, 0) = {len(record)}"]
        write += [f"fdatasync({trace.journal}) = 0"] if written != "between, not synced" else []
        for at, step in (("before", trace.request), ("between", trace.response), ("after", lambda _: None)):
            for line in write if written.startswith(at) else []:
                trace.line(1, line)
            step(1)
        equal(bool(trace.violations()), written != "between", written)


def test_a_held_batch_must_be_in_the_journal_before_its_answer_leaves():
    cases = {
        # What is written, whether before the answer it is synced, and whether the audit finds fault.
        "synced": (lambda trace: trace.hold(), True, False),
        "synced after the answer": (lambda trace: trace.hold(), False, True),
        "of another stretch": (lambda trace: trace.hold(index=8), True, True),
        "of another batch": (lambda trace: trace.hold(records=trace.other), True, True),
        "only half": (lambda trace: trace.hold()[: RECORD_HEAD.size + len(trace.records) // 2], True, True),
        "by replication, not held": (lambda trace: trace.records, True, True),
        "not at all": (lambda _: b"nothing of it", True, True),
    }
    for case, (written, is_synced, is_wrong) in cases.items():
        trace = FastAppend()
        trace.append(HELD)
        trace.write(trace.journal, written(trace), synced=is_synced)
        trace.answer(HELD)
        trace.line(1, f"fdatasync({trace.journal}) = 0")
        equal(bool(trace.violations()), is_wrong, case)
    trace = FastAppend()
    trace.append(HELD)
    trace.write(trace.segment, trace.hold(), synced=True)
    trace.answer(HELD)
    assert trace.violations(), "a segment holds nothing for a stretch"


def test_what_a_leader_appended_must_be_on_its_disk_before_its_answer_leaves():
    for outcome in (APPENDED, COMMITTED, UNCOUNTED):
        for is_synced in (False, True):
            trace = FastAppend()
            trace.append(outcome)
            trace.write(trace.journal, b"entry" + trace.records, is_synced)
            trace.answer(outcome)
            trace.line(1, f"fdatasync({trace.journal}) = 0")
            equal(bool(trace.violations()), not is_synced, f"outcome {outcome}")
    for with_journal in (False, True):
        trace = FastAppend()
        trace.append(APPENDED)
        trace.write(trace.segment, trace.records, synced=True)
        if with_journal:
            trace.write(trace.journal, b"descriptor", synced=True)
        trace.answer(APPENDED)
        equal(bool(trace.violations()), not with_journal, "in a segment alone")


def test_a_commit_that_is_asked_for_by_its_ids_is_of_the_batch_that_came_before():
    for is_synced in (False, True):
        trace = FastAppend()
        trace.append(APPENDED)
        trace.write(trace.segment, trace.records, is_synced)
        trace.write(trace.journal, b"descriptor", is_synced)
        trace.append(COMMITTED, by_ids=True)
        trace.answer(COMMITTED)
        equal(bool(trace.violations()), not is_synced)
    # It may have come to another node only, and to this one by replication; or to none.
    for sent in (None, "this", "another"):
        trace = FastAppend()
        trace.append(COMMITTED, by_ids=True)
        trace.write(trace.journal, trace.records, synced=True)
        trace.answer(COMMITTED)
        elsewhere = {("0" * 8 + "-0000-0000-0000-" + "0" * 12, 0, 5, 0, 0): (0, trace.records if sent == "this" else trace.other)}
        equal(bool(trace.violations(elsewhere if sent else None)), sent != "this", sent)


def test_an_answer_that_promises_nothing_is_not_judged():
    trace = FastAppend()
    trace.append(0)
    trace.answer(0)
    equal(trace.violations(acks=0), [])


def test_a_stretch_is_opened_on_the_disk_before_it_is_named():
    for written in ("before", "between", "between, not synced", "after"):
        trace = FastAppend()
        # The entry of another partition may be the same.
        for at, step in (("before", trace.describe), ("between", trace.name), ("after", lambda: None)):
            if written.startswith(at):
                trace.write(trace.journal, trace.opening(), synced=written != "between, not synced")
            step()
        equal(bool(trace.violations()), written != "between", written)


class Trace:
    """A trace written by hand, for orders of events that a small server cannot be made to show."""

    def __init__(self):
        self.lines = []
        self.records = batch([cells(7, 400)])
        self.journal = f"5<{hexed(b'/data/journal/0001')[1:-1]}>"
        self.segment = f"6<{hexed(b'/data/t-0/00000000000000000000.log')[1:-1]}>"
        self.socket = "7<TCP:[127.0.0.1:9092->127.0.0.1:5555]>"

    def line(self, thread, text):
        self.lines.append(f"{thread} {text}\n")

    def request(self, thread):
        body = schema.encode("ProduceRequest", PRODUCE_VERSION, calls.produce_body("t", self.records))
        payload = request_header("Produce", PRODUCE_VERSION, 1) + body
        frame = len(payload).to_bytes(4, "big") + payload
        self.frame = payload
        self.line(thread, f"recvfrom({self.socket}, {hexed(frame)}, 65536, 0, NULL, NULL) = {len(frame)}")

    def response(self, thread):
        data = answer(self.frame, calls.produce_body("t", self.records))
        self.line(thread, f"sendto({self.socket}, {hexed(data)}, {len(data)}, MSG_NOSIGNAL, NULL, 0) = {len(data)}")

    def violations(self, elsewhere=None, acks=1):
        existing = {"/data", "/data/journal", "/data/journal/0001", "/data/t-0", "/data/t-0/00000000000000000000.log"}
        audit = Audit(events(self.lines), "/data", 9092, LAYOUTS["duramen"], existing)
        found = audit.acks(elsewhere)
        equal(len(found), acks)
        return audit.violations(found)


class EndOfTransaction(Trace):
    def request(self, thread):
        body = schema.encode("EndTxnRequest", 5, {"TransactionalId": "some-transaction", "Committed": True})
        payload = request_header("EndTxn", 5, 1) + body
        frame = len(payload).to_bytes(4, "big") + payload
        self.line(thread, f"recvfrom({self.socket}, {hexed(frame)}, 65536, 0, NULL, NULL) = {len(frame)}")

    def response(self, thread):
        payload = (1).to_bytes(4, "big") + b"\0" + schema.encode("EndTxnResponse", 5, {})
        data = len(payload).to_bytes(4, "big") + payload
        self.line(thread, f"sendto({self.socket}, {hexed(data)}, {len(data)}, MSG_NOSIGNAL, NULL, 0) = {len(data)}")


class FastAppend(Trace):
    """One batch, sent to a node that holds or appends it in stretch 3.9, and how the node names that stretch."""

    def __init__(self):
        super().__init__()
        self.records, self.other = (batch([cells(number, 400)], producer_id=5, epoch=0, sequence=0) for number in (7, 8))
        self.asked = 0

    def receive(self, api, body):
        self.asked += 1
        payload = request_header(api, 0, self.asked) + schema.encode(api + "Request", 0, body)
        frame = len(payload).to_bytes(4, "big") + payload
        self.line(1, f"recvfrom({self.socket}, {hexed(frame)}, 65536, 0, NULL, NULL) = {len(frame)}")

    def send(self, api, body):
        payload = self.asked.to_bytes(4, "big") + b"\0" + schema.encode(api + "Response", 0, body)
        data = len(payload).to_bytes(4, "big") + payload
        self.line(1, f"sendto({self.socket}, {hexed(data)}, {len(data)}, MSG_NOSIGNAL, NULL, 0) = {len(data)}")

    def append(self, outcome, by_ids=False):
        part = {"StretchTerm": 3, "StretchIndex": 9, "ProducerId": 5, "ProducerEpoch": 0, "FirstSequence": 0, "LastSequence": 0}
        part["Records"] = None if by_ids else self.records
        self.receive("AppendFast", {"Wait": int(outcome == COMMITTED), "Topics": [{"Partitions": [part]}]})

    def answer(self, outcome):
        self.send("AppendFast", {"Topics": [{"Partitions": [{"Outcome": outcome}]}]})

    def describe(self):
        self.receive("DescribeFast", {"Open": True, "Topics": [{"Partitions": [0]}]})

    def name(self):
        self.send("DescribeFast", {"Topics": [{"Partitions": [{"StretchTerm": 3, "StretchIndex": 9, "Members": [1, 2]}]}]})

    def hold(self, index=9, records=None):
        records = records or self.records
        return RECORD_HEAD.pack(RECORD_HELD, RECORD_HEAD.size - 5 + len(records), 1, 3, index, 1) + records

    def opening(self):
        return OPEN_ENTRY.pack(9, 3, INTERNAL, len(OPENS) + 16, OPENS) + bytes(16)

    def write(self, file, data, synced):
        self.line(1, f"pwrite64({file}, {hexed(data)}, {len(data)}, 0) = {len(data)}")
        if synced:
            self.line(1, f"fdatasync({file}) = 0")


def hexed(data):
    return '"' + "".join(f"\\x{byte:02x}" for byte in data) + '"'
