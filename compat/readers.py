"""The consumers of every client, as processes: PROGRAM BOOTSTRAP TOPIC GROUP.

Each prints `PARTITION OFFSET VALUE` for each record that it processes, commits what it has processed, and leaves at SIGTERM.
"""

import signal
import subprocess
import sys
import threading
from pathlib import Path

from killing import java

COMPAT = Path(__file__).resolve().parent
# As long as librdkafka waits for an answer that a killed broker owes it.
LEAVE_S = 70


def built(script, program):
    """Returns a function that builds a client's programs, and returns the command of one."""
    return lambda: [str(Path(subprocess.check_output([str(COMPAT / script)], text=True).strip()) / program)]


def programs():
    """Returns a function for each client that makes the command of its consumer."""
    return {
        "franz-go": built("franz-go/build.sh", "member"),
        "sarama": built("sarama/build.sh", "member"),
        "kafka-go": built("kafka-go/build.sh", "member"),
        "kafkajs": lambda: [str(COMPAT / "kafkajs/member.sh")],
        "rust-rdkafka": built("rust-clients/build.sh", "member"),
        "kcat": lambda: [str(COMPAT / "kcat/member.sh")],
        "consumer-librdkafka": lambda: [sys.executable, str(COMPAT / "groups/consumer_member.py")],
        "consumer-java": lambda: [*java("-Xmx256m"), "ChurnedMember"],
    }


class Reader:
    def __init__(self, command, directory, number):
        self.processed = []
        self.errors_path = directory / f"member-{number}.errors"
        with open(self.errors_path, "wb") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            # A line that a kill cut short was not processed to the end.
            if line.endswith("\n"):
                partition, offset, value = line.split(" ", 2)
                self.processed.append((int(partition), int(offset), value.rstrip("\n")))

    def kill(self):
        self.process.kill()
        self._ended()

    def leave(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"a member did not leave within {LEAVE_S} s: {self.errors()}") from None
        self._ended()
        assert code == 0, f"a member ended with {code}: {self.errors()}"

    def _ended(self):
        self.process.wait()
        self.reader.join()

    def errors(self):
        return self.errors_path.read_text(errors="replace")[-1000:]
