"""Connections whose peers vanish; run in a network namespace of its own. Ends with 0 if all are closed and told of."""

import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / part) for part in ("", "wire")]

from calls import connect, new_topic
from scene import Peer, broker, eventually
from test_connections import IDLE_MS, METADATA, fetch_frame


def network(state):
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


network("up")
with broker({"connections.max.idle.ms": str(IDLE_MS)}) as target:
    with connect(target.bootstrap) as setup:
        topic = new_topic(setup, partitions=200)
    idle, half, parked, reading = (Peer(target) for _ in range(4))
    idle.send(METADATA)
    half.send(METADATA[:20])
    parked.send(fetch_frame(topic, max_wait_ms=60_000))
    reading.send(METADATA * 200)
    time.sleep(0.2)
    network("down")
    peers = {idle: "silent", half: "in the middle of a frame", parked: "waiting for an answer", reading: "reading"}
    for peer, reason in peers.items():
        eventually(f"a line says {reason}", lambda peer=peer: target.lines_about(peer.name))
        [line] = target.lines_about(peer.name)
        assert reason in line or "waiting for an answer" in line, line
    network("up")
    eventually("all are forgotten", lambda: target.open_connections() == 0)
    with connect(target.bootstrap) as again:
        assert again.call("Metadata", 12)["Brokers"]
