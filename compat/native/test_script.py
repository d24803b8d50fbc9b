"""The script, by each client; on three nodes each step goes to the next node, or to the next that does not lead."""

import itertools
import os
import time
import urllib.error
import urllib.request

import pytest

import checks
import drivers
import reach
from script import GROUPS, Awaited, Problem


@pytest.fixture(scope="session")
def place():
    return drivers.built()


@pytest.fixture(scope="session")
def pairs(place):
    """Two drivers of a client: one more for what goes on beside. Each begins when it is needed."""
    begun = {}

    def pair(name):
        if name not in begun:
            begun[name] = [drivers.Driver(name, place) for _ in range(2)]
        return begun[name]

    yield pair
    for driver in itertools.chain(*begun.values()):
        driver.end()


def leads(address, topic):
    """Tells whether a node leads a topic's first log: a call that was passed on goes no further."""
    said = {"authorization": reach.basic()} if reach.USER else {}
    at = f"{reach.http_scheme()}://{address}/v1/topics/{topic}/partitions/0"
    request = urllib.request.Request(at, headers={"duramen-hop": "1", **said})
    try:
        with urllib.request.urlopen(request, context=reach.trust()):
            return True
    except urllib.error.HTTPError as error:
        assert error.code == 503, error
        return False


class Player:
    def __init__(self, pair, topic):
        self.driver, self.second = pair
        self.saved = {"t": topic}
        self.addresses = os.environ["NATIVE"].split(",")
        self.turns = itertools.cycle(self.addresses)

    def play(self, number, step):
        expected = drivers.filled(step.expected.members if isinstance(step.expected, Problem) else step.expected, self.saved)
        if isinstance(step, Awaited):
            drivers.check(self.driver.name, step.expected, self.second.told(), expected, f"step {number}")
            return
        request = drivers.filled(step.request, self.saved)
        what = f"step {number}, {step.method} {str(request)[:300]}"
        if step.beside:
            self.second.begin(self.address(step), step.method, request, step.take)
            return
        told = self.call(step, request)
        deadline = time.monotonic() + 40 * checks.SLOWNESS
        while step.lags and time.monotonic() < deadline:
            try:
                drivers.check(self.driver.name, step.expected, told, expected, what)
                break
            except AssertionError:
                time.sleep(0.05)
                told = self.call(step, request)
        answer = drivers.check(self.driver.name, step.expected, told, expected, what)
        if step.save:
            self.saved[step.save] = answer
        if step.method in ("Topics.CreateTopic", "Topics.DeleteTopic") and "problem" not in told:
            self.settle(request["name"], step.method)

    def address(self, step):
        """The next node's, and for some steps the next one's that does not lead."""
        address = next(self.turns)
        if step.passed_on and len(self.addresses) > 1 and leads(address, self.saved["t"]):
            return next(self.turns)
        return address

    def call(self, step, request):
        """Calls again what nobody leads for a moment: nothing was done then."""
        told = {}

        def answered():
            nonlocal told
            told = self.driver.call(self.address(step), step.method, request, step.take)
            return told.get("problem", {}).get("slug") != "no-leader"

        checks.eventually("the log has a leader", answered, timeout_s=40)
        return told

    def settle(self, topic, method):
        """Waits until every node knows what was done to a topic, and its first log has a leader."""
        unknown = method == "Topics.DeleteTopic"

        def known(address):
            told = self.driver.call(address, "Logs.Tail", {"topic": topic})
            return ("problem" not in told) != unknown

        for address in self.addresses:
            checks.eventually(f"{address} knows of {topic}", lambda: known(address), timeout_s=40)  # noqa: B023


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("name", drivers.NAMES)
def test_script(name, group, pairs):
    player = Player(pairs(name), checks.unique(f"native-{group}"))
    skips = False
    for number, step in enumerate(GROUPS[group]):
        if isinstance(step, Awaited) and skips:
            skips = False
            continue
        if name in getattr(step, "without", {}):
            skips = skips or step.beside
            continue
        player.play(number, step)
