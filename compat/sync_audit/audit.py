"""Proves from a trace that what a broker acknowledged was on the disk before the answer left, or says what was not.

The rules, for every produced batch that was answered without an error:
1. Its bytes were written to a file that is meant to hold them.
2. A sync of that file, begun after the write had ended, had ended without an error before the answer's first byte was sent
   (or the file was opened with O_DSYNC or O_SYNC, or written with RWF_DSYNC).
3. If the file, or a directory above it, was made or renamed within the trace, a sync of the directory that holds its name,
   begun after that, had ended as well.
4. If only a file of bulk data holds them, the journal was written and synced between the request and the answer, too.
The same (1 to 3) for the name of every topic whose creation was acknowledged; and for every step of a transaction: its id, or
the group whose offset it commits, was written between the request and the answer, and that write was synced.

Of a fast append (AppendFast, DescribeFast) each node answers for its own disk:
5. A batch that a follower said it holds: a record Held of the journal, which names the stretch and has all of the batch, was
   written, and 2 and 3 are true of it. What replication has written of the same batch does not count.
6. A batch that the leader said it appended, or anyone said is committed: 1 to 4, on the disk of the node that answered. A node
   tells of no commit before its own disk has the batch. For 4 counts what was written since the batch first came to the node.
7. A leader that names an open stretch: the entry that opened it was written, and 2 and 3 are true of it. Of the first stretch of
   a partition, this was between the first wish for one and the answer.

The bytes are recognised by cells: 32-byte marks that fill the payload and occur once. One cell whose neighbours were
found may be missing, because a file format may cut a payload with a header of its own.
"""

import os
import re
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "wire"))

import schema
from connection import parse_response
from trace import SYNCS, WRITES, READS

CELL = re.compile(rb"<([0-9a-f]{20})([0-9a-f]{10})>")
CELL_SIZE = 32
PRODUCE, CREATE_TOPICS = 0, 19
DESCRIBE_FAST, APPEND_FAST = 10001, 10002
# What an answer to AppendFast says of the batch. The other outcome, 0, promises nothing.
HELD, APPENDED, COMMITTED, UNCOUNTED = 1, 2, 3, 4
OUTCOMES = {HELD: "held", APPENDED: "appended", COMMITTED: "committed", UNCOUNTED: "appended, uncounted,"}
# A journal record, as docs/format.md has it.
RECORD_HELD = 17
# Of such a record what stands before the batch: kind, length, replica, term and index of the stretch, number.
RECORD_HEAD = struct.Struct(">BIQQQQ")
# The entry that opens a stretch, up to its members of 8 bytes each: index, term, internal, length, and what says that it opens one.
OPEN_ENTRY = struct.Struct(">QQBI5s")
INTERNAL, OPENS = 0, b"\1\0\2\6\1"
# Where a batch has its producer's id. Before that a replica may write another checksum, and other times.
PRODUCER_AT = 43
# The steps of a transaction, and the field that is written down with each.
STEPS = {
    "InitProducerId": "TransactionalId",
    "AddPartitionsToTxn": "V3AndBelowTransactionalId",
    "AddOffsetsToTxn": "TransactionalId",
    "TxnOffsetCommit": "GroupId",
    "EndTxn": "TransactionalId",
}
STEP_OF_KEY = {schema.layout(name + "Request")["apiKey"]: name for name in STEPS}
LOOKED_INTO = {PRODUCE: "Produce", CREATE_TOPICS: "CreateTopics", DESCRIBE_FAST: "DescribeFast", APPEND_FAST: "AppendFast", **STEP_OF_KEY}


def cells(message_id, size):
    """A payload of whole cells that says of every 32 bytes whose they are."""
    return b"".join(b"<%020x%010x>" % (message_id, index) for index in range(max(1, size // CELL_SIZE)))


@dataclass
class Layout:
    """Which files may hold what, as patterns of paths relative to the data directory."""

    payload: str
    # The files that make a topic's creation durable; None when that is not judged.
    metadata: str | None
    # Where payload in a bulk file needs a record of its own, or None.
    bulk: str | None = None
    journal: str | None = None
    # Whether the names of directories must be durable, and not only those of files.
    directory_names: bool = True


LAYOUTS = {
    "duramen": Layout(
        payload=r"journal/.*|[^/]+-\d+/\d{20}\.log", metadata=r"journal/.*|.*\.log", bulk=r"[^/]+-\d+/\d{20}\.log", journal=r"journal/.*"
    ),
    # What Kafka is excused (see ../FINDINGS.md): it never syncs the directory that holds its partitions' directories, not
    # even with flush.messages=1, and it may answer CreateTopics while the sync of its metadata log still runs.
    "kafka": Layout(payload=r"log/[^/]+-\d+/\d{20}\.log", metadata=None, directory_names=False),
}


@dataclass
class File:
    """A file or directory through its life; `links` are the names it got within the trace, with the line of each."""

    links: list = field(default_factory=list)
    writes: list = field(default_factory=list)
    syncs: list = field(default_factory=list)
    synchronous: bool = False


@dataclass
class Write:
    file: File
    path: str
    began: int
    ended: int
    data: bytes
    durable: bool


@dataclass
class Ack:
    what: str
    asked: int
    answered: int
    # The bytes to look for: a batch's cells, a topic's name, or whom a step of a transaction concerns.
    needles: list
    is_batch: bool = False
    # Such bytes were written before, too, and what counts is what was written for this request.
    is_step: bool = False
    # What an answer to AppendFast says of the batch.
    outcome: int = 0
    # A batch that is held: term and index of its stretch, and all its bytes.
    held: tuple | None = None
    # An answer that names a stretch.
    is_opening: bool = False


class Audit:
    def __init__(self, events, data_dir, port, layout, existing):
        """`existing` are the paths that were there before the trace; their names count as durable."""
        self.data_dir, self.layout = str(data_dir), layout
        self.files = {path: File() for path in existing}
        self.everything_synced = []
        self.writes = []
        self.received, self.sent = {}, {}
        # What was judged before: many cells are in one write.
        self.kinds, self.reasons = {}, {}
        for event in events:
            self._take(event, port)
        self.cells = {}
        for write in self.writes:
            for cell in CELL.finditer(write.data):
                self.cells.setdefault(cell[0], []).append(write)
        self.requests = {connection: list(_requests(received)) for connection, received in self.received.items()}

    def _take(self, event, port):
        if event.connection:
            if event.connection.partition("->")[0].endswith(f":{port}"):
                streams = self.received if event.call in READS else self.sent
                streams.setdefault(event.connection, []).append(event)
        elif event.path.startswith(self.data_dir) or self.data_dir.startswith(event.path + "/"):
            self._take_file_event(event)

    def _take_file_event(self, event):
        path = event.path
        if event.call in ("open", "openat", "creat"):
            if path not in self.files:
                self.files[path] = File(links=[(path, event.ended)] if "O_CREAT" in event.flags else [])
            if "O_DSYNC" in event.flags or "O_SYNC" in event.flags:
                self.files[path].synchronous = True
        elif event.call == "mkdir":
            self.files[path] = File(links=[(path, event.ended)])
        elif event.call == "rename":
            moved = self.files.pop(path, File())
            moved.links.append((event.new_path, event.ended))
            self.files[event.new_path] = moved
            for below in [name for name in self.files if name.startswith(path + "/")]:
                self.files[event.new_path + below.removeprefix(path)] = self.files.pop(below)
        elif event.call == "unlink":
            self.files.pop(path, None)
        elif event.call == "syncfs":
            self.everything_synced.append((event.began, event.ended))
        elif event.call in SYNCS:
            self._file(path).syncs.append((event.began, event.ended))
        elif event.call in WRITES:
            file = self._file(path)
            durable = file.synchronous or "RWF_DSYNC" in event.flags or "RWF_SYNC" in event.flags
            # Files are filled with zeros beforehand, and nothing is to be found in those.
            data = event.data if event.data.count(0) < len(event.data) else b""
            write = Write(file, path, event.began, event.ended, data, durable)
            file.writes.append(write)
            self.writes.append(write)

    def _file(self, path):
        return self.files.setdefault(path, File())

    # What the clients were told.

    def fast_batches(self):
        """The batches that came with AppendFast: of each, by its ids, the line where it first came, and its bytes."""
        found = {}
        for requests in self.requests.values():
            for line, key, _, _, request in requests:
                for topic, partition in _fast_parts(request) if key == APPEND_FAST else ():
                    ids = _ids(topic, partition)
                    if partition["Records"] and (ids not in found or line < found[ids][0]):
                        found[ids] = line, partition["Records"]
        return found

    def acks(self, elsewhere=None):
        """Every acknowledgement in the trace, in no particular order. `elsewhere` are the fast batches of other nodes' traces:
        a client may name a batch that it has sent to others."""
        found = []
        openings = []
        batches = self.fast_batches()
        for connection, requests in self.requests.items():
            answers = dict(self._answers(connection))
            for line, key, version, correlation_id, request in requests:
                if correlation_id not in answers:
                    continue
                answered, payload = answers[correlation_id]
                if key == PRODUCE:
                    found += _produce_acks(line, answered, request, parse_response("Produce", version, payload))
                elif key == APPEND_FAST:
                    response = parse_response("AppendFast", version, payload)
                    found += _fast_acks(line, answered, request, response, batches, elsewhere or {})
                elif key == DESCRIBE_FAST:
                    openings += _opening_acks(line, answered, request, parse_response("DescribeFast", version, payload))
                elif key == CREATE_TOPICS:
                    found += _creation_acks(line, answered, parse_response("CreateTopics", version, payload))
                else:
                    name = STEP_OF_KEY[key]
                    found += _step_acks(name, line, answered, request, parse_response(name, version, payload))
        return found + _openings(openings)

    def _answers(self, connection):
        """(correlation id, (the line where the call began that sent the first byte, payload)) of each response."""
        pieces = self.sent.get(connection, [])
        stream = b"".join(piece.data for piece in pieces)
        starts = []
        position = 0
        for piece in pieces:
            starts.append((position, piece.began))
            position += len(piece.data)
        at = 0
        while at + 8 <= len(stream):
            size, correlation_id = struct.unpack_from(">ii", stream, at)
            began = max(line for start, line in starts if start <= at)
            yield correlation_id, (began, stream[at + 8 : at + 4 + size])
            at += 4 + size

    # The proof.

    def violations(self, acks):
        wrong = []
        for ack in acks:
            problem = self._problem(ack)
            if problem:
                wrong.append(f"{ack.what}, asked at line {ack.asked}, answered at line {ack.answered}: {problem}")
        return wrong

    def _problem(self, ack):
        if not ack.is_batch and not ack.is_step and self.layout.metadata is None:
            return None
        if not ack.needles:
            return "no request had its bytes"
        if ack.held:
            return self._hold_problem(ack)
        found = 0
        uncovered = None
        missing_before = False
        for needle in ack.needles:
            writes = self._writes_of(needle, ack)
            reasons = [self._reason_not_durable(write, ack.answered) for write in writes]
            if not writes:
                if missing_before or len(ack.needles) == 1:
                    return f"{needle[:40]!r} was never written to a file that may hold it"
                missing_before = True
                continue
            missing_before = False
            found += 1
            if None not in reasons:
                uncovered = uncovered or f"{needle[:40]!r}: {reasons[0]}"
        if uncovered:
            return uncovered
        if not found:
            return "nothing of it was written"
        return self._journal_problem(ack) if ack.is_batch else None

    def _hold_problem(self, ack):
        candidates = self.cells.get(ack.needles[0], [])
        writes = [write for write in candidates if write.began < ack.answered and self._is_a(self.layout.journal, write) and _holds(write, ack.held)]
        if not writes:
            return "no record Held of it was written to the journal before the answer"
        reasons = [self._reason_not_durable(write, ack.answered) for write in writes]
        return None if None in reasons else reasons[0]

    def _writes_of(self, needle, ack):
        if ack.is_batch:
            pattern, candidates = self.layout.payload, self.cells.get(needle, [])
        else:
            pattern = self.layout.journal if ack.is_opening else self.layout.payload if ack.is_step else self.layout.metadata
            candidates = [write for write in self.writes if needle in write.data]
        after = ack.asked if ack.is_step else -1
        return [write for write in candidates if after < write.began < ack.answered and self._is_a(pattern, write)]

    def _is_a(self, pattern, write):
        key = pattern, write.path
        if key not in self.kinds:
            self.kinds[key] = re.fullmatch(pattern, os.path.relpath(write.path, self.data_dir)) is not None
        return self.kinds[key]

    def _reason_not_durable(self, write, before):
        key = id(write), before
        if key not in self.reasons:
            self.reasons[key] = self._look_for_reason(write, before)
        return self.reasons[key]

    def _look_for_reason(self, write, before):
        if not write.durable and not self._synced(write.file, write.ended, before):
            return f"written to {write.path} at line {write.ended}, not synced between then and the answer"
        return self._reason_name_not_durable(write.file, before)

    def _reason_name_not_durable(self, file, before):
        links = [(path, line) for path, line in file.links if line < before]
        if not links:
            return None
        path, line = links[-1]
        parent = os.path.dirname(path)
        directory = self._file(parent)
        if not self._synced(directory, line, before):
            return f"{path} was made at line {line}, its directory was not synced between then and the answer"
        return self._reason_name_not_durable(directory, before) if self.layout.directory_names else None

    def _synced(self, file, after, before):
        return any(after < began and ended < before for began, ended in file.syncs + self.everything_synced)

    def is_in_bulk_only(self, ack):
        """Whether no journal holds the batch's bytes, so that its durability rests on a segment."""
        if self.layout.bulk is None:
            return False
        holders = [write for needle in ack.needles for write in self._writes_of(needle, ack)]
        return bool(holders) and all(self._is_a(self.layout.bulk, write) for write in holders)

    def _journal_problem(self, ack):
        if not self.is_in_bulk_only(ack):
            return None
        for write in self.writes:
            if self._is_a(self.layout.journal, write) and ack.asked < write.began < ack.answered:
                if self._reason_not_durable(write, ack.answered) is None:
                    return None
        return "its bytes are in a segment only, and no journal record was written and synced before the answer"


def _requests(received):
    """(line, key, version, correlation id, decoded body) of the requests that are looked into."""
    stream = b"".join(event.data for event in received)
    ends = []
    position = 0
    for event in received:
        position += len(event.data)
        ends.append((position, event.ended))
    at = 0
    while at + 12 <= len(stream):
        (size,) = struct.unpack_from(">i", stream, at)
        frame = stream[at + 4 : at + 4 + size]
        at += 4 + size
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        if key not in LOOKED_INTO or at > len(stream):
            continue
        name = LOOKED_INTO[key] + "Request"
        _, header_size = schema.decode("RequestHeader", 2 if schema.is_flexible(name, version) else 1, frame)
        body, _ = schema.decode(name, version, frame[header_size:])
        yield min(line for end, line in ends if end >= at), key, version, correlation_id, body


def _produce_acks(asked, answered, request, response):
    records = {}
    for topic in request["TopicData"]:
        for partition in topic["PartitionData"]:
            records[_topic(topic), partition["Index"]] = partition["Records"]
    for topic in response["Responses"]:
        for partition in topic["PartitionResponses"]:
            needles = [cell[0] for cell in CELL.finditer(records[_topic(topic), partition["Index"]])]
            if partition["ErrorCode"] == 0 and needles:
                what = f"the batch at offset {partition['BaseOffset']} of {_topic(topic)}-{partition['Index']}"
                yield Ack(what, asked, answered, needles, is_batch=True)


def _fast_parts(request):
    for topic in request["Topics"]:
        for partition in topic["Partitions"]:
            yield topic["TopicId"], partition


def _ids(topic, partition):
    """Who sent the batch, and which of that producer's batches of the partition it is."""
    names = [partition["ProducerId"], partition["ProducerEpoch"], partition["FirstSequence"]]
    if partition["Records"]:
        names = struct.unpack_from(">qhi", partition["Records"], PRODUCER_AT)
    return topic, partition["Index"], *names


def _fast_acks(asked, answered, request, response, batches, elsewhere):
    parts = {(topic, partition["Index"]): partition for topic, partition in _fast_parts(request)}
    for topic, said in _fast_parts(response):
        outcome = said["Outcome"]
        if said["ErrorCode"] or outcome not in OUTCOMES:
            continue
        part = parts[topic, said["Index"]]
        ids = _ids(topic, part)
        came, records = batches.get(ids) or (asked, elsewhere.get(ids, (0, b""))[1])
        what = f"the {OUTCOMES[outcome]} batch of producer {ids[2]} from sequence {ids[4]} of {topic}-{said['Index']}"
        needles = [cell[0] for cell in CELL.finditer(records)]
        held = (part["StretchTerm"], part["StretchIndex"], records) if outcome == HELD else None
        yield Ack(what, min(came, asked), answered, needles, is_batch=True, outcome=outcome, held=held)


def _holds(write, held):
    """Whether a record Held is in what was written, of this batch in this stretch."""
    term, index, records = held
    body = records[PRODUCER_AT:]
    at = write.data.find(body)
    while at >= 0:
        start = at - PRODUCER_AT - RECORD_HEAD.size
        if start >= 0:
            kind, size, _, in_term, in_index, _ = RECORD_HEAD.unpack_from(write.data, start)
            if (kind, size, in_term, in_index) == (RECORD_HELD, RECORD_HEAD.size - 5 + len(records), term, index):
                return True
        at = write.data.find(body, at + 1)
    return False


def _opening_acks(asked, answered, request, response):
    """(partition, acknowledgement) of each stretch that is named, and of each wish for one that names none."""
    for topic in response["Topics"]:
        for said in topic["Partitions"]:
            place = topic["TopicId"], said["PartitionIndex"]
            term, index = said["StretchTerm"], said["StretchIndex"]
            needles = []
            if said["ErrorCode"] == 0 and index >= 0:
                needles = [OPEN_ENTRY.pack(index, term, INTERNAL, len(OPENS) + 8 * len(said["Members"]), OPENS)]
            if needles or request["Open"]:
                yield place, Ack(f"the stretch {term}.{index} of {place[0]}-{place[1]}", asked, answered, needles, is_opening=True)


def _openings(found):
    """The acknowledgements that name a stretch. Only a wish opens the first one of a partition."""
    wished, named = {}, {}
    for place, ack in found:
        wished[place] = min(ack.asked, wished.get(place, ack.asked))
        if ack.needles and (place not in named or ack.answered < named[place].answered):
            named[place] = ack
    for place, ack in named.items():
        ack.asked, ack.is_step = wished[place], True
    return [ack for _, ack in found if ack.needles]


def _step_acks(name, asked, answered, request, response):
    id = request.get(STEPS[name])
    if id and not _errors(response):
        yield Ack(f"{name} of {id}", asked, answered, [id.encode()], is_step=True)


def _errors(message):
    """Every code but 0, wherever it is in a response."""
    found = []
    for name, value in message.items():
        if name.endswith("ErrorCode"):
            found += [value] if value else []
        elif isinstance(value, list):
            found += [code for each in value if isinstance(each, dict) for code in _errors(each)]
    return found


def _creation_acks(asked, answered, response):
    for topic in response["Topics"]:
        if topic["ErrorCode"] == 0:
            yield Ack(f"the creation of {topic['Name']}", asked, answered, [topic["Name"].encode()])


def _topic(entry):
    return entry.get("Name") or entry["TopicId"]
