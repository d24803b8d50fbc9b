"""Workers of the native API, by HTTP with JSON and by gRPC, as the tests use them: both answer in one form."""

import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import quote

import google.rpc
import grpc
from confluent_kafka import Consumer, TopicPartition
from google.rpc import error_details_pb2
from grpc_status import rpc_status

import checks
from broker import COMPAT
from connection import Connection

PATIENCE_S = 60
GROUP_RESOURCE = 32
# Longest wait of one call, so that a bound of a test is looked at now and then.
WAIT_MS = 1_000
ACCEPT, RELEASE, REJECT, RENEW, UNSEEN = DECISIONS = ["accept", "release", "reject", "renew", "unseen"]
TIMES = {"deliver_at_ms", "delay_ms", "expires_ms", "ttl_ms", "priority"}


# It goes away with this process.
GENERATED = tempfile.TemporaryDirectory(prefix="duramen-work-queues-")


class Refused(Exception):
    """A problem that a call was answered with."""

    def __init__(self, slug, code, members):
        super().__init__(f"{slug} ({code}): {members}")
        self.slug, self.code, self.members = slug, code, members

    @property
    def fields(self):
        return [each["field"] for each in self.members.get("errors", [])]


@dataclass(frozen=True)
class Lease:
    name: str
    queue: str
    value: str
    headers: dict
    deliveries: int
    partition: int
    position: str
    version: int

    @property
    def place(self):
        return self.partition, int(self.name.split(".")[1])


def call(address, method, path, body=None, headers=None):
    """Makes a call by HTTP with JSON."""
    data = None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(f"http://{address}{path}", data, sent, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S * checks.SLOWNESS) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        document = json.load(error)
        raise Refused(document["type"].removeprefix("/problems/"), error.code, document) from None


@cache
def generated():
    """The protocol's messages and clients, written from its file."""
    place = GENERATED.name
    google_protos = Path(next(iter(google.rpc.__path__))).parents[1]
    protocol = COMPAT.parent / "crates/duramen/proto"
    into = [f"--python_out={place}", f"--grpc_python_out={place}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{protocol}", f"-I{google_protos}", *into, "duramen/v1/duramen.proto"]
    subprocess.run(command, check=True)
    sys.path.insert(0, place)
    from duramen.v1 import duramen_pb2, duramen_pb2_grpc

    return duramen_pb2, duramen_pb2_grpc


class Http:
    """The operations of workers, and of those that give them work, at one address."""

    def __init__(self, address):
        self.address = address

    def lease(self, topic, group, worker="", **wish):
        body = {"worker": worker, **wish}
        told = call(self.address, "POST", f"/v1/topics/{topic}/groups/{quote(group, safe='')}/lease", body)
        return [self._leased(each) for each in told["leases"]], told["lock_ms"]

    def _leased(self, each):
        element = each["element"]
        about = each["deliveries"], each["partition"], element["position"], element["version"]
        return Lease(each["lease"], each.get("queue"), element.get("value"), element.get("headers", {}), *about)

    def settle(self, topic, group, worker, settlements):
        """Returns the problems of leases that were not settled."""
        body = {"worker": worker, "settlements": [{"lease": lease, "decision": decision, **more} for lease, decision, more in settlements]}
        told = call(self.address, "POST", f"/v1/topics/{topic}/groups/{quote(group, safe='')}/settle", body)
        return {each["lease"]: each["problem"]["type"].removeprefix("/problems/") for each in told["unsettled"]}

    def enqueue(self, topic, queue, messages):
        """Returns the positions of the first message and of the last one."""
        told = call(self.address, "POST", f"/v1/topics/{topic}/queues/{queue}/messages", {"messages": messages})
        return told["first"], told["last"]

    def redrive(self, topic, **wish):
        return call(self.address, "POST", f"/v1/topics/{topic}/redrive", wish)


class Grpc:
    """The same by gRPC."""

    def __init__(self, address):
        self.messages, clients = generated()
        channel = grpc.insecure_channel(address, [("grpc.enable_retries", 0)])
        self.leases, self.queues = clients.LeasesStub(channel), clients.QueuesStub(channel)

    def _ask(self, method, request):
        try:
            return method(request, timeout=PATIENCE_S * checks.SLOWNESS)
        except grpc.RpcError as error:
            status = rpc_status.from_call(error)
            for detail in status.details if status else ():
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info):
                    members = {name: self._member(text) for name, text in info.metadata.items()}
                    raise Refused(info.reason, error.code().value[0], members) from None
            raise

    @staticmethod
    def _member(text):
        try:
            return json.loads(text)
        except ValueError:
            return text

    def lease(self, topic, group, worker="", **wish):
        told = self._ask(self.leases.Lease, self.messages.LeaseRequest(topic=topic, group=group, worker=worker, **wish))
        return list(map(self._leased, told.leases)), told.lock_ms

    def _leased(self, each):
        record, at = each.element.record, each.element.position
        queue = each.queue.decode() if each.HasField("queue") else None
        headers = {header.name: header.value.decode() for header in record.headers}
        position = f"{at.term}.{at.entry}.{at.offset}"
        return Lease(each.lease, queue, record.value.decode(), headers, each.deliveries, each.partition, position, each.element.version)

    def settle(self, topic, group, worker, settlements):
        made = [self.messages.Settlement(lease=lease, decision=DECISIONS.index(decision), **more) for lease, decision, more in settlements]
        told = self._ask(self.leases.Settle, self.messages.SettleRequest(topic=topic, group=group, worker=worker, settlements=made))
        return {each.lease: each.problem.reason for each in told.unsettled}

    def enqueue(self, topic, queue, messages):
        made = [self._message(each) for each in messages]
        told = self._ask(self.queues.Enqueue, self.messages.EnqueueRequest(topic=topic, queue=queue.encode(), messages=made))
        return tuple(f"{at.term}.{at.entry}.{at.offset}" for at in (told.first, told.last))

    def _message(self, message):
        times = {name: value for name, value in message.items() if name in TIMES}
        headers = [self.messages.Header(name=name, value=value.encode()) for name, value in message.get("headers", {}).items()]
        record = self.messages.Record(value=message["value"].encode(), headers=headers)
        if times:
            record.schedule.CopyFrom(self.messages.Schedule(**times))
        return record

    def redrive(self, topic, **wish):
        told = self._ask(self.leases.Redrive, self.messages.RedriveRequest(topic=topic, **wish))
        return {"moved": told.moved, "left": told.left, "more": told.more}


SURFACES = {"http": Http, "grpc": Grpc}


class Worker:
    """A worker of one group and one topic."""

    def __init__(self, surface, topic, group, name="worker"):
        self.surface, self.topic, self.group, self.name = surface, topic, group, name

    def lease(self, limit=1, wait_ms=0, **wish):
        return self.surface.lease(self.topic, self.group, self.name, limit=limit, wait_ms=wait_ms, **wish)[0]

    def some(self, limit=1, **wish):
        """Leases that come in time; there must be one."""
        return checks.eventually(f"{self.name} gets a lease", lambda: self.lease(limit, WAIT_MS, **wish), PATIENCE_S)

    def one(self):
        [lease] = self.some()
        return lease

    def get(self, count):
        """So many leases."""
        found = []
        while len(found) < count:
            found += self.some(count - len(found))
        return found

    def settle(self, leases, decision, **more):
        """Returns the problem of each lease that was not settled."""
        return self.surface.settle(self.topic, self.group, self.name, [(lease.name, decision, more) for lease in leases])

    def decide(self, leases, decision, **more):
        checks.equal(self.settle(leases, decision, **more), {}, f"problems of {decision}")

    def accept(self, count):
        """So many leases, accepted."""
        leases = self.get(count)
        self.decide(leases, ACCEPT)
        return leases

    def nothing_comes(self, ms=300):
        checks.equal([lease.value for lease in self.lease(10, ms)], [], "what should not come")


def now_ms():
    return time.time_ns() // 1_000_000


def values(leases):
    return [lease.value for lease in leases]


def create(broker, topic, partitions=1, replicas=0, **settings):
    """Makes a topic; an underscore in a setting's name stands for a dot."""
    settings = {name.replace("_", "."): value for name, value in settings.items()}
    body = {"partitions": partitions, "settings": settings, **({"replication_factor": replicas} if replicas else {})}
    call(broker.native, "PUT", f"/v1/topics/{topic}", body)
    return topic


def queue_topic(broker, name, partitions=1, **more):
    return create(broker, checks.unique(name), partitions, queue_enable="true", **more)


def configure(broker, group, settings):
    configs = [{"Name": name, "ConfigOperation": 0, "Value": value} for name, value in settings.items()]
    resource = {"ResourceType": GROUP_RESOURCE, "ResourceName": group, "Configs": configs}
    with Connection(broker.bootstrap) as connection:
        answer = connection.call("IncrementalAlterConfigs", 1, {"Resources": [resource]})
    checks.equal([each["ErrorCode"] for each in answer["Responses"]], [0], "settings of the group")


def new_group(broker, settings=None):
    group = checks.unique("workers")
    if settings:
        configure(broker, group, settings)
    return group


def enqueue(surface, topic, queue, *messages):
    """Appends each as a batch of its own: a value, or a message. Returns their positions."""
    made = [message if isinstance(message, dict) else {"value": message} for message in messages]
    return [surface.enqueue(topic, queue, [message])[0] for message in made]


def records_of(bootstrap, topic, count, partitions=1):
    """So many records of a topic, as value and headers, in the order of partitions and offsets."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found = []

    def all_came():
        found.extend(record for record in consumer.consume(100, timeout=0.2) if not record.error())
        return len(found) >= count

    checks.eventually(f"{count} records of {topic}", all_came, PATIENCE_S)
    consumer.close()
    found.sort(key=lambda record: (record.partition(), record.offset()))
    return [(record.value().decode(), {name: value.decode() for name, value in record.headers() or []}) for record in found]
