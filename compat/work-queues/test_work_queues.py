"""Workers of queue topics against one broker: leases and their settlement, times, priorities, turns, order, edits, problems.

What is asked by HTTP is asked by gRPC, too, where the two could differ. Locks last a second where a test waits for their end;
else no lock ends during a test.
"""

import json
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

import checks
from broker import free_port, start
from checks import equal, eventually
from killing import java
from workers import (
    ACCEPT, DECISIONS, PATIENCE_S, REJECT, RELEASE, RENEW, SURFACES, UNSEEN, Refused, Worker, call, create, enqueue, new_group,
    now_ms, queue_topic, records_of, values,
)  # fmt: skip

pytestmark = pytest.mark.timeout(120 * checks.SLOWNESS)
# The shortest that a broker allows by itself, and one that no test waits for.
SHORT_LOCK_MS, LONG_LOCK_MS = 1_000, 60_000
SETTINGS = {"group.share.record.lock.duration.ms": str(LONG_LOCK_MS)}
# What a record may be late on a quiet machine.
LATE_MS = 10_000
SHORT_LOCKS = {"share.record.lock.duration.ms": str(SHORT_LOCK_MS)}


@pytest.fixture(scope="module")
def broker():
    directory = Path(tempfile.mkdtemp(prefix="duramen-work-queues-"))
    with start(checks.broker_kind(), free_port(), directory / "data", SETTINGS) as one:
        yield one
    shutil.rmtree(directory)


@pytest.fixture(params=SURFACES)
def surface(request, broker):
    return SURFACES[request.param](broker.native)


@pytest.fixture
def http(broker):
    return SURFACES["http"](broker.native)


def refused(slug, function, *arguments, **more):
    with pytest.raises(Refused) as told:
        function(*arguments, **more)
    equal(told.value.slug, slug, str(told.value))
    return told.value


def is_in_time(came_ms, due_ms):
    assert due_ms <= came_ms <= due_ms + LATE_MS * checks.SLOWNESS, f"it came {came_ms - due_ms} ms after its time"


def has_read_all(worker, count):
    """Waits until the group has read so many messages: it knows the order only of those that it has read."""
    worker.decide(worker.get(count), RELEASE)


# Leases and their settlement.


def test_a_lease_is_settled_once_and_by_its_worker(broker, surface):
    topic, group = queue_topic(broker, "settled"), new_group(broker)
    one, other = (Worker(surface, topic, group, name) for name in ("one", "other"))
    enqueue(surface, topic, "q", {"value": "a", "headers": {"own": "header"}}, "b")
    a = one.one()
    equal((a.queue, a.value, a.headers, a.deliveries, a.partition), ("q", "a", {"own": "header"}, 1, 0))
    equal(a.version, int(a.position.split(".")[2]), "its version")
    for decision in DECISIONS:
        equal(other.settle([a], decision), {a.name: "lease-lost"}, f"{decision} by another worker")
    one.decide([a], ACCEPT)
    for decision in DECISIONS:
        equal(one.settle([a], decision), {a.name: "lease-lost"}, f"{decision} once it is accepted")
    b = other.one()
    equal((b.value, b.deliveries), ("b", 1))
    # What is right is settled, though another one is not.
    equal(other.settle([a, b], ACCEPT), {a.name: "lease-lost"}, "one of two")
    one.nothing_comes()


def test_many_leases_come_and_are_settled_at_once(broker, surface):
    topic, group = queue_topic(broker, "many", partitions=3), new_group(broker)
    worker = Worker(surface, topic, group)
    for number in range(30):
        enqueue(surface, topic, f"q{number}", f"{number}")
    found, calls = [], 0
    while len(found) < 30:
        calls += 1
        found += worker.some(1_000)
    assert calls < 30, "no call got more than one"
    equal(sorted(values(found), key=int), [f"{number}" for number in range(30)])
    assert len({lease.partition for lease in found}) == 3, "not all partitions were leased of"
    worker.decide(found, ACCEPT)
    worker.nothing_comes()


def test_released_and_unseen_records_come_again(broker, surface):
    topic, group = queue_topic(broker, "released"), new_group(broker)
    one, other = (Worker(surface, topic, group, name) for name in ("one", "other"))
    enqueue(surface, topic, "q", "a")
    one.decide([one.one()], RELEASE)
    again = other.one()
    equal((again.value, again.deliveries), ("a", 2))
    other.decide([again], UNSEEN)
    once_more = one.one()
    equal((once_more.value, once_more.deliveries), ("a", 2), "what was not seen")
    equal(other.settle([again], ACCEPT), {again.name: "lease-lost"}, "the lease before")
    one.decide([once_more], ACCEPT)


def test_a_delayed_release_comes_not_before_its_time(broker, surface):
    topic, group = queue_topic(broker, "delayed-release"), new_group(broker)
    worker = Worker(surface, topic, group)
    enqueue(surface, topic, "q", "a")
    lease = worker.one()
    due_ms = now_ms() + 1_500
    worker.decide([lease], RELEASE, delay_ms=1_500)
    again = worker.one()
    is_in_time(now_ms(), due_ms)
    equal((again.value, again.deliveries), ("a", 2))
    worker.decide([again], ACCEPT)


def test_a_delayed_release_holds_in_an_ordinary_topic_too(broker, http):
    topic, group = create(broker, checks.unique("ordinary")), new_group(broker)
    worker = Worker(http, topic, group)
    call(broker.native, "POST", f"/v1/topics/{topic}/partitions/0/records", {"records": [{"key": "k", "value": "a"}, {"value": "b"}]})
    a = worker.one()
    equal((a.queue, a.value), ("k", "a"))
    due_ms = now_ms() + 1_000
    worker.decide([a], RELEASE, delay_ms=1_000)
    b = worker.one()
    equal((b.queue, b.value), (None, "b"))
    again = worker.one()
    is_in_time(now_ms(), due_ms)
    equal((again.value, again.deliveries), ("a", 2))
    worker.decide([again, b], ACCEPT)


def test_a_renewed_lease_stays_with_its_worker(broker, surface):
    lock_ms = int(2_000 * checks.SLOWNESS)
    topic, group = queue_topic(broker, "renewed"), new_group(broker, {"share.record.lock.duration.ms": str(lock_ms)})
    one, other = (Worker(surface, topic, group, name) for name in ("one", "other"))
    enqueue(surface, topic, "q", "a")
    leases, told_ms = surface.lease(topic, group, "one", wait_ms=10_000)
    equal((values(leases), told_ms), (["a"], lock_ms))
    came = []
    thread = threading.Thread(target=lambda: came.append(values(other.lease(1, 2 * lock_ms))))
    thread.start()
    while thread.is_alive():
        one.decide(leases, RENEW)
        time.sleep(0.2)
    equal(came, [[]], "what came to the other worker")
    one.decide(leases, ACCEPT)
    other.nothing_comes()


def test_a_lease_that_ends_goes_to_another_worker(broker, surface):
    topic, group = queue_topic(broker, "ended"), new_group(broker, SHORT_LOCKS)
    slow, other = (Worker(surface, topic, group, name) for name in ("slow", "other"))
    enqueue(surface, topic, "q", "a")
    began_ms = now_ms()
    lease = slow.one()
    again = other.one()
    is_in_time(now_ms(), began_ms + SHORT_LOCK_MS)
    equal(again.value, "a")
    assert again.deliveries >= 2, again
    for decision in DECISIONS:
        equal(slow.settle([lease], decision), {lease.name: "lease-lost"}, f"{decision} of an ended lease")
    # On a busy machine its time may be over as well.
    if other.settle([again], ACCEPT):
        other.accept(1)
    slow.nothing_comes()


# Dead letters.


def with_dead_letters(broker, name, **settings):
    topic, dead = queue_topic(broker, name), create(broker, checks.unique("dead"), errors_deadletterqueue_group_enable="true")
    group = new_group(broker, {"errors.deadletterqueue.topic.name": dead, "errors.deadletterqueue.copy.record.enable": "true", **settings})
    return topic, dead, group


def letter_of(headers):
    return {name.removeprefix("__dlq.errors."): value for name, value in headers.items() if name.startswith("__dlq.errors.")}


def test_a_rejected_record_is_a_dead_letter_and_goes_back(broker, surface):
    topic, dead, group = with_dead_letters(broker, "rejected")
    worker = Worker(surface, topic, group)
    enqueue(surface, topic, "q1", {"value": "bad", "headers": {"own": "header"}, "priority": 7}, "good")
    enqueue(surface, topic, "q2", "worse")
    leases = worker.get(3)
    worker.decide([lease for lease in leases if lease.value != "good"], REJECT)
    worker.decide([lease for lease in leases if lease.value == "good"], ACCEPT)
    letters = dict(records_of(broker.bootstrap, dead, 2))
    equal(set(letters), {"bad", "worse"})
    said = letter_of(letters["bad"])
    equal(
        {name: said.get(name) for name in ("topic", "partition", "group", "message")},
        {"topic": topic, "partition": "0", "group": group, "message": "it was rejected by a consumer"},
    )
    worker.nothing_comes()
    equal(surface.redrive(dead, group="another"), {"moved": 0, "left": 2, "more": False}, "of another group")
    equal(surface.redrive(dead, group=group, limit=1), {"moved": 1, "left": 0, "more": True}, "one of two")
    equal(surface.redrive(dead), {"moved": 1, "left": 0, "more": False}, "the rest")
    equal(surface.redrive(dead), {"moved": 0, "left": 0, "more": False}, "nothing more")
    back = {lease.value: lease for lease in worker.accept(2)}
    equal({value: (lease.queue, lease.deliveries) for value, lease in back.items()}, {"bad": ("q1", 1), "worse": ("q2", 1)}, "in their queues")
    equal(back["bad"].headers, {"own": "header", "duramen-priority": "7"}, "headers of what went back")
    told = call(broker.native, "GET", f"/v1/topics/{topic}/queues/q1/messages")
    equal([each.get("value") for each in told["elements"]], ["bad", "good", "bad"], "the queue")
    worker.nothing_comes()


def test_dead_letters_may_go_to_another_topic(broker, http):
    topic, dead, group = with_dead_letters(broker, "rejected-elsewhere")
    worker, elsewhere = Worker(http, topic, group), queue_topic(broker, "elsewhere")
    enqueue(http, topic, "q", "a", "b")
    worker.decide(worker.get(2), REJECT)
    records_of(broker.bootstrap, dead, 2)
    refused("bad-request", http.redrive, dead, to=dead)
    http.redrive(dead, to="no-such-topic")
    equal(http.redrive(dead, to=elsewhere), {"moved": 2, "left": 0, "more": False})
    equal([(lease.queue, lease.value) for lease in Worker(http, elsewhere, new_group(broker)).accept(2)], [("q", "a"), ("q", "b")])
    worker.nothing_comes()


def test_records_without_a_key_do_not_go_to_queues_and_others_go_once(broker, http):
    """Of letters that go back together one may be refused."""
    source, dead = create(broker, checks.unique("keyless")), create(broker, checks.unique("dead"), errors_deadletterqueue_group_enable="true")
    group = new_group(broker, {"errors.deadletterqueue.topic.name": dead, "errors.deadletterqueue.copy.record.enable": "true"})
    worker, elsewhere = Worker(http, source, group), queue_topic(broker, "elsewhere")
    call(broker.native, "POST", f"/v1/topics/{source}/partitions/0/records", {"records": [{"key": "k", "value": "a"}, {"value": "no key"}]})
    worker.decide(worker.get(2), REJECT)
    records_of(broker.bootstrap, dead, 2)
    for _ in range(3):
        try:
            http.redrive(dead, to=elsewhere)
        except Refused as problem:
            equal(problem.slug, "bad-request")
    told = call(broker.native, "GET", f"/v1/topics/{elsewhere}/queues/k/messages")
    equal([each["value"] for each in told["elements"]], ["a"], "what went back")


def test_a_replaced_record_goes_back_from_dead_letters(broker, http):
    topic, dead, group = with_dead_letters(broker, "rejected-replacement")
    worker = Worker(http, topic, group)
    [position] = enqueue(http, topic, "q", "old")
    call(broker.native, "PUT", f"/v1/topics/{topic}/queues/q/messages/{position}", {"value": "new"})
    worker.decide([worker.one()], REJECT)
    records_of(broker.bootstrap, dead, 1)
    equal(http.redrive(dead), {"moved": 1, "left": 0, "more": False})
    equal(values(worker.accept(1)), ["new"])


def test_a_record_is_delivered_so_often_and_is_then_a_dead_letter(broker, surface):
    topic, dead, group = with_dead_letters(broker, "exhausted", **{"share.delivery.count.limit": "2"})
    worker = Worker(surface, topic, group)
    enqueue(surface, topic, "q", "a", "b")
    for deliveries in (1, 2):
        leases = [worker.one() for _ in range(2)]
        equal(sorted((lease.value, lease.deliveries) for lease in leases), [("a", deliveries), ("b", deliveries)])
        worker.decide(leases, RELEASE)
    worker.nothing_comes()
    letters = records_of(broker.bootstrap, dead, 2)
    equal(sorted(value for value, _ in letters), ["a", "b"])
    for _, headers in letters:
        said = letter_of(headers)
        equal((said["message"], said["delivery.count"]), ("it was given out as often as it may be", "2"))


def test_an_expired_record_is_a_dead_letter(broker, http):
    topic, dead, group = with_dead_letters(broker, "expired-letter")
    worker = Worker(http, topic, group)
    enqueue(http, topic, "q", {"value": "late", "ttl_ms": 1}, "good")
    equal(values(worker.accept(1)), ["good"])
    [(value, headers)] = records_of(broker.bootstrap, dead, 1)
    equal((value, letter_of(headers)["message"]), ("late", "it has expired"))
    # It goes back without its end.
    equal(http.redrive(dead), {"moved": 1, "left": 0, "more": False})
    [back] = worker.accept(1)
    equal((back.value, back.headers), ("late", {}))


# Times, priorities, turns.


def test_messages_come_not_before_their_time(broker, surface):
    topic, group = queue_topic(broker, "delays"), new_group(broker)
    worker = Worker(surface, topic, group)
    before_ms = now_ms()
    at_ms = before_ms + 2_200
    enqueue(
        surface,
        topic,
        "q",
        {"value": "at", "deliver_at_ms": at_ms},
        {"value": "delayed", "delay_ms": 1_500},
        {"value": "past", "deliver_at_ms": 1},
        "now",
    )
    equal(sorted(values(worker.accept(2))), ["now", "past"], "what comes at once")
    due = {"delayed": before_ms + 1_500, "at": at_ms}
    for value in ("delayed", "at"):
        lease = worker.one()
        is_in_time(now_ms(), due[value])
        equal((lease.value, lease.deliveries), (value, 1))
        worker.decide([lease], ACCEPT)
    assert int(lease.headers["duramen-deliver-at"]) == at_ms, lease
    worker.nothing_comes()


def test_a_message_is_never_delivered_after_its_end(broker, surface):
    topic, group = queue_topic(broker, "ends"), new_group(broker, SHORT_LOCKS)
    worker = Worker(surface, topic, group)
    end_ms = now_ms() + 600
    enqueue(
        surface, topic, "q", {"value": "over", "expires_ms": 1}, {"value": "short", "expires_ms": end_ms}, {"value": "too late", "delay_ms": 700, "ttl_ms": 600},
        {"value": "long", "ttl_ms": 600_000},
    )  # fmt: skip
    found, seen = [], set()
    while "long" not in seen or now_ms() < end_ms + 2_000:
        leases = worker.lease(10, 200)
        came_ms = now_ms()
        # Its lock ends after its end, and it comes no more.
        found += [(lease.value, came_ms) for lease in leases]
        seen.update(values(leases))
        if long := [lease for lease in leases if lease.value == "long"]:
            worker.settle(long, ACCEPT)
    assert "over" not in seen and "too late" not in seen, found
    late = [came_ms - end_ms for value, came_ms in found if value == "short" and came_ms > end_ms + 400 * checks.SLOWNESS]
    assert not late, f"it came {late} ms after its end"
    worker.nothing_comes()


def test_higher_priorities_come_first(broker, surface):
    topic, group = queue_topic(broker, "priorities"), new_group(broker)
    worker = Worker(surface, topic, group)
    priorities = [3, 9, None, 0, 5, 4, 1, 9]
    for number, priority in enumerate(priorities):
        enqueue(
            surface, topic, f"q{number}", {"value": f"{4 if priority is None else priority}", **({} if priority is None else {"priority": priority})}
        )
    has_read_all(worker, len(priorities))
    leases = [worker.one() for _ in priorities]
    equal(values(leases), ["9", "9", "5", "4", "4", "3", "1", "0"])
    worker.decide(leases, RELEASE)
    equal(values(worker.get(len(priorities))), ["9", "9", "5", "4", "4", "3", "1", "0"], "in fewer calls, and again")
    enqueue(surface, topic, "new", {"value": "urgent", "priority": 9})
    equal(values(worker.accept(1)), ["urgent"])


def test_a_queue_with_many_messages_does_not_hold_up_others(broker, surface):
    topic, group = queue_topic(broker, "turns"), new_group(broker)
    worker = Worker(surface, topic, group)
    surface.enqueue(topic, "big", [{"value": f"big {number}"} for number in range(500)])
    for number in range(20):
        enqueue(surface, topic, f"small {number}".replace(" ", "-"), f"small {number}")
    has_read_all(worker, 520)
    leases = []
    for _ in range(45):
        lease = worker.one()
        worker.decide([lease], ACCEPT)
        leases.append(lease)
    small = [lease.value for lease in leases if lease.queue != "big"]
    equal(sorted(small), sorted(f"small {number}" for number in range(20)), "what came of the small queues")
    equal([lease.value for lease in leases if lease.queue == "big"], [f"big {number}" for number in range(25)], "what came of the big one")


# Order.


@pytest.mark.parametrize("seed", [1])
def test_messages_of_a_queue_come_one_after_the_other(broker, surface, seed):
    topic, group = queue_topic(broker, "order", partitions=2), new_group(broker, {"share.record.order": "key", "share.delivery.count.limit": "10"})
    queues, count = [f"q{number}" for number in range(6)], 15
    for queue in queues:
        surface.enqueue(topic, queue, [{"value": f"{number}"} for number in range(count)])
    lock, out, accepted, wrong = threading.Lock(), defaultdict(set), defaultdict(list), []

    def work(name):
        chance, worker = random.Random(f"{seed} {name}"), Worker(surface, topic, group, name)
        until = time.monotonic() + PATIENCE_S * checks.SLOWNESS
        while sum(map(len, accepted.values())) < len(queues) * count and time.monotonic() < until:
            leases = worker.lease(chance.choice([1, 3, 5]), 200)
            with lock:
                for lease in leases:
                    if out[lease.queue]:
                        wrong.append(f"{name} got {lease} while {out[lease.queue]} is out")
                    out[lease.queue].add(lease.name)
            for lease in leases:
                decision, more = (RELEASE, chance.choice([{}, {"delay_ms": 20}])) if chance.random() < 0.25 and lease.deliveries < 9 else (ACCEPT, {})
                with lock:
                    out[lease.queue].discard(lease.name)
                    if decision == ACCEPT:
                        accepted[lease.queue].append(lease.value)
                if lost := worker.settle([lease], decision, **more):
                    wrong.append(f"{name} lost {lost}")

    threads = [threading.Thread(target=work, args=[name]) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:5]
    equal(dict(accepted), {queue: [f"{number}" for number in range(count)] for queue in queues})


def test_a_delayed_release_holds_up_its_queue_alone(broker, surface):
    topic, group = queue_topic(broker, "order-delayed"), new_group(broker, {"share.record.order": "key"})
    worker = Worker(surface, topic, group)
    enqueue(surface, topic, "held", "h0", "h1")
    enqueue(surface, topic, "free", "f0", "f1")
    first = worker.get(2)
    equal(sorted(values(first)), ["f0", "h0"], "one of each queue")
    worker.nothing_comes()
    [held] = [lease for lease in first if lease.value == "h0"]
    due_ms = now_ms() + 1_000
    worker.decide([held], RELEASE, delay_ms=1_000)
    worker.decide([lease for lease in first if lease.value == "f0"], ACCEPT)
    equal(values(worker.accept(1)), ["f1"])
    equal(values(worker.accept(1)), ["h0"])
    is_in_time(now_ms(), due_ms)
    equal(values(worker.accept(1)), ["h1"])


# Edits.


def test_edits_before_a_lease_count(broker, surface):
    topic, group = queue_topic(broker, "edits"), new_group(broker)
    worker, path = Worker(surface, topic, group), f"/v1/topics/{topic}/queues/q/messages"
    positions = enqueue(surface, topic, "q", "a", "deleted", "replaced", "d")
    call(broker.native, "DELETE", f"{path}/{positions[1]}")
    told = call(broker.native, "PUT", f"{path}/{positions[2]}", {"value": "new"})
    found = {lease.value: lease for lease in worker.get(3)}
    equal(set(found), {"a", "d", "new"})
    equal((found["new"].queue, found["new"].position, found["new"].version), ("q", positions[2], told["version"]), "the element")
    worker.decide(found.values(), ACCEPT)
    worker.nothing_comes()


def test_edits_between_two_leases_count(broker, surface):
    """The group knows of the records already: it gave them out, or looked at them."""
    topic, group = queue_topic(broker, "edits-later"), new_group(broker)
    worker, path = Worker(surface, topic, group), f"/v1/topics/{topic}/queues/q/messages"
    positions = enqueue(surface, topic, "q", "a", "deleted", "replaced", "waiting to be deleted", {"value": "deleted in time", "delay_ms": 700})
    leases = worker.get(3)
    equal(values(leases), ["a", "deleted", "replaced"])
    for position in (positions[1], positions[3], positions[4]):
        call(broker.native, "DELETE", f"{path}/{position}")
    call(broker.native, "PUT", f"{path}/{positions[2]}", {"value": "new"})
    worker.decide(leases, RELEASE)
    found = worker.get(2)
    equal(sorted(values(found)), ["a", "new"])
    worker.decide(found, ACCEPT)
    worker.nothing_comes(1_000)


def test_nothing_is_leased_of_a_queue_that_is_deleted_or_rewritten(broker, http):
    topic, group = queue_topic(broker, "edits-of-queues"), new_group(broker)
    worker = Worker(http, topic, group)
    call(broker.native, "PUT", f"/v1/topics/{topic}/partitions/0/fence", {"token": "owner"})
    enqueue(http, topic, "gone", "x", "y")
    rewritten = enqueue(http, topic, "rewritten", "kept", "z")
    call(broker.native, "DELETE", f"/v1/topics/{topic}/queues/gone", headers={"duramen-fence": "owner"})
    call(
        broker.native,
        "POST",
        f"/v1/topics/{topic}/queues/rewritten/rewrite",
        {"after": rewritten[0], "fence": "owner", "messages": [{"value": "new"}]},
    )
    equal(values(worker.accept(2)), ["kept", "new"])
    worker.nothing_comes()


# Long polls.


def test_a_call_that_does_not_wait_is_answered_at_once(broker, surface):
    topic, group = queue_topic(broker, "no-wait"), new_group(broker)
    worker = Worker(surface, topic, group)
    enqueue(surface, topic, "q", "a")
    worker.accept(1)
    began = time.monotonic()
    for _ in range(4):
        equal(worker.lease(), [])
    took = time.monotonic() - began
    assert took < 10, f"four calls took {took} s"


def test_a_long_poll_is_woken(broker, surface):
    topic, group = queue_topic(broker, "woken", partitions=2), new_group(broker)
    worker = Worker(surface, topic, group)
    worker.nothing_comes(1)
    told = []
    thread = threading.Thread(target=lambda: told.append((worker.lease(5, 60_000), time.monotonic())))
    thread.start()
    time.sleep(0.3)
    enqueue(surface, topic, "q", "a")
    written = time.monotonic()
    thread.join()
    [(leases, came)] = told
    equal(values(leases), ["a"])
    assert came - written < 10 * checks.SLOWNESS, f"the poll ended {came - written} s later"
    worker.decide(leases, ACCEPT)


def test_a_worker_that_is_gone_gets_nothing(broker, http):
    """Its long poll had not ended when its connection did."""
    topic, group = queue_topic(broker, "gone"), new_group(broker)
    worker = Worker(http, topic, group)
    worker.nothing_comes(1)
    host, port = broker.native.split(":")
    body = json.dumps({"worker": "gone", "wait_ms": 60_000}).encode()
    head = f"POST /v1/topics/{topic}/groups/{group}/lease HTTP/1.1\r\nhost: {broker.native}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    for _ in range(5):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head.encode() + body)
            time.sleep(0.1)
    enqueue(http, topic, "q", "a")
    lease = worker.one()
    equal((lease.value, lease.deliveries), ("a", 1))
    worker.decide([lease], ACCEPT)


# Kafka's clients.


class Taker:
    """A Java share consumer that accepts what it gets."""

    def __init__(self, broker, topic, group):
        command = [*java("-Xmx256m"), "ShareTaker", broker.bootstrap, topic, group]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.taken = []
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self):
        for line in self.process.stdout:
            word, deliveries, at_ms, value = line.rstrip("\n").split(" ", 3)
            equal(word, "taken")
            self.taken.append((value, int(deliveries), int(at_ms)))

    def leave(self):
        self.process.stdin.close()
        code = self.process.wait(PATIENCE_S * checks.SLOWNESS)
        self.listener.join()
        equal(code, 0, "how the consumer ended")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def test_javas_share_consumer_and_workers_are_one_group(broker, http):
    topic, group = queue_topic(broker, "mixed", partitions=2), new_group(broker, {"share.auto.offset.reset": "earliest"})
    written, taken, stop = [], [], threading.Event()

    def work(name):
        worker = Worker(http, topic, group, name)
        while not stop.is_set():
            leases = worker.lease(3, 200)
            if leases:
                worker.decide(leases, ACCEPT)
                taken.extend((lease.value, lease.deliveries) for lease in leases)

    with Taker(broker, topic, group) as consumer:
        threads = [threading.Thread(target=work, args=[name]) for name in ("one", "other")]
        for thread in threads:
            thread.start()

        def all_had_some():
            for _ in range(10):
                number = len(written)
                enqueue(http, topic, f"q{number % 30}", {"value": f"{number}", "priority": number % 10})
                written.append(f"{number}")
            return len(consumer.taken) >= 10 and len(taken) >= 10

        try:
            eventually("the consumer and the workers have messages", all_had_some, PATIENCE_S)
            eventually("all are taken", lambda: len(consumer.taken) + len(taken) >= len(written), PATIENCE_S)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        consumer.leave()
    all_taken = [*taken, *((value, deliveries) for value, deliveries, _ in consumer.taken)]
    equal(sorted(value for value, _ in all_taken), sorted(written), "taken, each once")
    equal(Counter(deliveries for _, deliveries in all_taken), Counter({1: len(written)}), "deliveries")


def test_javas_share_consumer_gets_messages_by_the_same_rules(broker, http):
    topic, group = queue_topic(broker, "java"), new_group(broker, {"share.auto.offset.reset": "earliest"})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number, priority in enumerate([3, 9, 4, 0, 5, 1, 9]):
        producer.produce(topic, key=f"q{number}", value=f"priority {priority}", headers={"duramen-priority": f"{priority}"})
    producer.produce(topic, key="q", value="late", headers={"duramen-expires": "1"})
    equal(producer.flush(PATIENCE_S), 0, "records not yet written")
    with Taker(broker, topic, group) as consumer:
        eventually("those without a delay have come", lambda: len(consumer.taken) >= 7, PATIENCE_S)
        at_ms = now_ms() + 1_000
        producer.produce(topic, key="q", value="delayed", headers={"duramen-deliver-at": f"{at_ms}"})
        equal(producer.flush(PATIENCE_S), 0, "records not yet written")
        eventually("all have come", lambda: len(consumer.taken) >= 8, PATIENCE_S)
        consumer.leave()
    expected = [*(f"priority {priority}" for priority in (9, 9, 5, 4, 3, 1, 0)), "delayed"]
    equal([value for value, _, _ in consumer.taken], expected)
    equal({deliveries for _, deliveries, _ in consumer.taken}, {1})
    is_in_time(consumer.taken[-1][2], at_ms)
    Worker(http, topic, group).nothing_comes()


@pytest.mark.parametrize(
    "name, value", [("priority", "high"), ("priority", "10"), ("deliver-at", "-1"), ("deliver-at", "soon"), ("expires", ""), ("expires", "0")]
)
def test_producers_are_refused_what_makes_no_sense(broker, http, name, value):
    topic = queue_topic(broker, "refused")
    outcomes = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for headers in ({f"duramen-{name}": value}, {"duramen-priority": "4"}):
        producer.produce(topic, key="q", value="x", headers=headers, on_delivery=lambda error, _: outcomes.append(error and error.code()))
        equal(producer.flush(PATIENCE_S), 0, "records not yet written")
    equal(outcomes, [KafkaError.INVALID_RECORD, None])
    # An ordinary topic takes what it gets.
    ordinary = create(broker, checks.unique("ordinary"))
    producer.produce(ordinary, value="x", headers={f"duramen-{name}": value}, on_delivery=lambda error, _: outcomes.append(error))
    equal(producer.flush(PATIENCE_S), 0, "records not yet written")
    equal(outcomes[2], None)
    equal(values(Worker(http, ordinary, new_group(broker)).accept(1)), ["x"])


# Problems.


def test_wrong_leases_are_refused(broker, surface):
    topic, group = queue_topic(broker, "wrong"), new_group(broker)
    for wish, field in [
        ({"limit": 1_001}, "limit"),
        ({"bytes": 16_777_217}, "bytes"),
        ({"wait_ms": 60_001}, "wait_ms"),
        ({"worker": "w" * 37}, "worker"),
        ({"partition": -1}, "partition"),
    ]:
        equal(refused("bad-request", surface.lease, topic, group, **wish).fields, [field])
    equal(refused("bad-request", surface.lease, topic, " ").fields, ["group"])
    equal(refused("bad-request", surface.lease, topic, group, limit=1_001, wait_ms=60_001).fields, ["limit", "wait_ms"])
    refused("unknown-topic", surface.lease, "no-such-topic", group)
    refused("unknown-topic", surface.lease, topic, group, partition=1)
    refused("unknown-topic", surface.settle, "no-such-topic", group, "", [("0.0.1", ACCEPT, {})])
    refused("unknown-topic", surface.settle, topic, group, "", [("7.0.1", ACCEPT, {})])
    refused("unknown-topic", surface.redrive, "no-such-topic")
    refused("bad-request", surface.redrive, topic, limit=10_001)
    equal(surface.lease(topic, group, "w" * 36)[0], [])


def test_wrong_settlements_are_refused(broker, surface):
    topic, group = queue_topic(broker, "wrong-settlements"), new_group(broker)
    worker = Worker(surface, topic, group)
    enqueue(surface, topic, "q", "a")
    lease = worker.one()
    for name in ("", "0", "0.0", "0.0.0", "-1.0.1", "0.-1.1", "0.0.1.1", "a.b.c", "0.0.99999", "99999999999.0.1", " 0.0.1"):
        told = refused("bad-request", surface.settle, topic, group, worker.name, [(lease.name, ACCEPT, {}), (name, ACCEPT, {})])
        equal(told.fields, ["settlements"], name)
    for settlements in (
        [],
        [(lease.name, ACCEPT, {}), (lease.name, RELEASE, {})],
        [(lease.name, ACCEPT, {"delay_ms": 1})],
        [(f"0.{it}.1", ACCEPT, {}) for it in range(1_001)],
    ):
        equal(refused("bad-request", surface.settle, topic, group, worker.name, settlements).fields, ["settlements"])
    equal(
        surface.settle(topic, group, worker.name, [("0.4711.1", ACCEPT, {}), ("0.0.2", ACCEPT, {})]),
        {"0.4711.1": "lease-lost", "0.0.2": "lease-lost"},
        "what is no lease",
    )
    equal(surface.settle(topic, new_group(broker), worker.name, [(lease.name, ACCEPT, {})]), {lease.name: "lease-lost"}, "in another group")
    # None of them settled what was right beside it.
    worker.decide([lease], ACCEPT)


def test_wrong_schedules_are_refused(broker, http):
    topic = queue_topic(broker, "wrong-schedules")
    wrong = [
        {"priority": 10}, {"delay_ms": 1, "deliver_at_ms": 1}, {"ttl_ms": 1, "expires_ms": 1}, {"deliver_at_ms": 0}, {"expires_ms": -1},
        {"priority": 1, "headers": {"duramen-priority": "1"}}, {"headers": {"duramen-priority": "high"}},
    ]  # fmt: skip
    for times in wrong:
        told = refused("bad-request", http.enqueue, topic, "q", [{"value": "x", **times}])
        assert told.fields, f"{times}: {told}"
    http.enqueue(topic, "q", [{"value": "x", "headers": {"duramen-priority": "9"}}])
    equal(values(Worker(http, topic, new_group(broker)).accept(1)), ["x"])


def test_a_worker_may_not_lease_through_a_group_of_consumers(broker, surface):
    topic, group = queue_topic(broker, "consumers"), new_group(broker)
    enqueue(surface, topic, "q", "a")
    for protocol in ("classic", "consumer"):
        name = f"{group}-{protocol}"
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": name, "group.protocol": protocol, "auto.offset.reset": "earliest"})
        consumer.subscribe([topic])
        eventually("it has a record", lambda: consumer.poll(0.2), PATIENCE_S)  # noqa: B023
        refused("not-a-share-group", surface.lease, topic, name)
        equal(surface.settle(topic, name, "", [("0.0.1", ACCEPT, {})]), {"0.0.1": "lease-lost"})
        consumer.close()


def test_a_group_may_forbid_renewals(broker, surface):
    topic, group = queue_topic(broker, "no-renewals"), new_group(broker, {"share.renew.acknowledge.enable": "false"})
    worker = Worker(surface, topic, group)
    enqueue(surface, topic, "q", "a")
    lease = worker.one()
    equal(refused("bad-request", worker.settle, [lease], RENEW).fields, ["settlements"])
    worker.decide([lease], ACCEPT)
