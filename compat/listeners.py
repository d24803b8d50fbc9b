"""Brokers that listen in further ways beside PLAINTEXT, alone or as a cluster:

    kinds = listening({"SASL_SSL": "SASL_SSL", "TOKENS": "SASL_PLAINTEXT"}, settings, of_kafka)    # for start(..., kinds=kinds)
    broker.at["TOKENS"]                                                                            # "127.0.0.1:21034"
    addresses(cluster, "TOKENS")                                                                   # those of all its brokers
"""

import subprocess

from broker import HOST, KINDS, duramen_binary, free_port


def listening(protocols, settings, of_kafka):
    """Returns brokers as `broker.KINDS` has them, with a listener for each name in `protocols`. Nobody is bound by rules there."""

    def kind_of(kind):
        class Listening(KINDS[kind]):
            def __init__(self, port, data_dir, given, *others):
                self.at = {name: f"{HOST}:{free_port()}" for name in protocols}
                clients = ",".join([f"PLAINTEXT://{HOST}:{port}", *(f"{name}://{at}" for name, at in self.at.items())])
                mapped = {"PLAINTEXT": "PLAINTEXT", **protocols}
                own = {"listeners": clients}
                if kind == "kafka":
                    # Of a cluster the controller's address is agreed on.
                    controller = [it for it in given.get("listeners", "").split(",") if it.startswith("CONTROLLER:")]
                    own = {**of_kafka, "listeners": ",".join([clients, *controller]), "advertised.listeners": clients}
                    mapped["CONTROLLER"] = "PLAINTEXT"
                else:
                    # Kafka has no rules unless it is told so.
                    own["authorizer.class.name"] = "none"
                own["listener.security.protocol.map"] = ",".join(f"{name}:{protocol}" for name, protocol in mapped.items())
                super().__init__(port, data_dir, {**given, **settings, **own}, *others)

        return Listening

    return {kind: kind_of(kind) for kind in KINDS}


def addresses(brokers, listener):
    return ",".join(broker.at[listener] for broker in brokers.brokers)


def make_user(brokers, name, password, directory, mechanisms=("SCRAM-SHA-512",)):
    """Makes a user, over the listener that asks nobody; of Kafka those of PLAIN stand in its settings."""
    secret = directory / f"{name}.password"
    secret.write_text(password)
    for mechanism in mechanisms:
        command = [duramen_binary(), "user", "create", name, "--for", mechanism, "--new-password-file", secret]
        subprocess.run([*map(str, command), "--bootstrap", brokers.bootstrap], check=True)
