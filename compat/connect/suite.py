"""Kafka Connect standalone: a file goes through a topic into another file: suite.py BOOTSTRAP [PART OF A NAME]..."""

import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

COMPAT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(COMPAT))

import harness
from broker import free_port
from harness import equal, main, test

PATIENCE_S = 40


class Worker:
    """A worker with a source and a sink, and the directory in which it remembers where it was."""

    def __init__(self, directory):
        self.directory, self.port = directory, free_port()
        self.topic = harness.unique("connect")
        self.source, self.sink = directory / "source.txt", directory / "sink.txt"
        strings = "org.apache.kafka.connect.storage.StringConverter"
        self.write(
            "worker",
            {
                "bootstrap.servers": harness.bootstrap(),
                "key.converter": strings,
                "value.converter": strings,
                "offset.storage.file.filename": directory / "offsets",
                "offset.flush.interval.ms": 500,
                "listeners": f"HTTP://127.0.0.1:{self.port}",
                "plugin.discovery": "service_load",
            },
        )
        self.write("source", {"name": "source", "connector.class": "FileStreamSource", "file": self.source, "topic": self.topic})
        self.write("sink", {"name": "sink", "connector.class": "FileStreamSink", "file": self.sink, "topics": self.topic})

    def write(self, name, settings):
        (self.directory / f"{name}.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def start(self):
        libs = subprocess.check_output([COMPAT / "kafka/fetch.sh"], text=True).strip()
        options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={COMPAT / 'kafka/log4j2.properties'}"]
        properties = [str(self.directory / f"{name}.properties") for name in ("worker", "source", "sink")]
        with open(self.directory / "worker.log", "ab") as log:
            command = ["java", *options, "-cp", f"{libs}/*", "org.apache.kafka.connect.cli.ConnectStandalone", *properties]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def end(self, how):
        self.process.send_signal(how)
        self.process.wait(PATIENCE_S)

    def append(self, lines):
        with open(self.source, "a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def arrived(self):
        return self.sink.read_text().splitlines() if self.sink.exists() else []

    def wait_for(self, last):
        deadline = time.monotonic() + PATIENCE_S
        while last not in self.arrived():
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = (self.directory / "worker.log").read_text(errors="replace").splitlines()[-40:]
                raise AssertionError(f"{last!r} never came; {len(self.arrived())} lines are there\n" + "\n".join(tail))
            time.sleep(0.05)

    def ask(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return json.load(answer)


@test
def a_file_goes_through_a_topic_into_another_file_and_goes_on_after_a_restart():
    with tempfile.TemporaryDirectory(prefix="duramen-connect-") as directory:
        worker = Worker(Path(directory))
        worker.append(range(1000))
        worker.start()
        try:
            worker.wait_for("999")
            worker.append(range(1000, 1500))
            worker.wait_for("1499")
            for name in ("source", "sink"):
                status = worker.ask(f"/connectors/{name}/status")
                equal([status["connector"]["state"], *(task["state"] for task in status["tasks"])], ["RUNNING", "RUNNING"], name)
            worker.end(signal.SIGTERM)
            worker.append(range(1500, 2000))
            worker.start()
            worker.wait_for("1999")
            equal(worker.arrived(), [str(number) for number in range(2000)], "the lines of the sink's file")
        finally:
            worker.end(signal.SIGKILL)


main()
