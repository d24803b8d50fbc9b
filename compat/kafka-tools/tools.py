"""Runs Kafka's command-line tools, by the names of their scripts, in one JVM that stays: see Tools.java.

    tools.run("kafka-topics", "--bootstrap-server", "...", "--list").out
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    consumer = tools.start("kafka-console-consumer", ...); consumer.wait_for("text"); consumer.stop()
"""

import json
import subprocess
import time
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 40
PAUSE_S = 0.02

MAINS = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}


class Jvm:
    def __init__(self):
        libs = subprocess.check_output([HERE / "../kafka/fetch.sh"], text=True).strip()
        classes = subprocess.check_output([HERE / "../java/compile.sh"], text=True).strip()
        log4j = f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"
        options = ["-Xmx1g", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", log4j]
        command = ["java", *options, "-cp", f"{classes}:{libs}/*", "Tools"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.last_id = 0

    def begin(self, main, arguments, stdin):
        self.last_id += 1
        self._send({"id": self.last_id, "main": main, "args": arguments, "stdin": stdin})
        return self.last_id

    def ask(self, run_id, what):
        self._send({"id": run_id, "do": what})
        answer = self.process.stdout.readline()
        assert answer, "the tools' JVM has ended: a tool went around Kafka's own Exit, as argparse4j does when it does not like its arguments"
        return json.loads(answer)

    def _send(self, request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()


@cache
def jvm():
    return Jvm()


class Run:
    """One run of a tool; `code` is None until it has ended."""

    def __init__(self, name, arguments, stdin):
        self.what = " ".join([name, *arguments])
        self.id = jvm().begin(MAINS[name], arguments, stdin)
        self.look()

    def look(self, what="look"):
        answer = jvm().ask(self.id, what)
        self.code, self.out, self.err = answer["code"], answer["out"], answer["err"]

    def wait_for(self, text):
        """Returns when the tool has printed the text; it may go on running."""
        self._wait(lambda: text in self.out, f"the text {text!r}")
        return self

    def wait(self):
        self._wait(lambda: self.code is not None, "the end")
        return self

    def stop(self):
        """What Ctrl-C does."""
        self.look("stop")
        return self.wait()

    def _wait(self, enough, what):
        deadline = time.monotonic() + TIMEOUT_S
        while not enough():
            ended = self.code is not None
            assert not ended and time.monotonic() < deadline, f"{self.what}: {what} did not come; {self}"
            time.sleep(PAUSE_S)
            self.look()

    def __str__(self):
        return f"exit code {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"


def start(name, *arguments, stdin=""):
    return Run(name, [str(each) for each in arguments], stdin)


def run(name, *arguments, stdin=""):
    return start(name, *arguments, stdin=stdin).wait()
