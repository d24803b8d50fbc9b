"""The binary under test, and an authority with certificates as it makes them."""

import subprocess

from broker import HOST, duramen_binary

BINARY = duramen_binary()


def certificates(directory, names=f"localhost,{HOST}"):
    command = [BINARY, "tls", "init", "--node", names, "--client", "alice", "--out", directory]
    subprocess.run(command, check=True, capture_output=True)
    return directory
