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
from audit import LAYOUTS, Audit, cells
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

    def violations(self):
        existing = {"/data", "/data/journal", "/data/journal/0001", "/data/t-0", "/data/t-0/00000000000000000000.log"}
        audit = Audit(events(self.lines), "/data", 9092, LAYOUTS["duramen"], existing)
        acks = audit.acks()
        equal(len(acks), 1)
        return audit.violations(acks)


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


def hexed(data):
    return '"' + "".join(f"\\x{byte:02x}" for byte in data) + '"'
