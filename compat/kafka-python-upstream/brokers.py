"""Brokers for kafka-python's own tests, as a plugin of pytest: `-p brokers`. Theirs start Kafka by the scripts of its distribution."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from kafka import KafkaAdminClient
from test.integration import fixtures

from broker import HOST, duramen_binary, free_port, start

KIND = os.environ["BROKER_KIND"]
MODULE = "org.apache.kafka.common.security"


class Broker(fixtures.KafkaFixture):
    """One broker that listens in the way that a test asks for, and in another one for who administers it."""

    def open(self):
        self.directory = Path(tempfile.mkdtemp(prefix="kafka-python-"))
        administered, self.port = free_port(), free_port()
        settings = {"listeners": f"PLAINTEXT://{HOST}:{administered},{self.transport}://{HOST}:{self.port}"}
        if self.ssl_enabled:
            settings |= self._certified()
        if self.sasl_enabled:
            settings |= self._asking()
        self.broker = start(KIND, administered, self.directory / "data", settings)
        if self.sasl_enabled and (KIND == "duramen" or self.sasl_mechanism != "PLAIN"):
            # Duramen checks a password of PLAIN against the same users.
            mechanism = "SCRAM-SHA-256" if self.sasl_mechanism == "PLAIN" else self.sasl_mechanism
            secret = self.directory / "password"
            secret.write_text(self.broker_password)
            command = [duramen_binary(), "user", "create", self.broker_user, "--for", mechanism, "--new-password-file", secret]
            subprocess.run([*map(str, command), "--bootstrap", self.broker.bootstrap], check=True)
        self.child, self.running = self, True

    def _certified(self):
        self.ssl_dir = str(self.directory / "ssl")
        subprocess.run([duramen_binary(), "tls", "init", "--node", f"localhost,{HOST}", "--out", self.ssl_dir], check=True, capture_output=True)
        shutil.copy(f"{self.ssl_dir}/ca.pem", f"{self.ssl_dir}/ca-cert")
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": f"{self.ssl_dir}/localhost.pem"}

    def _asking(self):
        settings = {"sasl.enabled.mechanisms": self.sasl_mechanism}
        if KIND == "duramen":
            # Kafka has no rules unless it is told so.
            return {**settings, "authorizer.class.name": "none"}
        listener = f"listener.name.{self.transport.lower()}.{self.sasl_mechanism.lower()}.sasl.jaas.config"
        return {**settings, listener: self._jaas_config().strip()}

    def start(self):
        assert self.running

    def stop(self):
        if self.running:
            self.running = False
            self.broker.stop()

    def close(self):
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def dump_logs(self):
        print(self.broker.log_tail())

    def get_topic_names(self):
        with KafkaAdminClient(**fixtures.client_params(self, "lister")) as admin:
            return admin.list_topics()


fixtures.KafkaFixture = Broker
