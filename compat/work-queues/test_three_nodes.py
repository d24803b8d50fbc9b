"""Workers of a topic whose partitions are led by three brokers: a call at one gets what any has, and a leader is killed."""

import shutil
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from kafka.partitioner.default import murmur2

import checks
from broker import start_cluster
from checks import equal, eventually
from workers import ACCEPT, PATIENCE_S, RELEASE, SURFACES, Refused, Worker, call, enqueue, new_group, queue_topic, values

# They run beside those of one broker.
pytestmark = [pytest.mark.timeout(120 * checks.SLOWNESS), pytest.mark.waits, pytest.mark.xdist_group("three brokers")]
PARTITIONS = 6
LONG_LOCK_MS = 60_000
SETTINGS = {"group.share.record.lock.duration.ms": str(LONG_LOCK_MS)}


@pytest.fixture(scope="module")
def cluster():
    directory = Path(tempfile.mkdtemp(prefix="duramen-work-queues-"))
    with start_cluster(checks.broker_kind(), directory, SETTINGS) as three:
        yield three
    shutil.rmtree(directory)


def partition_of(queue):
    return (murmur2(queue.encode()) & 0x7FFFFFFF) % PARTITIONS


def queues(partition, count=1):
    """Names of queues in a partition."""
    names = (f"q{number}" for number in range(1 << 20))
    found = (name for name in names if partition_of(name) == partition)
    return [next(found) for _ in range(count)]


def leaders(cluster, topic):
    """The broker that leads each partition."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    nodes = {number: broker for number, broker in enumerate(cluster.brokers, 1)}

    def all_lead():
        told = admin.list_topics(topic, timeout=10).topics[topic].partitions
        found = [told[partition].leader for partition in sorted(told)]
        return found if len(found) == PARTITIONS and set(found) <= set(nodes) else None

    return [nodes[leader] for leader in eventually("each partition has a leader", all_lead, PATIENCE_S)]


def topic_of_three(cluster, name):
    """A topic that each broker leads partitions of, and the leaders."""
    topic = queue_topic(cluster.brokers[0], name, PARTITIONS)
    for broker in cluster.brokers:
        eventually("it knows the topic", lambda: is_known(broker, topic), PATIENCE_S)  # noqa: B023
    led_by = leaders(cluster, topic)
    assert len(set(led_by)) > 1, "one broker leads all"
    return topic, led_by


def is_known(broker, topic):
    try:
        return call(broker.native, "GET", f"/v1/topics/{topic}/partitions/0")
    except Refused:
        return None


@pytest.fixture(params=SURFACES)
def surfaces(request, cluster):
    return [SURFACES[request.param](broker.native) for broker in cluster.brokers]


def test_a_worker_at_one_broker_gets_the_messages_of_all(cluster, surfaces):
    topic, _ = topic_of_three(cluster, "spread")
    group = new_group(cluster.brokers[0])
    written = [f"{partition} {number}" for partition in range(PARTITIONS) for number in range(4)]
    for value in written:
        enqueue(surfaces[0], topic, queues(int(value[0]))[0], value)
    for surface in surfaces:
        # All at this one; the next one gets them again.
        worker = Worker(surface, topic, group)
        leases = worker.get(len(written))
        equal(sorted(values(leases)), written)
        equal({lease.partition for lease in leases}, set(range(PARTITIONS)), "partitions")
        worker.decide(leases, RELEASE)
    # What one broker leased another one settles.
    leases = Worker(surfaces[0], topic, group).get(len(written))
    Worker(surfaces[1], topic, group).decide(leases, ACCEPT)
    equal(set(Worker(surfaces[2], topic, group).settle(leases, ACCEPT).values()), {"lease-lost"}, "twice")
    for surface in surfaces:
        Worker(surface, topic, group).nothing_comes()


def test_a_worker_may_ask_for_one_partition_at_any_broker(cluster, surfaces):
    topic, _ = topic_of_three(cluster, "one-partition")
    group = new_group(cluster.brokers[0])
    for partition in range(PARTITIONS):
        enqueue(surfaces[0], topic, queues(partition)[0], f"{partition}")
    for partition in range(PARTITIONS):
        worker = Worker(surfaces[partition % len(surfaces)], topic, group)
        leases = worker.some(5, partition=partition)
        equal([(lease.value, lease.partition) for lease in leases], [(f"{partition}", partition)])
        worker.decide(leases, ACCEPT)


def test_a_long_poll_is_woken_by_a_message_at_another_broker(cluster, surfaces):
    topic, led_by = topic_of_three(cluster, "woken")
    group = new_group(cluster.brokers[0])
    Worker(surfaces[0], topic, group).nothing_comes(1)
    for number, broker in enumerate(cluster.brokers):
        for partition in [partition for partition in range(PARTITIONS) if led_by[partition] is not broker][:1]:
            worker, told = Worker(surfaces[number], topic, group), []
            thread = threading.Thread(target=lambda: told.append((worker.lease(5, 60_000), time.monotonic())))  # noqa: B023
            thread.start()
            time.sleep(0.3)
            enqueue(surfaces[number], topic, queues(partition)[0], "a")
            written = time.monotonic()
            thread.join()
            [(leases, came)] = told
            equal([(lease.value, lease.partition) for lease in leases], [("a", partition)])
            assert came - written < 15 * checks.SLOWNESS, f"the poll ended {came - written} s later"
            worker.decide(leases, ACCEPT)


def lease_calls(broker):
    """The number of leases that a broker has answered."""
    with urllib.request.urlopen(f"http://{broker.native}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("duramen_native_calls_total{") and "Lease" in line)


# Not strict: it is a race between the brokers' answers.
@pytest.mark.timeout(300 * checks.SLOWNESS)
def test_what_a_long_poll_finds_too_much_of_is_there_for_the_next(cluster, surfaces):
    """It waits at all brokers, and ends with the first message."""
    topic, _ = topic_of_three(cluster, "too-much")
    group = new_group(cluster.brokers[0], {"share.record.lock.duration.ms": "30000"})
    written = [f"{partition}" for partition in range(PARTITIONS)]
    for turn in range(6):
        asked = turn % len(surfaces)
        worker, leases = Worker(surfaces[asked], topic, group), []
        others = [broker for broker in cluster.brokers if broker is not cluster.brokers[asked]]
        before = list(map(lease_calls, others))
        poll = threading.Thread(target=lambda: leases.extend(worker.lease(1, 60_000)))  # noqa: B023
        poll.start()
        # First of all it asks each of them for what is there.
        eventually("it waits at all", lambda: all(lease_calls(broker) > count for broker, count in zip(others, before)), PATIENCE_S)  # noqa: B023
        messages = [{"queue": queues(int(value))[0], "message": {"value": value}} for value in written]
        call(cluster.brokers[asked].native, "POST", f"/v1/topics/{topic}/messages", {"messages": messages})
        poll.join()
        leases += worker.get(len(written) - len(leases))
        equal(sorted((lease.value, lease.deliveries) for lease in leases), [(value, 1) for value in written])
        worker.decide(leases, ACCEPT)


def test_a_killed_leader_takes_no_record_along(cluster):
    """Of what is leased a part is accepted. Then the rest comes again, and no accepted record does."""
    topic, led_by = topic_of_three(cluster, "killed")
    group = new_group(cluster.brokers[0])
    killed = led_by[0]
    [asked, *_] = [broker for broker in cluster.brokers if broker is not killed]
    surface = SURFACES["http"](asked.native)
    written = [f"{partition} {number}" for partition in range(PARTITIONS) for number in range(10)]
    for value in written:
        enqueue(surface, topic, queues(int(value[0]))[0], value)
    before, after = Worker(surface, topic, group, "before"), Worker(surface, topic, group, "after")
    leases = before.get(len(written))
    equal(sorted(values(leases)), sorted(written))
    held = [lease for lease in leases if led_by[lease.partition] is killed and int(lease.value[2:]) % 2]
    before.decide([lease for lease in leases if lease not in held], ACCEPT)
    killed.kill9()
    taken, unknown = [], set()

    def all_came():
        try:
            found = after.lease(100, 500)
            lost = after.settle(found, ACCEPT) if found else {}
        except Refused as problem:
            assert problem.slug in ("no-leader", "outcome-unknown"), problem
            return False
        taken.extend(lease.value for lease in found if lease.name not in lost)
        unknown.update(lease.value for lease in found if lease.name in lost)
        return unknown.union(taken) >= set(values(held))

    try:
        eventually("what was held comes again", all_came, PATIENCE_S)
    finally:
        print(f"held {values(held)}, taken {taken}, unknown {unknown}")
    equal(len(taken), len(set(taken)), "taken, each once")
    assert set(taken) | unknown == set(values(held)), "others came again"
    killed.restart()
    back = SURFACES["http"](killed.native)
    eventually("it answers", lambda: is_known(killed, topic), PATIENCE_S)
    Worker(back, topic, group).nothing_comes()
