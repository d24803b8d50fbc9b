"""The binary under test, and an authority with certificates as it makes them."""

import os
import subprocess

from broker import COMPAT, HOST

BINARY = os.environ.get("DURAMEN_BIN", str(COMPAT.parent / "target/release/duramen"))


def certificates(directory, names=f"localhost,{HOST}"):
    command = [BINARY, "tls", "init", "--node", names, "--client", "alice", "--out", directory]
    subprocess.run(command, check=True, capture_output=True)
    return directory
