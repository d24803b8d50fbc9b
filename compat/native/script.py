"""The script that each client carries out: steps in groups, each group on topics of its own.

`${t}` is the group's topic, `${name}` what a step saved, `${name.member}` a part of that, `${text name}` a position as text, and
`${bytes name}` that text as bytes. In what is expected, "*" stands for anything that is there; what is not named must be absent, or
its type's zero.
"""

import base64
from dataclasses import dataclass, field

from batch import batch


@dataclass
class Step:
    method: str
    request: dict
    # The answer, or a Problem.
    expected: object
    # Name of the answer for later steps.
    save: str = ""
    # Clients that cannot say this, and why.
    without: dict = field(default_factory=dict)
    # It goes on beside the steps after it, until one is `Awaited`.
    beside: bool = False
    # Events after which the client ends a stream that has no end.
    take: int = 0
    # It goes to a node that does not lead the topic's log, where there is one.
    passed_on: bool = False
    # A replica answers that may be behind for a moment: it is asked until it has all.
    lags: bool = False


@dataclass
class Problem:
    slug: str
    # Members; the text of `reason` is anything.
    members: dict = field(default_factory=dict)


@dataclass
class Awaited:
    """The answer of the step that went on beside."""

    expected: object


def b64(data):
    return base64.b64encode(data if isinstance(data, bytes) else data.encode()).decode()


def rec(value, key=None, headers=(), at=1_700_000_000_000, id=None, schedule=None):
    made = {"value": b64(value), "timestampMs": str(at)}
    if id is not None:
        made["id"] = id
    if schedule is not None:
        made["schedule"] = schedule
    if key is not None:
        made["key"] = b64(key)
    if headers:
        made["headers"] = [{"name": name, "value": b64(content)} for name, content in headers]
    return made


def pos(offset, entry=None):
    return {"term": "*", "entry": offset if entry is None else entry, "offset": offset}


def append(values, expected, save="", partition=0, without=None, **more):
    records = [value if isinstance(value, dict) else rec(value) for value in values]
    return Step("Logs.Append", {"topic": "${t}", "partition": partition, "records": records, **more}, expected, save, without or {})


def appended(first, last=None, **more):
    return {"first": pos(first), "last": pos(last or first, first), **more}


def create(name="${t}", expected="*", **more):
    answer = {"name": name, "id": "*", "partitions": more.get("partitions", "*"), "replicationFactor": "*"}
    if "settings" in more:
        answer["settings"] = more["settings"]
    return Step("Topics.CreateTopic", {"name": name, **more}, answer if expected == "*" else expected)


def read(expected, without=None, beside=False, **more):
    return Step("Logs.Read", {"topic": "${t}", **more}, expected, without=without or {}, beside=beside)


def lagging(step):
    step.lags = True
    return step


def page(*records, **more):
    return {"records": list(records), "next": "*", "end": "*", **more}


def shown(offset, record, entry=None):
    record = record if isinstance(record, dict) else rec(record)
    return {"position": pos(offset, entry), "record": record}


def element(offset, record, entry=None, version=None):
    """A record of a queue: nobody has replaced it, if no version is named."""
    return {**shown(offset, record, entry), "version": offset if version is None else version}


def tail(start, end, last="*", **more):
    made = {"start": start, "stable": end, "end": end, **more}
    return {**made, "last": last} if last else made


def ask_tail(expected, save=""):
    return Step("Logs.Tail", {"topic": "${t}"}, expected, save)


def truncate(expected, **more):
    return Step("Logs.Truncate", {"topic": "${t}", **more}, expected)


def fence(expected, token, **more):
    return Step("Logs.Fence", {"topic": "${t}", "token": b64(token), **more}, expected)


def session(save="s", id="*", **more):
    return Step("Logs.OpenSession", more, {"id": id, "epoch": "*"}, save)


def of(session, sequence):
    return {"id": f"${{{session}.id}}", "epoch": f"${{{session}.epoch}}", "sequence": sequence}


def wrong(*fields):
    return Problem("bad-request", {"errors": [{"field": name, "reason": "*"} for name in fields]})


def enqueue(queue, values, expected, save="", **more):
    messages = [value if isinstance(value, dict) else rec(value) for value in values]
    return Step("Queues.Enqueue", {"topic": "${t}", "queue": b64(queue), "messages": messages, **more}, expected, save)


def retrieve(queue, expected, beside=False, **more):
    return Step("Queues.Retrieve", {"topic": "${t}", "queue": b64(queue), **more}, expected, beside=beside)


def enqueue_many(messages, expected):
    messages = [{"queue": b64(queue), "message": rec(value)} for queue, value in messages]
    return Step("Queues.EnqueueMany", {"topic": "${t}", "messages": messages}, expected)


def enqueue_stream(messages, expected):
    """One request for each message: queue, value, and what else the request has."""
    requests = [
        {"call": number, "request": {"topic": "${t}", "queue": b64(queue), "messages": [rec(value)], **more}}
        for number, (queue, value, more) in enumerate(messages, 1)
    ]
    return Step("Queues.EnqueueStream", {"requests": requests}, expected, passed_on=True)


def streamed(call, first, **more):
    return {"call": call, "appended": {"first": first, "last": first, **more}}


def failed(call, reason, metadata="*"):
    return {"call": call, "problem": {"reason": reason, "detail": "*", **({"metadata": metadata} if metadata else {})}}


def subscribe(cursors, expected, beside=False, **more):
    cursors = [{"queue": b64(queue), **start} for queue, start in cursors]
    take = len(expected) if isinstance(expected, list) else 0
    return Step("Queues.Subscribe", {"topic": "${t}", "cursors": cursors, **more}, expected, beside=beside, take=take, passed_on=True)


def came(queue, offset, record, next="*", **more):
    return {"queue": b64(queue), "event": "element", "element": element(offset, record, **more), "next": next}


def told(queue, event, next="*"):
    return {"queue": b64(queue), "event": event, "next": next}


def elements(*them, next, **more):
    return {"elements": list(them), "next": next, **more}


def get_element(queue, position, expected):
    return Step("Queues.GetElement", {"topic": "${t}", "queue": b64(queue), "position": position}, expected)


def get_queue(queue, expected):
    return Step("Queues.GetQueue", {"topic": "${t}", "queue": b64(queue)}, expected)


def delete(queue, positions, expected, **more):
    return Step("Queues.Delete", {"topic": "${t}", "queue": b64(queue), "positions": positions, **more}, expected)


def replace(queue, position, value, expected, save="", **more):
    message = value if isinstance(value, dict) else rec(value)
    return Step("Queues.Replace", {"topic": "${t}", "queue": b64(queue), "position": position, "message": message, **more}, expected, save)


def rewrite(queue, values, expected, save="", **more):
    messages = [value if isinstance(value, dict) else rec(value) for value in values]
    return Step("Queues.Rewrite", {"topic": "${t}", "queue": b64(queue), "messages": messages, **more}, expected, save)


def delete_queue(queue, expected, **more):
    return Step("Queues.DeleteQueue", {"topic": "${t}", "queue": b64(queue), **more}, expected)


def trim_queue(queue, through, expected, **more):
    return Step("Queues.TrimQueue", {"topic": "${t}", "queue": b64(queue), "through": through, **more}, expected)


def fence_queue(queue, token, expected, **more):
    return Step("Queues.FenceQueue", {"topic": "${t}", "queue": b64(queue), "token": b64(token), **more}, expected)


def edited(at, withdrawn, last=None, **more):
    """The answer to an edit whose entry is at an offset."""
    return {"at": pos(at), "last": pos(last or at, at), "withdrawn": withdrawn, **more}


def stated(record, name, value):
    """A record that states an edit, as the log shows it."""
    headers = [{"name": name, "value": value}, {"name": "duramen-fact", "value": "*"}]
    return {**record, "headers": [*record.get("headers", []), *headers]}


def named(queue, elements):
    return {"name": b64(queue), "partition": 0, "aboutElements": elements}


def lease(expected, group="${t}-workers", worker="w", beside=False, **more):
    """The leases, or a problem."""
    expected = {"leases": expected, "lockMs": "*"} if isinstance(expected, list) else expected
    return Step("Leases.Lease", {"topic": "${t}", "group": group, "worker": worker, **more}, expected, beside=beside)


def leased(queue, offset, record, deliveries=1, **more):
    return {"lease": f"0.{offset}.{deliveries}", "queue": b64(queue), "element": element(offset, record, **more), "deliveries": deliveries}


def settle(settlements, expected, worker="w", **more):
    """Settles leases, each with a decision and perhaps a delay; the answer is the names of those that were lost."""
    made = [{"lease": name, "decision": decision, **({"delayMs": delay[0]} if delay else {})} for name, decision, *delay in settlements]
    if isinstance(expected, list):
        expected = {"unsettled": [{"lease": name, "problem": {"reason": "lease-lost", "detail": "*"}} for name in expected]}
    return Step("Leases.Settle", {"topic": "${t}", "group": "${t}-workers", "worker": worker, "settlements": made, **more}, expected)


ONE = create(partitions=1)
KEYED = rec("one", key="k", headers=[("h", "v"), ("i", "")])
# Bytes that are no text, in an order of headers that JSON does not keep, and a header and a record without values.
ODD = {
    "key": b64(b"\xff\x00"),
    "value": b64(b"\x00\xfe"),
    "timestampMs": "1700000000001",
    "headers": [{"name": "z", "value": b64(b"\xff")}, {"name": "a"}, {"name": "z", "value": ""}],
}
EMPTY = {"key": b64("k"), "timestampMs": "1700000000002"}
FINISHED = b64(batch([b"raw-0", b"raw-1"]))
NO_RAW = {"curl": "HTTP has no raw reads"}
NO_JSON = {"curl": "its answer in JSON leaves headers out"}
NO_METHOD = {"grpcurl": "reflection does not know the method"}
POINTER = {"uri": "s3://bucket/snapshot-4", "position": "${b.last}", "sha256": b64(bytes(range(32))), "note": "the first five"}
# As the problem `trimmed` has it.
LED_TO = {**POINTER, "position": "${text b.last}", "sha256": bytes(range(32)).hex()}

GROUPS = {
    "topics": [
        create(partitions=2, settings={"max.message.bytes": "5000"}),
        create(partitions=2, settings={"max.message.bytes": "5000"}, expected=Problem("topic-exists")),
        Step("Topics.GetTopic", {"name": "${t}"}, {"name": "${t}", "id": "*", "partitions": 2, "replicationFactor": "*", "settings": {"max.message.bytes": "5000"}}, "got"),
        create("${t}-b", partitions=1),
        create("${t}-c"),
        Step("Topics.ListTopics", {"prefix": "${t}"}, {"topics": [{"name": "${t}", "id": "${got.id}", "partitions": 2, "replicationFactor": "*"}, "*", "*"]}),
        Step("Topics.ListTopics", {"prefix": "${t}", "limit": 1}, {"topics": ["*"], "more": True}),
        Step("Topics.ListTopics", {"prefix": "${t}", "after": "${t}-b"}, {"topics": [{"name": "${t}-c", "id": "*", "partitions": "*", "replicationFactor": "*"}]}),
        Step("Topics.ListTopics", {"prefix": "${t}-nothing"}, {}),
        Step("Topics.ListTopics", {"limit": 1001}, wrong("limit")),
        Step("Topics.DeleteTopic", {"name": "${t}-b"}, {}),
        Step("Topics.GetTopic", {"name": "${t}-b"}, Problem("unknown-topic")),
        Step("Topics.DeleteTopic", {"name": "${t}-b"}, Problem("unknown-topic")),
        create("${t}-d", partitions=-2, expected=wrong("partitions")),
        create("${t}-d", replicationFactor=40_000, expected=wrong("replication_factor")),
        create("${t}-d", replicationFactor=99, expected=wrong("replication_factor")),
        create("${t}-d", settings={"no.such.setting": "1"}, expected=wrong("settings")),
    ],
    "appends": [
        ONE,
        ask_tail(tail(0, 0, last=None)),
        append(["zero"], appended(0), "a"),
        append([KEYED, rec("two"), rec("", key="")], appended(1, 3), "b"),
        append([ODD, EMPTY], appended(4, 5)),
        ask_tail({**tail(0, 6), "last": pos(5, 4)}, "tail"),
        read(page(shown(0, "zero"), shown(1, KEYED, 1), shown(2, "two", 1), shown(3, rec("", key=""), 1)), limit=4),
        read(page(shown(4, ODD, 4), shown(5, EMPTY, 4)), without=NO_JSON, **{"from": 4}),
        Step("Logs.Append", {"topic": "${t}", "batch": FINISHED}, appended(6, 7)),
        read(page(shown(6, "raw-0", 6), shown(7, "raw-1", 6)), **{"from": 6}),
        read({"batches": "*", "next": 8, "end": 8}, without=NO_RAW, **{"from": 6, "raw": True}),
        Step("Logs.Append", {"topic": "${t}", "batch": FINISHED, "records": [rec("x")]}, wrong("batch")),
        Step("Logs.Append", {"topic": "${t}", "batch": b64(b"no batch at all")}, wrong("batch")),
        append([], wrong("records")),
        append(["x"] * 10_001, wrong("records")),
        append(["x"], Problem("unknown-topic"), partition=1),
        append(["x"], wrong("partition"), partition=-1),
        Step("Logs.Append", {"topic": "no-such-topic", "records": [rec("x")]}, Problem("unknown-topic")),
        ask_tail(tail(0, 8)),
    ],
    "sizes": [
        create(partitions=1, settings={"max.message.bytes": "5000"}),
        append(["y" * 4000], appended(0)),
        append(["y" * 6000], Problem("too-large", {"limit": 5000})),
        append(["y" * 3000, "y" * 3000], Problem("too-large", {"limit": 5000})),
        ask_tail(tail(0, 1)),
    ],
    "guards": [
        ONE,
        append(["a"], appended(0), "a", guard={"none": True}),
        append(["a"], Problem("last-mismatch", {"last": "${text a.last}"}), guard={"none": True}),
        append(["b", "c"], appended(1, 2), "b", guard={"at": "${a.last}"}),
        append(["b", "c"], Problem("last-mismatch", {"last": "${text b.last}"}), guard={"at": "${a.last}"}),
        append(["d"], Problem("last-mismatch", {"last": "${text b.last}"}), guard={"at": "${b.first}"}),
        append(["d"], Problem("last-mismatch", {"last": "${text b.last}"}), guard={"at": {"term": 99, "entry": 1, "offset": 2}}),
        append(["d"], wrong("guard.at"), guard={"at": {"term": -1, "entry": 0, "offset": 0}}, without={"curl": "the text of a position has no such number"}),
        append(["d"], wrong("guard.none"), guard={"none": False}),
        append(["d"], Problem("fenced"), guard={"fence": b64("w")}),
        append(["d"], appended(3), "d", guard={"fence": "", "at": "${b.last}"}),
        fence({**tail(0, 4, "${d.last}"), "fence": b64("w")}, "w"),
        append(["e"], appended(4), "e", guard={"fence": b64("w"), "at": "${d.last}"}),
        append(["f"], Problem("fenced"), guard={"fence": b64("v")}),
        append(["f"], appended(5)),
        lagging(read(page(*(shown(*it) for it in [(0, "a"), (1, "b", 1), (2, "c", 1), (3, "d"), (4, "e"), (5, "f")])), consistency="ANY_REPLICA", waitMs=1)),
    ],
    "fences": [
        ONE,
        append(["a"], appended(0), "a"),
        fence({**tail(0, 1, "${a.last}"), "fence": b64("one")}, "one", ifToken=""),
        fence(Problem("fenced"), "two", ifToken=b64("zero")),
        fence({**tail(0, 1, "${a.last}"), "fence": b64("two")}, "two", ifToken=b64("one")),
        fence({**tail(0, 1, "${a.last}"), "fence": b64(b"\xff\x01")}, b"\xff\x01", ifToken=b64("two")),
        append(["b"], appended(1), "b", guard={"fence": b64(b"\xff\x01")}),
        fence(wrong("token"), "t" * 65),
        fence(wrong("if_token"), "t", ifToken=b64("t" * 65)),
        append(["c"], wrong("guard.fence"), guard={"fence": b64("t" * 65)}),
        fence({**tail(0, 2, "${b.last}"), "fence": b64("t" * 64)}, "t" * 64),
        fence(tail(0, 2, "${b.last}"), ""),
        ask_tail(tail(0, 2, "${b.last}")),
    ],
    "sessions": [
        ONE,
        session(),
        append(["a", "b"], appended(0, 1), "a", session={"id": "${s.id}", "epoch": "${s.epoch}"}),
        append(["a", "b"], {"first": "${a.first}", "last": "${a.last}", "duplicate": True}, session={"id": "${s.id}", "epoch": "${s.epoch}"}),
        append(["c"], appended(2), "c", session={"id": "${s.id}", "epoch": "${s.epoch}", "sequence": 2}),
        append(["e"], Problem("sequence-gap", {"expected": 3}), session={"id": "${s.id}", "epoch": "${s.epoch}", "sequence": 5}),
        append(["c"], {"first": "${c.first}", "last": "${c.last}", "duplicate": True}, session={"id": "${s.id}", "epoch": "${s.epoch}", "sequence": 2}),
        append(["d"], appended(3), guard={"at": "${c.last}"}, session={"id": "${s.id}", "epoch": "${s.epoch}", "sequence": 3}),
        append(["e"], wrong("session"), session={"id": "${s.id}", "epoch": -1}),
        append(["e"], wrong("session"), session={"id": "${s.id}", "epoch": 40_000}),
        append(["e"], appended(4), session={"id": "${s.id}", "epoch": 9}),
        append(["f"], Problem("session-fenced"), session={"id": "${s.id}", "epoch": 8, "sequence": 1}),
        Step("Logs.Append", {"topic": "${t}", "batch": FINISHED, "session": {"id": "${s.id}", "epoch": 9, "sequence": 1}}, wrong("session")),
        ask_tail(tail(0, 5)),
    ],
    "reads": [
        ONE,
        read(page()),
        append(["0", "1", "2"], appended(0, 2), "a"),
        append(["3"], appended(3), "b"),
        read(page(shown(0, "0", 0), shown(1, "1", 0)), limit=2),
        read(page(shown(2, "2", 0), shown(3, "3")), **{"from": 2}),
        read(page(shown(1, "1", 0), shown(2, "2", 0), shown(3, "3")), after="${a.first}"),
        read(page(shown(3, "3")), after="${a.last}", consistency="ANY_REPLICA", waitMs=30_000, limit=1),
        read(page(), after="${b.last}"),
        read(page(), end=True),
        read(page(), **{"from": 4}),
        read(page(shown(0, "0", 0), shown(1, "1", 0), shown(2, "2", 0), shown(3, "3")), without={"curl": "a page of HTTP ends with the first entry"}, bytes=1),
        read(page(shown(4, "4")), beside=True, after="${b.last}", waitMs=60_000, limit=1),
        append(["4"], appended(4), "c"),
        Awaited(page(shown(4, "4"))),
        read(page(shown(5, "5")), beside=True, without={"curl": "HTTP follows by events"}, follow=True, limit=1, **{"from": 5}),
        append(["5"], appended(5)),
        Awaited(page(shown(5, "5"))),
        read(Problem("position-diverged", {"diverged_at": 6}), **{"from": 7}),
        read(Problem("position-diverged", {"diverged_at": "*"}), after={"term": 0, "entry": 3, "offset": 3}),
        read(wrong("from"), **{"from": -1}),
        read(wrong("bytes"), bytes=16_777_217),
        read(wrong("*"), waitMs=60_001),
        read(wrong("end"), without={"curl": "there is no such parameter"}, end=False),
        read(wrong("limit"), without={name: "a stream has no such bound" for name in ("grpcurl", "go", "java", "python", "node", "rust")}, limit=1001),
        Step("Logs.Read", {"topic": "no-such-topic"}, Problem("unknown-topic")),
        Step("Logs.Tail", {"topic": "no-such-topic"}, Problem("unknown-topic")),
        Step("Logs.Tail", {"topic": "${t}", "partition": 7}, Problem("unknown-topic")),
    ],
    "filters": [
        ONE,
        append(['{"n": 1}', '{"n": 2, "tags": ["x"]}', "no json"], appended(0, 2), "a"),
        read(page(shown(1, '{"n": 2, "tags": ["x"]}', 0)), filter="json.n > 1", skipFailed=True, limit=1),
        read(page(shown(2, "no json", 0)), filter="json == null"),
        read(page(shown(1, '{"n": 2, "tags": ["x"]}', 0)), filter="text.contains('tags') && json.tags.exists(it, it == 'x')"),
        read(
            page({"position": pos(1, 0), "fields": {"n": 2, "of": "1", "none": None, "all": {"n": 2, "tags": ["x"]}}}),
            filter="text.contains('tags')", fields={"n": "json.n", "of": "string(offset)", "none": "key", "all": "json"},
        ),
        read(Problem("filter-failed", {"field": "filter", "position": "${text a.last}"}), filter="json.n > 1", **{"from": 2}),
        read(Problem("filter-invalid", {"field": "filter", "at": "*"}), filter="json.n >"),
        read(Problem("filter-invalid", {"field": "filter"}), filter="text.matches('x')"),
        read(Problem("filter-invalid", {"field": "fields.y"}), fields={"y": "nothing"}),
        read(wrong("raw"), filter="true", raw=True, without={"curl": "HTTP has no raw batches"}),
    ],
    "queues": [
        create(partitions=1, settings={"queue.enable": "true"}),
        retrieve("alice", {"elements": []}),
        enqueue("alice", ["a0", "a1"], appended(0, 1), "a"),
        enqueue("bob", ["b0"], appended(2)),
        enqueue(b"\x00/\xff", ["odd"], appended(3)),
        enqueue("alice", ["a2"], appended(4), "c"),
        retrieve("alice", elements(element(0, "a0", 0), element(1, "a1", 0), element(4, "a2"), next=pos(4))),
        retrieve("alice", elements(element(0, "a0", 0), next=pos(0), more=True), limit=1),
        retrieve("alice", elements(element(4, "a2"), next=pos(4)), after="${a.last}"),
        retrieve("alice", elements(element(4, "a2"), next=pos(4)), after="${a.last}", consistency="ANY_REPLICA", waitMs=30_000),
        retrieve(b"\x00/\xff", elements(element(3, "odd"), next=pos(4))),
        retrieve("nobody", elements(next=pos(4)), waitMs=20),
        retrieve("alice", elements(element(1, "a1", 0), next=pos(4)), filter="text == 'a1'"),
        retrieve("alice", elements({"position": pos(4), "fields": {"at": 4}, "version": 4}, next=pos(4)), fields={"at": "offset"}, after="${a.last}"),
        retrieve("alice", elements(element(6, "a3"), next="*"), beside=True, after="${c.last}", waitMs=60_000),
        enqueue("bob", ["b1"], appended(5)),
        enqueue("alice", ["a3"], appended(6), "d"),
        Awaited(elements(element(6, "a3"), next="*")),
        get_element("alice", "${a.last}", element(1, "a1", 0)),
        get_element("bob", "${a.last}", Problem("unknown-element")),
        get_queue("alice", {**named("alice", 4), "first": "${a.first}", "last": "${d.last}"}),
        get_queue("nobody", named("nobody", 0)),
        Step("Queues.ListQueues", {"topic": "${t}"}, {"queues": [named(b"\x00/\xff", 1), named("alice", 4), named("bob", 2)]}),
        Step("Queues.ListQueues", {"topic": "${t}", "prefix": b64("a"), "limit": 1}, {"queues": [named("alice", 4)]}),
        Step("Queues.ListQueues", {"topic": "${t}", "after": b64("alice"), "limit": 1}, {"queues": [named("bob", 2)]}),
        retrieve("alice", wrong("limit"), limit=1001),
        retrieve("alice", Problem("position-diverged", {"diverged_at": 7}), after={"term": "${d.last.term}", "entry": 9, "offset": 9}),
        enqueue("q" * 513, ["x"], wrong("queue")),
        enqueue("q" * 512, ["long"], appended(7)),
        enqueue("alice", [], wrong("messages")),
        create("${t}-plain", partitions=1),
        Step("Queues.Enqueue", {"topic": "${t}-plain", "queue": b64("a"), "messages": [rec("x")]}, Problem("not-a-queue-topic")),
        Step("Queues.ListQueues", {"topic": "no-such-topic"}, Problem("unknown-topic")),
        # An element is a record of the log, too, and its key is the queue's name.
        read(page(shown(2, rec("b0", key="bob"))), limit=1, **{"from": 2}),
        append([rec("by its key", key="bob")], appended(8)),
        retrieve("bob", elements(element(8, "by its key"), next=pos(8)), after={"term": "${d.last.term}", "entry": 6, "offset": 6}),
        append(["no key"], wrong("records")),
        # A guard is about the queue, whatever else the log has.
        enqueue("alice", ["g"], appended(9), "g", guard={"at": "${d.last}"}),
        enqueue("alice", ["h"], Problem("last-mismatch", {"last": "${text g.last}"}), guard={"at": "${d.last}"}),
        enqueue("alice", ["h"], Problem("last-mismatch", {"last": "${text g.last}"}), guard={"none": True}),
        enqueue("carol", ["c"], appended(10), guard={"none": True}),
        enqueue_many([("alice", "m0"), ("dave", "m1"), ("alice", "m2")], {"results": [{"position": pos(11)}, {"position": pos(12, 11)}, {"position": pos(13, 11)}]}),
        retrieve("dave", elements(element(12, "m1", 11), next=pos(13, 11))),
        enqueue_many([], wrong("messages")),
        enqueue_many([("q" * 513, "x")], wrong("queue")),
    ],
    "edits": [
        create(partitions=1, settings={"queue.enable": "true"}),
        enqueue("alice", ["a0", "a1", "a2"], appended(0, 2), "a"),
        enqueue("bob", ["b0"], appended(3), "b"),
        delete("alice", ["${a.first}"], edited(4, 1)),
        retrieve("alice", elements(element(1, "a1", 0), element(2, "a2", 0), next=pos(4))),
        get_element("alice", "${a.first}", Problem("unknown-element")),
        delete("alice", ["${a.first}"], {"absent": 1}),
        # An element of another queue stays.
        delete("alice", ["${b.first}", "${a.last}"], edited(5, 1, absent=1)),
        retrieve("alice", elements(element(1, "a1", 0), next=pos(5))),
        retrieve("bob", elements(element(3, "b0"), next=pos(5))),
        get_queue("alice", {**named("alice", 1), "first": pos(1, 0), "last": "${a.last}"}),
        # Readers of the log see the same.
        read(page(shown(1, rec("a1", key="alice"), 0), shown(3, rec("b0", key="bob")))),
        # A guard names the element that was appended last, deleted or not.
        enqueue("alice", ["a3"], appended(6), "c", guard={"at": "${a.last}"}),
        delete("alice", ["${c.last}"], Problem("fenced"), fence=b64("nobody")),
        delete("alice", ["${c.last}"], edited(7, 1), fence="", timeoutMs=5_000),
        delete("alice", [], wrong("positions")),
        delete("alice", [{"term": "${a.last.term}", "entry": 9, "offset": 9}], Problem("position-diverged", {"diverged_at": 8})),
        Step("Queues.Delete", {"topic": "no-such-topic", "queue": b64("a"), "positions": ["${a.last}"]}, Problem("unknown-topic")),
        # A deleted queue is as one without elements.
        delete_queue("alice", Problem("fenced"), fence=b64("nobody")),
        delete_queue("alice", edited(8, 1), fence=""),
        delete_queue("alice", {}),
        retrieve("alice", elements(next=pos(8))),
        get_queue("alice", named("alice", 0)),
        Step("Queues.ListQueues", {"topic": "${t}"}, {"queues": [named("bob", 1)]}),
        read(page(shown(3, rec("b0", key="bob")))),
        enqueue("alice", ["a4"], appended(9), guard={"none": True}),
        retrieve("alice", elements(element(9, "a4"), next=pos(9))),
        delete_queue("q" * 513, wrong("queue")),
        Step("Queues.DeleteQueue", {"topic": "no-such-topic", "queue": b64("a")}, Problem("unknown-topic")),
    ],
    "replacements": [
        create(partitions=1, settings={"queue.enable": "true"}),
        enqueue("alice", ["a0", "a1", "a2"], appended(0, 2), "a"),
        enqueue("bob", ["b0"], appended(3), "b"),
        # The element keeps its place, and the log has its content at the end.
        replace("alice", "${a.first}", rec("new", headers=[("h", "v")]), edited(4, 1)),
        retrieve("alice", elements(element(0, rec("new", headers=[("h", "v")]), version=4), element(1, "a1", 0), element(2, "a2", 0), next=pos(4))),
        get_element("alice", "${a.first}", element(0, rec("new", headers=[("h", "v")]), version=4)),
        retrieve("alice", elements(element(1, "a1", 0), element(2, "a2", 0), next=pos(4)), after="${a.first}"),
        retrieve("alice", elements({"position": pos(0), "fields": {"at": 0, "text": "new"}, "version": 4}, next=pos(4)), filter="offset == 0", fields={"at": "offset", "text": "text"}),
        read(page(shown(1, rec("a1", key="alice"), 0), shown(2, rec("a2", key="alice"), 0), shown(3, rec("b0", key="bob"))), limit=3),
        read(page(shown(4, stated(rec("new", key="alice", headers=[("h", "v")]), "duramen-replaces", "${bytes a.first}"))), without=NO_JSON, **{"from": 4}),
        # It is done only to the version that is named.
        replace("alice", "${a.first}", "late", Problem("version-mismatch", {"version": 4}), ifVersion=0),
        replace("alice", "${a.first}", "newer", edited(5, 1), ifVersion=4, fence=""),
        replace("alice", "${a.first}", "late", Problem("fenced"), ifVersion=5, fence=b64("nobody")),
        get_element("alice", "${a.first}", element(0, "newer", version=5)),
        # Under a name it is done once.
        replace("alice", "${a.last}", rec("once", id="1"), edited(6, 1), "once", timeoutMs=5_000),
        replace("alice", "${a.last}", rec("once", id="1"), {"at": "${once.at}", "last": "${once.last}", "duplicate": True}),
        get_element("alice", "${a.last}", element(2, rec("once", id="1"), 0, version=6)),
        subscribe(
            [("alice", {})],
            [came("alice", 0, "newer", version=5), came("alice", 1, "a1", entry=0), came("alice", 2, rec("once", id="1"), entry=0, version=6), told("alice", "caughtUp")],
        ),
        # A guard and the queue's ends are about positions.
        get_queue("alice", {**named("alice", 3), "first": "${a.first}", "last": "${a.last}"}),
        enqueue("alice", ["a3"], appended(7), guard={"at": "${a.last}"}),
        delete("alice", ["${a.first}"], edited(8, 1)),
        replace("alice", "${a.first}", "x", Problem("unknown-element")),
        replace("alice", "${b.first}", "x", Problem("unknown-element")),
        replace("alice", {"term": "${a.last.term}", "entry": 9, "offset": 9}, "x", Problem("position-diverged", {"diverged_at": 9})),
        replace("alice", "${a.last}", rec("x", id="4" * 65), wrong("messages")),
        replace("alice", "${a.last}", rec("x", headers=[("duramen-replaces", "1.0.0")]), wrong("records")),
        Step("Queues.Replace", {"topic": "no-such-topic", "queue": b64("a"), "position": "${a.last}", "message": rec("x")}, Problem("unknown-topic")),
    ],
    "rewrites": [
        create(partitions=1, settings={"queue.enable": "true"}),
        enqueue("alice", ["a0", "a1", "a2"], appended(0, 2), "a"),
        enqueue("bob", ["b0"], appended(3)),
        # Its content is behind the cut, and its place is not.
        replace("alice", "${a.first}", "new", edited(4, 1)),
        rewrite("alice", ["x"], wrong("fence"), after="${a.first}"),
        rewrite("alice", ["x"], Problem("fenced"), after="${a.first}", fence=b64("w")),
        fence("*", "w"),
        rewrite("alice", ["x"], Problem("fenced"), after="${a.first}", fence=b64("v")),
        rewrite("alice", [rec("c1", id="1"), rec("c2", id="2")], edited(5, 2, last=6), "c", after="${a.first}", fence=b64("w"), reason="a bad import"),
        rewrite("alice", [rec("c1", id="1"), rec("c2", id="2")], {"at": "${c.at}", "last": "${c.last}", "duplicate": True}, after="${a.first}", fence=b64("w")),
        retrieve("alice", elements(element(0, "new", version=4), element(5, rec("c1", id="1")), element(6, rec("c2", id="2"), 5), next=pos(6, 5))),
        retrieve("alice", elements(element(5, rec("c1", id="1")), element(6, rec("c2", id="2"), 5), next=pos(6, 5)), after="${a.last}"),
        get_element("alice", "${a.last}", Problem("unknown-element")),
        get_queue("alice", {**named("alice", 3), "first": "${a.first}", "last": "${c.last}"}),
        read(
            page(
                shown(3, rec("b0", key="bob")),
                shown(4, stated(rec("new", key="alice"), "duramen-replaces", "${bytes a.first}")),
                shown(5, stated(rec("c1", key="alice", id="1"), "duramen-cuts-after", "${bytes a.first}")),
                shown(6, rec("c2", key="alice", id="2"), 5),
            ),
            without=NO_JSON,
        ),
        enqueue("alice", ["x"], Problem("last-mismatch", {"last": "${text c.last}"}), guard={"at": "${a.last}"}),
        enqueue("alice", ["a3"], appended(7), guard={"at": "${c.last}"}),
        # Without messages it is a cut, and then there is nothing to cut.
        rewrite("alice", [], edited(8, 3), after="${a.first}", fence=b64("w"), timeoutMs=5_000),
        rewrite("alice", [], {}, after="${a.first}", fence=b64("w")),
        retrieve("alice", elements(element(0, "new", version=4), next=pos(8))),
        enqueue("alice", ["a4"], appended(9), guard={"at": "${a.first}"}),
        rewrite("alice", ["d0"], edited(10, 2), none=True, fence=b64("w")),
        retrieve("alice", elements(element(10, "d0"), next=pos(10))),
        read(page(shown(10, stated(rec("d0", key="alice"), "duramen-cuts-after", b64("none")))), without=NO_JSON, **{"from": 4}),
        rewrite("alice", ["x"], wrong("after"), fence=b64("w")),
        rewrite("alice", ["x"], wrong("fence"), none=True, fence=b64("t" * 65)),
        rewrite("alice", ["x"], wrong("reason"), none=True, fence=b64("w"), reason="r" * 1025),
        rewrite("alice", [rec("x", id="1"), "y"], wrong("messages"), none=True, fence=b64("w")),
        Step("Queues.Rewrite", {"topic": "no-such-topic", "queue": b64("a"), "none": True, "fence": b64("w")}, Problem("unknown-topic")),
    ],
    "fences-and-trims": [
        create(partitions=1, settings={"queue.enable": "true"}),
        get_queue("alice", named("alice", 0)),
        # An empty token expects that the queue has none of its own.
        fence_queue("alice", "one", edited(0, 0), ifToken=""),
        fence_queue("alice", "one", {}, timeoutMs=5_000),
        get_queue("alice", {**named("alice", 0), "fence": b64("one")}),
        enqueue("alice", ["a0"], appended(1), "a", guard={"fence": b64("one"), "none": True}),
        enqueue("alice", ["x"], Problem("fenced"), guard={"fence": b64("two")}),
        enqueue("alice", ["x"], Problem("fenced"), guard={"fence": ""}),
        enqueue("alice", ["a1"], appended(2), "b"),
        fence_queue("alice", "two", Problem("fenced"), ifToken=""),
        fence_queue("alice", "two", Problem("fenced"), ifToken=b64("zero")),
        fence_queue("alice", b"\xff\x01", edited(3, 0), ifToken=b64("one")),
        fence_queue("alice", "two", edited(4, 0), ifToken=b64(b"\xff\x01")),
        enqueue("alice", ["x"], Problem("fenced"), guard={"fence": b64("one")}),
        # Another queue has no fence of its own, and neither has the log.
        enqueue("bob", ["x"], Problem("fenced"), guard={"fence": b64("two")}),
        enqueue("bob", ["b0"], appended(5), guard={"fence": ""}),
        # The log's counts for a queue without one, and for no other.
        fence("*", "log"),
        enqueue("bob", ["b1"], appended(6), "bob", guard={"fence": b64("log")}),
        enqueue("bob", ["x"], Problem("fenced"), guard={"fence": b64("two")}),
        enqueue("alice", ["x"], Problem("fenced"), guard={"fence": b64("log")}),
        enqueue("alice", ["a2"], appended(7), "c", guard={"fence": b64("two")}),
        delete("alice", ["${c.last}"], Problem("fenced"), fence=b64("log")),
        replace("alice", "${c.last}", "x", Problem("fenced"), fence=b64("log")),
        rewrite("alice", ["x"], Problem("fenced"), after="${b.last}", fence=b64("log")),
        rewrite("alice", ["a3"], edited(8, 1), "d", after="${b.last}", fence=b64("two")),
        # Readers of the queue begin behind a trim.
        trim_queue("alice", "${b.last}", Problem("fenced"), pointer=POINTER, fence=b64("log")),
        trim_queue("alice", "${b.last}", edited(9, 0), pointer=POINTER, fence=b64("two"), timeoutMs=5_000),
        retrieve("alice", elements(element(8, "a3"), next=pos(9))),
        lagging(retrieve("alice", elements(element(8, "a3"), next=pos(9)), consistency="ANY_REPLICA")),
        retrieve("alice", elements(element(8, "a3"), next=pos(9)), after="${b.last}"),
        retrieve("alice", Problem("trimmed", {"first": 3, "pointer": LED_TO}), after="${a.last}"),
        retrieve("alice", elements(element(8, "a3"), next=pos(9), skipped=True), after="${a.last}", skipTrimmed=True),
        subscribe([("alice", {"after": "${a.last}"})], Problem("trimmed", {"first": 3, "pointer": LED_TO})),
        subscribe([("alice", {"after": "${a.last}"})], [told("alice", "trimmed"), came("alice", 8, "a3"), told("alice", "caughtUp")], skipTrimmed=True),
        subscribe([("alice", {})], [came("alice", 8, "a3"), told("alice", "caughtUp")]),
        get_element("alice", "${b.last}", Problem("unknown-element")),
        replace("alice", "${b.last}", "x", Problem("unknown-element")),
        get_queue("alice", {**named("alice", "*"), "first": "${d.at}", "last": "${d.last}", "fence": b64("two"), "pointer": POINTER}),
        retrieve("bob", elements(element(5, "b0"), element(6, "b1"), next=pos(9))),
        get_queue("bob", {**named("bob", 2), "first": pos(5), "last": "${bob.last}"}),
        Step("Queues.ListQueues", {"topic": "${t}"}, {"queues": [named("alice", "*"), named("bob", 2)]}),
        # The log keeps its records.
        read(page(shown(1, rec("a0", key="alice")), shown(2, rec("a1", key="alice")), shown(5, rec("b0", key="bob"))), limit=3),
        # There is no way back, and nothing to say twice.
        trim_queue("alice", "${a.last}", {}, pointer={"uri": "file:back"}),
        trim_queue("alice", "${b.last}", {}, pointer=POINTER),
        get_queue("alice", {**named("alice", "*"), "first": "${d.at}", "last": "${d.last}", "fence": b64("two"), "pointer": POINTER}),
        enqueue("alice", ["a4"], appended(10), "e", guard={"at": "${d.last}", "fence": b64("two")}),
        # Without a fence of its own a queue has the log's.
        fence_queue("alice", "", Problem("fenced"), ifToken=b64("log")),
        fence_queue("alice", "", edited(11, 0), ifToken=b64("two")),
        enqueue("alice", ["x"], Problem("fenced"), guard={"fence": b64("two")}),
        enqueue("alice", ["a5"], appended(12), "f", guard={"fence": b64("log")}),
        get_queue("alice", {**named("alice", "*"), "first": "${d.at}", "last": "${f.last}", "pointer": POINTER}),
        # A trim may take all, and a later one without a pointer leaves none.
        fence_queue("alice", "three", edited(13, 0)),
        trim_queue("alice", "${f.last}", edited(14, 0), fence=b64("three")),
        retrieve("alice", elements(next=pos(14))),
        get_queue("alice", {**named("alice", "*"), "last": "${f.last}", "fence": b64("three")}),
        retrieve("alice", Problem("trimmed", {"first": 13}), after="${e.last}"),
        enqueue("alice", ["a6"], appended(15), "g", guard={"at": "${f.last}"}),
        # Another pointer to the same position is something to say.
        trim_queue("alice", "${f.last}", edited(16, 0), pointer={"uri": "file:late"}),
        get_queue("alice", {**named("alice", "*"), "first": "${g.first}", "last": "${g.last}", "fence": b64("three"), "pointer": {"uri": "file:late"}}),
        trim_queue("alice", "${g.last}", edited(17, 0), pointer={"uri": "file:all"}),
        # What the log keeps may still be deleted there.
        delete("alice", ["${a.last}"], edited(18, 1), fence=b64("three")),
        read(page(shown(2, rec("a1", key="alice")), shown(5, rec("b0", key="bob"))), limit=2),
        # A deleted queue has neither, and the log has nothing of it.
        delete_queue("alice", Problem("fenced"), fence=b64("log")),
        delete_queue("alice", edited(19, 5), fence=b64("three")),
        get_queue("alice", named("alice", 0)),
        enqueue("alice", ["x"], Problem("fenced"), guard={"fence": b64("three")}),
        enqueue("alice", ["a7"], appended(20), guard={"fence": b64("log"), "none": True}),
        retrieve("alice", elements(element(20, "a7"), next=pos(20)), after="${a.last}"),
        retrieve("bob", elements(element(5, "b0"), element(6, "b1"), next=pos(20))),
        read(page(shown(5, rec("b0", key="bob")), shown(6, rec("b1", key="bob")), shown(20, rec("a7", key="alice")))),
        fence_queue("alice", "t" * 65, wrong("token")),
        fence_queue("alice", "t", wrong("if_token"), ifToken=b64("t" * 65)),
        fence_queue("q" * 513, "t", wrong("queue")),
        trim_queue("q" * 513, "${b.last}", wrong("queue")),
        trim_queue("alice", "${b.last}", wrong("fence"), fence=b64("t" * 65)),
        trim_queue("alice", "${b.last}", wrong("pointer.sha256"), pointer={"uri": "file:x", "sha256": b64("short")}),
        trim_queue("alice", "${b.last}", wrong("pointer"), pointer={"uri": "u" * 1100}),
        trim_queue("alice", {"term": "${a.last.term}", "entry": 99, "offset": 99}, Problem("position-diverged", {"diverged_at": 21})),
        Step("Queues.TrimQueue", {"topic": "${t}", "queue": b64("alice")}, wrong("through")),
        Step("Queues.TrimQueue", {"topic": "no-such-topic", "queue": b64("a"), "through": "${b.last}"}, Problem("unknown-topic")),
        Step("Queues.FenceQueue", {"topic": "no-such-topic", "queue": b64("a"), "token": b64("t")}, Problem("unknown-topic")),
    ],
    "once": [
        create(partitions=1, settings={"queue.enable": "true"}),
        enqueue("alice", [rec("a", id="1"), rec("b", id="2")], appended(0, 1), "a", guard={"none": True}),
        enqueue("alice", [rec("a", id="1"), rec("b", id="2")], appended(0, 1, duplicate=True), guard={"none": True}),
        enqueue("alice", [rec("b", id="2"), rec("a", id="1")], Problem("last-mismatch", {"last": "${text a.last}"}), guard={"none": True}),
        enqueue("alice", [rec("c", id="3")], appended(2), "c", guard={"at": "${a.last}"}),
        enqueue("alice", [rec("c", id="3")], appended(2, duplicate=True), guard={"at": "${a.last}"}),
        enqueue("alice", [rec("a", id="1"), rec("b", id="2")], appended(0, 1, duplicate=True), guard={"none": True}),
        enqueue("alice", [rec("d", id="4"), "e"], wrong("messages")),
        enqueue("alice", [rec("d", id="4" * 65)], wrong("messages")),
        retrieve("alice", elements(element(2, rec("c", id="3")), next=pos(2)), after="${a.last}"),
        append([rec("d", key="alice", id="4")], appended(3), "d", guard={"at": "${c.last}"}),
        append([rec("d", key="alice", id="4")], appended(3, duplicate=True), guard={"at": "${c.last}"}),
        append([rec("d", key="alice", id="5")], Problem("last-mismatch", {"last": "${text d.last}"}), guard={"at": "${c.last}"}),
        session("old", name="w-${t}"),
        enqueue("bob", ["b0"], appended(4), session=of("old", 0)),
        session("new", id="${old.id}", name="w-${t}"),
        enqueue("bob", ["b0"], appended(4, duplicate=True), session=of("old", 0)),
        enqueue("bob", ["b1"], appended(5), session=of("new", 0)),
        enqueue("bob", ["no"], Problem("session-fenced"), session=of("old", 1)),
        enqueue("bob", ["b1"], appended(5, duplicate=True), session=of("new", 0)),
        Step("Logs.OpenSession", {"name": "w" * 256}, wrong("name")),
        retrieve("bob", elements(element(4, "b0"), element(5, "b1"), next=pos(5))),
    ],
    "streams": [
        create(partitions=1, settings={"queue.enable": "true"}),
        enqueue_stream([("alice", f"a{it}", {}) for it in range(4)], [streamed(it + 1, pos(it)) for it in range(4)]),
        retrieve("alice", elements(*(element(it, f"a{it}") for it in range(4)), next=pos(3))),
        session(),
        enqueue_stream(
            [("bob", f"b{it}", {"session": {"id": "${s.id}", "epoch": "${s.epoch}", "sequence": it}}) for it in (0, 1, 2, 1, 5)],
            [*(streamed(it + 1, pos(4 + it)) for it in range(3)), streamed(4, pos(5), duplicate=True), failed(5, "sequence-gap", {"expected": "3"})],
        ),
        enqueue_stream(
            [("alice", "a4", {}), ("q" * 513, "x", {}), ("carol", "c0", {"guard": {"none": True}}), ("alice", "no", {"guard": {"none": True}}), ("alice", "a5", {})],
            [streamed(1, pos("*", "*")), failed(2, "bad-request"), streamed(3, pos("*", "*")), failed(4, "last-mismatch"), streamed(5, pos("*", "*"))],
        ),
        enqueue_stream([], []),
        # Of several queues the events come in any order; here they are put in that of queues and offsets.
        subscribe(
            [("alice", {}), ("bob", {}), ("nobody", {})],
            [
                *(came("alice", it, f"a{it}", pos(it)) for it in range(4)), came("alice", "*", "a4"), came("alice", "*", "a5"), told("alice", "caughtUp"),
                *(came("bob", 4 + it, f"b{it}", pos(4 + it)) for it in range(3)), told("bob", "caughtUp"),
                told("nobody", "caughtUp"),
            ],
        ),
        subscribe([("bob", {})], [came("bob", 5, "b1"), told("bob", "caughtUp")], filter="text == 'b1'"),
        lagging(subscribe([("bob", {})], [came("bob", 4, "b0"), came("bob", 5, "b1"), came("bob", 6, "b2"), told("bob", "caughtUp")], consistency="ANY_REPLICA", bytes=20_000)),
        subscribe([("dave", {})], [came("dave", "*", "d0"), came("dave", "*", "d1"), told("dave", "caughtUp")], beside=True),
        enqueue("dave", ["d0"], {"first": pos("*", "*"), "last": pos("*", "*")}, "d"),
        enqueue("dave", ["d1"], {"first": pos("*", "*"), "last": pos("*", "*")}),
        Awaited([came("dave", "*", "d0"), came("dave", "*", "d1"), told("dave", "caughtUp")]),
        subscribe([("dave", {"after": "${d.last}"})], [came("dave", "*", "d1"), told("dave", "caughtUp")]),
        subscribe([("dave", {"end": True})], [told("dave", "caughtUp")]),
        subscribe([], wrong("cursors")),
        subscribe([("a", {}), ("a", {})], wrong("cursors")),
        subscribe([(f"q{it}", {}) for it in range(65)], wrong("cursors")),
        subscribe([("a", {})], wrong("bytes"), bytes=16_777_217),
        subscribe([("a", {})], Problem("filter-invalid", {"field": "filter"}), filter="nothing"),
        Step("Queues.Subscribe", {"topic": "no-such-topic", "cursors": [{"queue": b64("a")}]}, Problem("unknown-topic")),
        truncate("*", through="${d.last}"),
        subscribe([("alice", {"after": {"term": "${d.last.term}", "entry": 0, "offset": 0}})], Problem("trimmed", {"first": "*"})),
        subscribe(
            [("dave", {"after": {"term": "${d.last.term}", "entry": 0, "offset": 0}})],
            [told("dave", "trimmed", pos(0)), came("dave", "*", "d1"), told("dave", "caughtUp")], skipTrimmed=True,
        ),
    ],
    "leases": [
        create(partitions=1, settings={"queue.enable": "true"}),
        lease([]),
        enqueue("alice", ["a0", "a1"], appended(0, 1)),
        enqueue("bob", [rec("b0", schedule={"priority": 9})], appended(2)),
        enqueue("carol", [rec("c0", schedule={"ttlMs": 1})], appended(3)),
        enqueue("dave", [rec("d0", schedule={"deliverAtMs": 4_000_000_000_000})], appended(4)),
        lease([leased("bob", 2, rec("b0", headers=[("duramen-priority", "9")]))], waitMs=1_000),
        lease([leased("alice", 0, "a0"), leased("alice", 1, "a1", entry=0)], limit=5, bytes=1_000),
        settle([("0.0.1", "ACCEPT"), ("0.2.1", "REJECT")], []),
        settle([("0.0.1", "ACCEPT"), ("0.1.1", "RENEW")], ["0.0.1"]),
        settle([("0.1.1", "ACCEPT")], ["0.1.1"], worker="another"),
        settle([("0.1.1", "RELEASE")], []),
        lease([leased("alice", 1, "a1", entry=0, deliveries=2)], partition=0, waitMs=1_000),
        settle([("0.1.2", "UNSEEN")], []),
        lease([leased("alice", 1, "a1", entry=0, deliveries=2)], worker=""),
        settle([("0.1.2", "RELEASE", 1)], [], worker=""),
        lease([leased("alice", 1, "a1", entry=0, deliveries=3)], waitMs=10_000),
        settle([("0.1.3", "ACCEPT")], []),
        lease([leased("erin", 5, "e0")], beside=True, waitMs=60_000),
        enqueue("erin", ["e0"], appended(5)),
        Awaited({"leases": [leased("erin", 5, "e0")], "lockMs": "*"}),
        settle([("0.5.1", "ACCEPT")], []),
        # Another group has them all.
        lease([leased("bob", 2, rec("b0", headers=[("duramen-priority", "9")])), "*", "*", "*"], group="${t}-others", limit=10),
        lease(wrong("limit", "wait_ms"), limit=1_001, waitMs=60_001),
        lease(wrong("bytes", "worker"), bytes=16_777_217, worker="w" * 37),
        lease(wrong("group"), group=" "),
        lease(wrong("partition"), partition=-1),
        lease(Problem("unknown-topic"), partition=1),
        settle([], wrong("settlements")),
        settle([("no lease", "ACCEPT")], wrong("settlements")),
        settle([("0.5.1", "ACCEPT"), ("0.5.1", "ACCEPT")], wrong("settlements")),
        settle([("0.5.1", "ACCEPT", 1)], wrong("settlements")),
        enqueue("alice", [rec("x", schedule={"priority": 10})], wrong("schedule")),
        enqueue("alice", [rec("x", schedule={"deliverAtMs": -1})], wrong("schedule")),
        Step("Leases.Lease", {"topic": "no-such-topic", "group": "g"}, Problem("unknown-topic")),
        Step("Leases.Settle", {"topic": "no-such-topic", "group": "g", "settlements": [{"lease": "0.0.1"}]}, Problem("unknown-topic")),
        Step("Leases.Redrive", {"topic": "no-such-topic"}, Problem("unknown-topic")),
        Step("Leases.Redrive", {"topic": "${t}", "limit": 10_001}, wrong("limit")),
        Step("Leases.Redrive", {"topic": "${t}", "to": "${t}"}, wrong("to")),
        create("${t}-dead", partitions=1),
        Step("Logs.Append", {"topic": "${t}-dead", "records": [rec("no letter"), rec("f0", "frank", [("h", "v"), ("__dlq.errors.topic", "no-such-topic")])]}, appended(0, 1)),
        Step("Leases.Redrive", {"topic": "${t}-dead", "limit": 10}, {"left": 2}),
        Step("Leases.Redrive", {"topic": "${t}-dead", "group": "none"}, {"left": 2}),
        Step("Leases.Redrive", {"topic": "${t}-dead", "to": "${t}"}, {"moved": 1, "left": 1}),
        lease([leased("frank", 6, rec("f0", headers=[("h", "v")]))], waitMs=1_000),
    ],
    "truncations": [
        ONE,
        append(["0", "1", "2"], appended(0, 2), "a"),
        append(["3", "4"], appended(3, 4), "b"),
        append(["5"], appended(5), "c"),
        truncate({**tail(3, 6, "${c.last}")}, through="${a.last}"),
        read(Problem("trimmed", {"first": 3}), **{"from": 0}),
        truncate({**tail(5, 6, "${c.last}"), "pointer": POINTER}, through="${b.last}", pointer=POINTER),
        ask_tail({**tail(5, 6, "${c.last}"), "pointer": POINTER}),
        read(Problem("trimmed", {"first": 5, "pointer": LED_TO}), **{"from": 0}),
        read(Problem("trimmed", {"first": 5, "pointer": "*"}), after="${a.first}"),
        read(page(shown(5, "5"), skipped=True), skipTrimmed=True, **{"from": 0}),
        read(page(shown(5, "5"))),
        truncate(Problem("fenced"), fence=b64("x")),
        fence({**tail(5, 6, "${c.last}"), "pointer": POINTER, "fence": b64("x")}, "x"),
        # Where the record is gone before the answer is made, its entry is -1. Else `last` is "${c.last}".
        truncate({**tail(6, 6, pos(5, "*")), "pointer": {"uri": "file:all"}, "fence": b64("x")}, fence=b64("x"), pointer={"uri": "file:all"}),
        truncate(wrong("pointer.sha256"), pointer={"uri": "file:x", "sha256": b64("short")}),
        truncate(wrong("pointer"), pointer={"uri": "u" * 1100}),
        truncate(wrong("fence"), fence=b64("t" * 65)),
        append(["6"], appended(6), guard={"at": "${c.last}"}),
        read(page(shown(6, "6"))),
    ],
    "refusals": [
        Step("Nothing.Do", {}, Problem("unsupported"), without=NO_METHOD),
        Step("Logs.Tail", {"topic": ""}, wrong("topic"), without={"curl": "no path has an empty name"}),
        Step("Logs.Tail", {"topic": "t", "partition": -1}, wrong("partition")),
    ],
}
