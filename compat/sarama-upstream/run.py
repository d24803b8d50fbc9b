"""Runs Sarama's own functional tests against three brokers that it starts: run.py KIND [PART OF A TEST'S NAME]..."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from broker import COMPAT, HOST, duramen_binary, start_cluster
from listeners import addresses, listening, make_user

USER, PASSWORD = "sarama", "sarama-secret"
MODULE = "org.apache.kafka.common.security"
# Tests that are left out, with the reason; of some all tests with that beginning.
LEFT_OUT = {
    "TestFuncConnectionFailure": "its proxies break connections",
    "TestFuncAdminNetworkErrorClosesControllerConnection": "its proxies break connections",
    "TestFuncTxnProduceWithBrokerFailure": "it stops a broker by docker compose",
    "TestFuncProducingIdempotentWithBrokerFailure": "its proxies break connections",
    "TestAsyncProducerRemoteBrokerClosed": "its proxies break connections",
    "TestFuncProducing($|Gzip|Snappy|Zstd|NoResponse|Flushing)": "it counts responses and their latency: its proxies slow them, and logins are some, too",
    "TestFuncAdminListConsumerGroupOffsets$": "it stops a broker by docker compose",
    "TestFuncIdempotentBufferedSequence": "it reads the broker's log by docker",
    "TestConsumerFetchFollowerFailover": "it stops a broker by docker compose",
    "TestFuncJavaInterop": "it runs Kafka's tools by docker compose",
    "TestJava": "it runs Kafka's tools by docker compose",
}


class Proxies(BaseHTTPRequestHandler):
    """Stands in for the server of proxies that each test asks to be as at the beginning."""

    def do_GET(self):
        self._answer(200, {"name": self.path.rpartition("/")[2], "listen": "", "upstream": "", "enabled": True})

    def do_POST(self):
        self._answer(204 if self.path == "/reset" else 500)

    def _answer(self, status, body=None):
        self.send_response(status)
        self.end_headers()
        if body is not None:
            self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        pass


def main(kind, parts):
    directory = Path(tempfile.mkdtemp(prefix="duramen-sarama-"))
    subprocess.run([duramen_binary(), "tls", "init", "--node", f"localhost,{HOST}", "--out", directory], check=True, capture_output=True)
    settings = {
        "sasl.enabled.mechanisms": "PLAIN", "ssl.keystore.type": "PEM", "ssl.keystore.location": str(directory / "localhost.pem"),
        # As the tests' own brokers have them.
        "auto.create.topics.enable": "false",
    }
    login = f'{MODULE}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
    kinds = listening({"SASL_SSL": "SASL_SSL"}, settings, {"listener.name.sasl_ssl.plain.sasl.jaas.config": login})
    proxies = ThreadingHTTPServer((HOST, 0), Proxies)
    threading.Thread(target=proxies.serve_forever, daemon=True).start()
    with start_cluster(kind, directory / "data", kinds=kinds) as cluster:
        if kind == "duramen":
            make_user(cluster, USER, PASSWORD, directory)
        environment = {
            **os.environ, "BOOTSTRAP": addresses(cluster, "SASL_SSL"), "SASL_USERNAME": USER, "SASL_PASSWORD": PASSWORD,
            "SSL_CA": str(directory / "ca.pem"), "TOXIPROXY_ADDR": f"http://{HOST}:{proxies.server_port}", "KAFKA_VERSION": "4.0.0",
        }
        binary = subprocess.check_output([COMPAT / "sarama-upstream/build.sh"], text=True).strip()
        if kind == "kafka":
            # Kafka makes the topic of groups when a client first asks for a coordinator; meanwhile others come to the wrong one.
            subprocess.run([binary, "-test.run=TestFuncClientCoordinator"], env=environment, cwd=directory, stdout=subprocess.DEVNULL)
        return subprocess.run(tests(binary, parts), env=environment, cwd=directory).returncode


def tests(binary, parts):
    """The command that runs them."""
    gotestsum = subprocess.check_output([COMPAT / "gotestsum/build.sh"], text=True).strip()
    report = ["--junitfile", f"{os.environ['JUNIT_DIR']}/sarama-upstream.xml"] if "JUNIT_DIR" in os.environ else []
    skipped = "|".join(f"^{name}" for name in LEFT_OUT)
    seconds = 420 * float(os.environ.get("SLOWNESS", "1"))
    flags = ["-test.v=test2json", f"-test.timeout={seconds:.0f}s", f"-test.skip={skipped}", *(["-test.run", "|".join(parts)] if parts else [])]
    return [gotestsum, "--format", "testname", *report, "--raw-command", "--", "go", "tool", "test2json", "-t", "-p", "sarama-upstream", binary, *flags]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
