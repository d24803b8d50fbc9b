"""What every client's consumer groups must do: share partitions, replace the dead, let a static member come back.

A member is a process, so that it can be killed: `member.py BOOTSTRAP GROUP TOPIC [SETTING=VALUE]...` in the client's
directory; Java's is GroupMember. Settings are `assignor` (range or cooperative), `protocol` (consumer, where the client has KIP-848),
`instance` (a static member's name), `session_ms`. It prints
`owns PARTITION...` when its share has changed and `read VALUE...` when the commit of what it has read was acknowledged;
what it could not commit it does not print. It leaves the group when its input ends.

    Scenarios(directory, new_topic, produce).a_dead_member_is_replaced()      # produce(topic, partition, values)
"""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import checks
from checks import equal

PARTITIONS = 6
# The shortest session that a broker takes by default.
SESSION_MS = 6000
PATIENCE_S = 25 * checks.SLOWNESS


def python_member(directory):
    """The command that runs the member of a Python client."""
    return [sys.executable, str(Path(directory) / "member.py")]


class Member:
    def __init__(self, command, bootstrap, group, topic, **settings):
        words = [f"{name}={value}" for name, value in {"session_ms": SESSION_MS, **settings}.items()]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        # A member in Python reaches the broker as the tests do.
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        self.process = subprocess.Popen([*command, bootstrap, group, topic, *words], **pipes, text=True, env=environment)
        self.shares = []
        self.read = []
        self.errors = []
        self.readers = [threading.Thread(target=each, daemon=True) for each in (self._follow, self._keep_errors)]
        for reader in self.readers:
            reader.start()

    def _follow(self):
        for line in self.process.stdout:
            what, *words = line.split()
            if what == "owns":
                self.shares.append({int(word) for word in words})
            elif what == "read":
                self.read += [int(word) for word in words]

    def _keep_errors(self):
        for line in self.process.stderr:
            self.errors.append(line)

    @property
    def share(self):
        return self.shares[-1] if self.shares else set()

    def leave(self):
        self.process.stdin.close()
        code = self.process.wait(PATIENCE_S)
        assert code == 0, f"a member ended with {code}: {''.join(self.errors)}"
        self._wait_for_readers()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self._wait_for_readers()

    def _wait_for_readers(self):
        for reader in self.readers:
            reader.join()


class Scenarios:
    def __init__(self, directory, new_topic, produce):
        self.directory, self.new_topic, self.produce = directory, new_topic, produce

    def begin(self):
        self.topic, self.group = self.new_topic(PARTITIONS), checks.unique("group")
        self.sent, self.members = 0, []
        return self

    def member(self, **settings):
        member = Member(python_member(self.directory), checks.bootstrap(), self.group, self.topic, **settings)
        self.members.append(member)
        return member

    def send(self, count=120):
        for partition in range(PARTITIONS):
            mine = [number for number in range(self.sent, self.sent + count) if number % PARTITIONS == partition]
            self.produce(self.topic, partition, [b"%d" % number for number in mine])
        self.sent += count

    def two_members(self, first=None, second=None):
        first = self.member(**first or {})
        self.shared_by(first)
        second = self.member(**second or {})
        self.shared_by(first, second)
        return first, second

    def all_is_read_once(self):
        self.eventually(lambda: sum(len(member.read) for member in self.members) >= self.sent, "all is read")
        equal(sorted(number for member in self.members for number in member.read), list(range(self.sent)), "what all members have read")

    def shared_by(self, *members):
        def fair():
            shares = [member.share for member in members]
            each = PARTITIONS // len(members)
            return all(len(share) == each for share in shares) and set.union(*shares) == set(range(PARTITIONS))

        self.eventually(fair, f"{len(members)} members share {PARTITIONS} partitions")

    def eventually(self, condition, what):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            said = [(member.shares[-3:], member.process.poll(), "".join(member.errors[-20:])) for member in self.members]
            if time.monotonic() > deadline:
                for member in self.members:
                    member.process.kill()
                raise AssertionError(f"never happened: {what}; members: {said}")
            time.sleep(0.02)

    def partitions_are_shared_anew_when_members_join_and_leave(self, **settings):
        self.begin()
        first = self.member(**settings)
        self.shared_by(first)
        self.send()
        second = self.member(**settings)
        self.shared_by(first, second)
        self.send()
        third = self.member(**settings)
        self.shared_by(first, second, third)
        self.send()
        self.all_is_read_once()
        second.leave()
        self.eventually(lambda: len(first.share) == len(third.share) == PARTITIONS // 2, "two members share all")
        self.send()
        self.all_is_read_once()
        first.leave()
        third.leave()
        return first, second, third

    def cooperative_members_keep_what_no_one_else_gets(self):
        first, *_ = self.partitions_are_shared_anew_when_members_join_and_leave(assignor="cooperative")
        # Until it leaves it always has some, and never fewer than it has in the end.
        assert min(len(share) for share in first.shares[first.shares.index(set(range(PARTITIONS))) : -1]) >= 2, first.shares

    def a_dead_member_is_replaced(self, **settings):
        self.begin()
        first, second = self.two_members(settings, settings)
        self.send()
        self.all_is_read_once()
        second.kill()
        died = time.monotonic()
        self.send()
        self.shared_by(first)
        waited = time.monotonic() - died
        assert SESSION_MS / 1000 - 3.5 < waited < SESSION_MS / 1000 + 5, f"replaced after {waited:.1f} s"
        self.all_is_read_once()
        first.leave()

    def members_of_both_protocols_share_while_the_group_changes_its_kind(self):
        self.begin()
        old = self.member(assignor="cooperative")
        self.shared_by(old)
        self.send()
        new = self.member(protocol="consumer")
        self.shared_by(old, new)
        self.send()
        self.all_is_read_once()
        new.leave()
        self.shared_by(old)
        self.send()
        self.all_is_read_once()
        old.leave()

    def a_static_member_that_comes_back_causes_no_rebalance(self):
        self.begin()
        # A process may take seconds to begin, and is to come back within its session.
        session = {"session_ms": 3 * SESSION_MS}
        first, second = self.two_members({"instance": "one", **session}, {"instance": "two", **session})
        self.send()
        self.all_is_read_once()
        before = len(first.shares)
        for _ in range(2):
            second.kill()
            self.send()
            again = self.member(instance="two", **session)
            self.eventually(lambda again=again, second=second: again.share == second.share, "the same share as before")
            second = again
            self.all_is_read_once()
        equal(len(first.shares), before, "how often the other's share was given anew")
        for member in (first, second):
            member.leave()
