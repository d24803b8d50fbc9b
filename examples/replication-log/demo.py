#!/usr/bin/env python3
"""Three nodes of the store, a, b and c: a new primary withdraws what the old one wrote too late.

It takes the options --server and --topic of store.py.
"""

import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

STORE = Path(__file__).with_name("store.py")
SCENE = """
# a is the primary, and b a replica that has all that a wrote.
a promote
a set apples 3
a set pears 5
b sync
# a goes on. b does not read that, and is promoted: what it never saw is withdrawn.
a set pears 4
a set plums 7
b promote
b set plums 70
b dump
# a does not know it yet. Its next write is refused, and it is a replica from then on.
a dump
a set apples 2
a sync
a dump
# b saves its state and trims the log. c is new, and begins there.
b checkpoint
b del pears
c sync
c dump
"""


class Node:
    """A shell of store.py."""

    def __init__(self, name, options):
        command = [sys.executable, str(STORE), name, *options]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        print(f"   ({self.answer()})")

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("a node ended")
        return line.rstrip()

    def obey(self, command):
        print(command, file=self.process.stdin, flush=True)
        return self.answer()


def play(options):
    nodes = {}
    for line in SCENE.strip().splitlines():
        name, _, command = line.partition(" ")
        if name == "#":
            print(f"\n{line}")
            continue
        if name not in nodes:
            nodes[name] = Node(name, options)
        print(f"{name}> {command}")
        print(f"   {nodes[name].obey(command)}")
    for node in nodes.values():
        node.process.stdin.close()
        node.process.wait()


with tempfile.TemporaryDirectory() as checkpoints:
    # A database of its own each time.
    play(["--database", f"demo-{uuid.uuid4().hex[:8]}", "--checkpoints", checkpoints, *sys.argv[1:]])
