"""One attack over and over, in a process of its own: attacker.py BOOTSTRAP KIND [ARGUMENT]..."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / part) for part in ("", "wire", "kafka-tools", "security")]

import attacks
from calls import connect

bootstrap, kind, *arguments = sys.argv[1:]
attack = getattr(attacks, kind)
with connect(bootstrap) as connection:
    for _ in attack(connection, *(int(it) if it.isdigit() else it for it in arguments)):
        pass
