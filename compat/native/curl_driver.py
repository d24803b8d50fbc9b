"""Carries out the steps that it reads, one a line, by curl; see README.md.

A step is made HTTP with JSON, and its answer a message again. What JSON here has no words for goes in the protocol's messages.
"""

import base64
import json
import subprocess
import sys
from urllib.parse import quote, urlencode

import reach
from duramen.v1 import duramen_pb2
from google.protobuf import json_format

PROTOBUF = "application/x-protobuf"
CURL = ["curl", "-sS", *(["--cacert", reach.CA, "-u", f"{reach.USER}:{reach.PASSWORD}"] if reach.USER else [])]
ANSWERS = {
    "Leases.Lease": duramen_pb2.LeaseResponse,
    "Leases.Settle": duramen_pb2.SettleResponse,
    "Leases.Redrive": duramen_pb2.RedriveResponse,
    "Logs.Append": duramen_pb2.AppendResponse,
    "Logs.Read": duramen_pb2.ReadResponse,
    "Logs.Tail": duramen_pb2.Tail,
    "Logs.Truncate": duramen_pb2.Tail,
    "Logs.Fence": duramen_pb2.Tail,
    "Logs.OpenSession": duramen_pb2.Session,
    "Queues.Enqueue": duramen_pb2.EnqueueResponse,
    "Queues.EnqueueMany": duramen_pb2.EnqueueManyResponse,
    "Queues.Retrieve": duramen_pb2.RetrieveResponse,
    "Queues.GetElement": duramen_pb2.ReadRecord,
    "Queues.Delete": duramen_pb2.EditResponse,
    "Queues.Replace": duramen_pb2.EditResponse,
    "Queues.Rewrite": duramen_pb2.EditResponse,
    "Queues.DeleteQueue": duramen_pb2.EditResponse,
    "Queues.TrimQueue": duramen_pb2.EditResponse,
    "Queues.FenceQueue": duramen_pb2.EditResponse,
    "Queues.GetQueue": duramen_pb2.Queue,
    "Queues.ListQueues": duramen_pb2.ListQueuesResponse,
    "Topics.CreateTopic": duramen_pb2.Topic,
    "Topics.GetTopic": duramen_pb2.Topic,
    "Topics.ListTopics": duramen_pb2.ListTopicsResponse,
}


class NotInJson(Exception):
    """JSON has no words for a part of the request."""


def text_of(encoded):
    try:
        return base64.b64decode(encoded).decode()
    except UnicodeDecodeError:
        raise NotInJson from None


def position_text(position):
    return ".".join(str(position.get(part, 0)) for part in ("term", "entry", "offset"))


def position_of(text):
    term, entry, offset = text.split(".")
    return {"term": int(term), "entry": entry, "offset": offset}


def renamed(message, /, **how):
    """The members with other names, and values made by `how`; each has to be named there."""
    if set(message) - set(how):
        raise NotInJson
    return {how[name][0]: how[name][1](value) for name, value in message.items()}


def same(value):
    return value


def headers_json(headers):
    found = {header["name"]: header for header in headers}
    if len(found) < len(headers) or any("value" not in header for header in headers):
        raise NotInJson
    return {name: text_of(header["value"]) for name, header in found.items()}


def record_json(record):
    return renamed(record, key=("key_base64", same), value=("base64", same), headers=("headers", headers_json), timestampMs=("timestamp_ms", int), id=("id", same))


def message_json(message):
    """A queue's message has its schedule among its members."""
    times = {name: (text, int) for name, text in TIMES.items()}
    return {**record_json({name: it for name, it in message.items() if name != "schedule"}), **renamed(message.get("schedule", {}), **times)}


def settlement_json(settlement):
    return renamed(settlement, lease=("lease", same), decision=("decision", str.lower), delayMs=("delay_ms", int))


def guard_json(guard):
    if guard.get("none") is False:
        raise NotInJson
    return renamed(guard, at=("last", position_text), none=("last", lambda _: "none"), fence=("fence", text_of))


def session_json(session):
    return {"id": int(session.get("id", 0)), "epoch": session.get("epoch", 0), "sequence": session.get("sequence", 0)}


def pointer_json(pointer):
    hexadecimal = lambda text: base64.b64decode(text).hex()  # noqa: E731
    return renamed(pointer, uri=("uri", same), position=("position", position_text), sha256=("sha256", hexadecimal), note=("note", same))


def cursor_json(cursor):
    return renamed(cursor, queue=("queue_base64", same), after=("after", position_text), end=("after", lambda _: "end"))


TIMES = {"deliverAtMs": "deliver_at_ms", "delayMs": "delay_ms", "expiresMs": "expires_ms", "ttlMs": "ttl_ms", "priority": "priority"}
TIMEOUT = {"timeoutMs": ("timeout_ms", int)}
TRIM = {"through": ("through", position_text), "pointer": ("pointer", pointer_json), "fence": ("fence", text_of), **TIMEOUT}
FENCE = {"token": ("token", text_of), "ifToken": ("if_token", text_of), **TIMEOUT}
BODIES = {
    "Leases.Lease": {
        "worker": ("worker", same), "limit": ("limit", int), "bytes": ("bytes", int), "waitMs": ("wait_ms", int), "partition": ("partition", int),
    },
    "Leases.Settle": {"worker": ("worker", same), "settlements": ("settlements", lambda them: list(map(settlement_json, them)))},
    "Leases.Redrive": {"group": ("group", same), "limit": ("limit", int), "to": ("to", same)},
    "Logs.Append": {"records": ("records", lambda them: list(map(record_json, them))), "guard": ("guard", guard_json), "session": ("session", session_json), **TIMEOUT},
    "Logs.Truncate": TRIM,
    "Logs.Fence": FENCE,
    "Queues.Enqueue": {"messages": ("messages", lambda them: list(map(message_json, them))), "guard": ("guard", guard_json), "session": ("session", session_json), **TIMEOUT},
    "Queues.Replace": {"message": ("message", message_json)},
    "Queues.Rewrite": {
        "after": ("after", position_text), "none": ("none", same), "messages": ("messages", lambda them: list(map(message_json, them))), "fence": ("fence", text_of),
        "reason": ("reason", same), **TIMEOUT,
    },
    "Queues.Delete": {"positions": ("positions", lambda them: list(map(position_text, them))), "fence": ("fence", text_of), **TIMEOUT},
    "Queues.TrimQueue": TRIM,
    "Queues.FenceQueue": FENCE,
    "Logs.OpenSession": {"name": ("name", same)},
    "Queues.EnqueueMany": {"messages": ("messages", lambda them: [{"queue_base64": it["queue"], "message": message_json(it["message"])} for it in them]), **TIMEOUT},
    "Queues.Subscribe": {
        "cursors": ("cursors", lambda them: list(map(cursor_json, them))), "filter": ("filter", same), "fields": ("fields", same), "bytes": ("bytes", int),
        "consistency": ("any_replica", lambda name: name == "ANY_REPLICA"), "skipTrimmed": ("skip_trimmed", same),
    },
    "Topics.CreateTopic": {"partitions": ("partitions", int), "replicationFactor": ("replication_factor", int), "settings": ("settings", same)},
}  # fmt: skip
HEADERS = {
    "Queues.Replace": {"ifVersion": ("if-match", lambda version: f'"{version}"'), "fence": ("duramen-fence", text_of)},
    "Queues.DeleteQueue": {"fence": ("duramen-fence", text_of)},
}
QUERIES = {
    "Logs.Read": {
        "after": ("after", position_text), "from": ("from", str), "end": ("from", lambda _: "end"), "limit": ("limit", str), "bytes": ("bytes", str),
        "waitMs": ("wait", lambda ms: f"{ms}ms"), "consistency": ("consistency", str.lower), "skipTrimmed": ("on_trimmed", lambda _: "skip"),
        "filter": ("filter", same), "fields": ("fields", json.dumps), "skipFailed": ("on_error", lambda _: "skip"),
    },
    "Queues.Retrieve": {
        "after": ("after", position_text), "limit": ("limit", str), "waitMs": ("wait", lambda ms: f"{ms}ms"), "consistency": ("consistency", str.lower),
        "skipTrimmed": ("on_trimmed", lambda _: "skip"), "filter": ("filter", same), "fields": ("fields", json.dumps),
    },
    "Queues.ListQueues": {"prefix": ("prefix", text_of), "after": ("after", text_of), "limit": ("limit", str)},
    "Topics.ListTopics": {"prefix": ("prefix", same), "after": ("after", same), "limit": ("limit", str)},
}  # fmt: skip


def path_of(method, request):
    """Removes from a request what the path names, and returns method and path."""
    if method in ("Nothing.Do", "Logs.OpenSession", "Topics.ListTopics"):
        return {"Nothing.Do": ("GET", "/v1/nothing"), "Logs.OpenSession": ("POST", "/v1/sessions"), "Topics.ListTopics": ("GET", "/v1/topics")}[method]
    if method.startswith("Topics."):
        verb = {"CreateTopic": "PUT", "GetTopic": "GET", "DeleteTopic": "DELETE"}[method.split(".")[1]]
        return verb, f"/v1/topics/{quote(request.pop('name'), safe='')}"
    if method.startswith("Queues."):
        topic = f"/v1/topics/{quote(request.pop('topic'), safe='')}"
        if method == "Queues.EnqueueMany":
            return "POST", f"{topic}/messages"
        if method == "Queues.Subscribe":
            return "POST", f"{topic}/subscribe"
        queues = f"{topic}/queues"
        if method == "Queues.ListQueues":
            return "GET", queues
        queue = f"{queues}/{quote(base64.b64decode(request.pop('queue')), safe='')}"
        if method in ("Queues.GetElement", "Queues.Replace"):
            return "GET" if method == "Queues.GetElement" else "PUT", f"{queue}/messages/{position_text(request.pop('position'))}"
        if method == "Queues.Delete" and len(request["positions"]) == 1 and set(request) == {"positions"}:
            return "DELETE", f"{queue}/messages/{position_text(request.pop('positions')[0])}"
        return {
            "Delete": ("POST", f"{queue}/delete"), "Rewrite": ("POST", f"{queue}/rewrite"), "DeleteQueue": ("DELETE", queue), "GetQueue": ("GET", queue),
            "TrimQueue": ("POST", f"{queue}/trim"), "FenceQueue": ("PUT", f"{queue}/fence"), "Enqueue": ("POST", f"{queue}/messages"), "Retrieve": ("GET", f"{queue}/messages"),
        }[method.split(".")[1]]  # fmt: skip
    if method.startswith("Leases."):
        topic = f"/v1/topics/{quote(request.pop('topic'), safe='')}"
        group = "" if method == "Leases.Redrive" else f"/groups/{quote(request.pop('group'), safe='')}"
        return "POST", f"{topic}{group}/{method.split('.')[1].lower()}"
    log = f"/v1/topics/{quote(request.pop('topic'), safe='')}/partitions/{request.pop('partition', 0)}"
    verb, rest = {
        "Append": ("POST", "/records"), "Read": ("GET", "/records"), "Tail": ("GET", ""), "Truncate": ("POST", "/truncate"), "Fence": ("PUT", "/fence"),
    }[method.split(".")[1]]  # fmt: skip
    return verb, log + rest


def headers_of(method, request):
    """Removes from a request what headers tell, and returns them for curl."""
    told = renamed({name: request.pop(name) for name in HEADERS.get(method, {}) if name in request}, **HEADERS.get(method, {}))
    # With a colon and no value curl would leave the header out.
    return [word for name, value in told.items() for word in ("-H", f"{name}: {value}" if value else f"{name};")]


def body_of(method, request):
    made = renamed(request, **BODIES[method])
    # The body of a replacement is its message alone.
    if method == "Leases.Lease":
        return {**made, "as": "base64"}
    return made["message"] if method == "Queues.Replace" else made


def encoded(message, name):
    """Bytes that JSON has as text, or as base64."""
    return base64.b64encode(message[name].encode()).decode() if name in message else message.get(f"{name}_base64")


def element_of(element):
    content = {"fields": element["fields"]} if "fields" in element else {"record": record_of(element)}
    version = {"version": element["version"]} if "version" in element else {}
    return {"position": position_of(element["position"]), **content, **version}


def queue_of(queue):
    made = {"name": encoded(queue, "queue"), "partition": queue["partition"], "aboutElements": queue["about_elements"], **fence_and_pointer(queue)}
    return made | {name: position_of(queue[name]) for name in ("first", "last") if queue.get(name)}


def record_of(record):
    value = record.get("base64", base64.b64encode(record["value"].encode()).decode() if "value" in record else None)
    made = {"key": record.get("key_base64"), "value": value, "timestampMs": record["timestamp_ms"], "id": record.get("id")}
    made["headers"] = [{"name": name, "value": base64.b64encode(value.encode()).decode()} for name, value in record.get("headers", {}).items()]
    return {name: value for name, value in made.items() if value is not None}


def tail_of(tail):
    return {**tail, "last": position_of(tail["last"]) if tail["last"] else None, **fence_and_pointer(tail)}


def fence_and_pointer(told):
    """Those of a log or a queue; a list of queues has neither."""
    made = {"fence": base64.b64encode(told["fence"].encode()).decode()} if told.get("fence") else {}
    if pointer := told.get("pointer"):
        digest = base64.b64encode(bytes.fromhex(pointer.get("sha256", ""))).decode()
        made["pointer"] = {**pointer, "sha256": digest, "position": position_of(pointer["position"]) if "position" in pointer else None}
    return made


def topic_of(topic):
    return {"replicationFactor": topic.pop("replication_factor"), **topic, "id": base64.b64encode(bytes.fromhex(topic["id"])).decode()}


def lease_of(it):
    told = {name: it[name] for name in ("lease", "deliveries", "partition")}
    return {**told, "queue": encoded(it, "queue"), "element": element_of(it["element"])}


def unsettled_of(it):
    problem = problem_of(json.dumps(it["problem"]), it["problem"]["status"])
    return {"lease": it["lease"], "problem": {"reason": problem["slug"], "detail": problem["detail"], "metadata": problem["metadata"]}}


def answer_of(method, answer):
    if method == "Leases.Lease":
        return {"leases": list(map(lease_of, answer["leases"])), "lockMs": answer["lock_ms"]}
    if method == "Leases.Settle":
        return {"unsettled": list(map(unsettled_of, answer["unsettled"]))}
    if method == "Leases.Redrive":
        return answer
    if method == "Queues.Retrieve":
        made = {"elements": list(map(element_of, answer["elements"])), "more": answer["more"], "skipped": answer.get("skipped", False)}
        return {**made, **({"next": position_of(answer["next"])} if answer["next"] else {})}
    if method == "Queues.EnqueueMany":
        return {"results": [{"position": position_of(it["position"])} for it in answer["results"]]}
    if method == "Queues.ListQueues":
        return {**answer, "queues": list(map(queue_of, answer["queues"]))}
    if method in ("Queues.GetElement", "Queues.GetQueue"):
        return element_of(answer) if method == "Queues.GetElement" else queue_of(answer)
    if method in ("Queues.Delete", "Queues.Replace", "Queues.Rewrite", "Queues.DeleteQueue", "Queues.TrimQueue", "Queues.FenceQueue"):
        made = {**answer, **{name: position_of(answer[name]) if answer[name] else None for name in ("at", "last")}}
        # The protocol's message has it as the offset of `at`.
        assert method != "Queues.Replace" or str(made.pop("version")) == made["at"]["offset"], answer
        return made
    if method in ("Logs.Append", "Queues.Enqueue"):
        return {**answer, "first": position_of(answer["first"]), "last": position_of(answer["last"])}
    if method == "Logs.Read":
        answer.pop("more")
        return {**answer, "records": list(map(element_of, answer["records"]))}
    if method in ("Logs.Tail", "Logs.Truncate", "Logs.Fence"):
        return tail_of(answer)
    if method == "Topics.ListTopics":
        return {**answer, "topics": [topic_of(topic) for topic in answer["topics"]]}
    return topic_of(answer) if method.startswith("Topics.") else answer


def query_of(method, request):
    fields = renamed(request, **QUERIES.get(method, {}))
    return "?" + urlencode({**fields, **({"as": "base64"} if method in ("Logs.Read", "Queues.Retrieve") else {})})


def event_of(name, event):
    """The message of an event of a subscription."""
    kind = {"caught_up": "caughtUp"}.get(name, name)
    made = {"queue": encoded(event, "queue"), kind: element_of(event["element"]) if name == "element" else {}}
    return {**made, **({"next": position_of(event["next"])} if "next" in event else {})}


def problem_of(text, status):
    document = json.loads(text)
    slug = document.pop("type").removeprefix("/problems/")
    standard = {name: document.pop(name) for name in ("title", "status", "detail")}
    assert standard["status"] == status, (standard, status)
    return {"slug": slug, "code": status, "detail": standard["detail"], "metadata": document}


def subscribe(step):
    """Reads as many events of a stream as are wanted, and ends it."""
    request = dict(step["request"])
    _, path = path_of(step["method"], request)
    body = json.dumps({**renamed(request, **BODIES[step["method"]]), "as": "base64"})
    # The head of the answer comes before its events.
    command = [*CURL, "-N", "-i", "--max-time", str(step["deadline_s"]), "-H", "accept: text/event-stream", "-H", "expect:"]
    command += ["-H", "content-type: application/json", "--data-binary", body, f"{reach.http_scheme()}://{step['address']}{path}"]
    answers = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        status, kind = int(process.stdout.readline().split()[1]), ""
        while (line := process.stdout.readline().rstrip()) != "":
            name, _, value = line.partition(": ")
            kind = value if name.lower() == "content-type" else kind
        if status >= 400:
            assert kind == "application/problem+json", kind
            return {"answers": [], "problem": problem_of(process.stdout.read(), status)}
        assert (status, kind) == (200, "text/event-stream"), (status, kind)
        name = ""
        while len(answers) < step["take"] and (line := process.stdout.readline()):
            field, _, value = line.rstrip().partition(": ")
            if field == "event":
                name = value
            elif field == "data" and name == "problem":
                document = json.loads(value)
                return {"answers": answers, "problem": problem_of(value, document["status"])}
            elif field == "data" and name != "heartbeat":
                answers.append(event_of(name, json.loads(value)))
        process.terminate()
    return {"answers": answers}


def enqueue_one_by_one(step):
    """HTTP has no stream of requests, so each is a call of its own."""
    answers = []
    for it in step["request"].get("requests", []):
        told = call({**step, "method": "Queues.Enqueue", "request": it["request"]})
        if problem := told.get("problem"):
            metadata = {name: value if isinstance(value, str) else json.dumps(value) for name, value in problem["metadata"].items()}
            outcome = {"problem": {"reason": problem["slug"], "detail": problem["detail"], "metadata": metadata}}
        else:
            outcome = {"appended": told["answers"][0]}
        answers.append({"call": it["call"], **outcome})
    return {"answers": answers}


def call(step):
    method, request = step["method"], dict(step["request"])
    if method == "Queues.Subscribe":
        return subscribe(step)
    if method == "Queues.EnqueueStream":
        return enqueue_one_by_one(step)
    verb, path = path_of(method, request)
    headers = headers_of(method, request)
    kind, body = "application/json", b""
    if verb == "GET":
        path += query_of(method, request)
    elif method in BODIES:
        try:
            body = json.dumps(body_of(method, request)).encode()
        except NotInJson:
            kind = PROTOBUF
            body = json_format.ParseDict(request, getattr(duramen_pb2, f"{method.split('.')[1]}Request")()).SerializeToString()
    command = [*CURL, "--max-time", str(step["deadline_s"]), "-X", verb, "-w", "%{stderr}%{http_code} %{content_type}"]
    command += ["-H", f"accept: {kind}", "-H", "expect:", *headers, *(["-H", f"content-type: {kind}", "--data-binary", "@-"] if verb != "GET" else [])]
    done = subprocess.run([*command, f"{reach.http_scheme()}://{step['address']}{path}"], input=body, capture_output=True)
    if done.returncode != 0:
        return {"answers": [], "problem": {"slug": "", "code": None, "detail": done.stderr.decode(), "metadata": {}}}
    status, _, said = done.stderr.decode().partition(" ")
    if int(status) >= 400:
        assert said == "application/problem+json", said
        return {"answers": [], "problem": problem_of(done.stdout, int(status))}
    assert int(status) == {"PUT": 201 if method == "Topics.CreateTopic" else 200, "DELETE": 204 if method == "Topics.DeleteTopic" else 200}.get(verb, 201 if "Session" in method else 200), status
    if method == "Topics.DeleteTopic":
        return {"answers": [{}]}
    if said == PROTOBUF:
        return {"answers": [json_format.MessageToDict(ANSWERS[method].FromString(done.stdout))]}
    return {"answers": [answer_of(method, json.loads(done.stdout))]}


def main():
    for line in sys.stdin:
        print(json.dumps(call(json.loads(line))), flush=True)


main()
