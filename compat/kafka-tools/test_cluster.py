"""Tools that look at the broker as a whole."""

import json
import re
from pathlib import Path

import harness
from console import contains, new_topic, not_yet, plain, produce, refused, same, tool
from harness import equal, test

KAFKAS_VERSIONS = Path(__file__).with_name("api-versions.txt").read_text().splitlines()


@test
def kafka_broker_api_versions_shows_what_kafka_advertises_or_nothing():
    said = tool("kafka-broker-api-versions")
    contains(plain(said), "BROKER (id: 1 rack: null isFenced: false) -> (")
    shown = [line.strip().rstrip(",") for line in said.splitlines() if re.match(r"\t\w+\(\d+\): ", line)]
    if harness.broker_kind() == "kafka":
        equal(shown, KAFKAS_VERSIONS)
    for line in shown:
        name = line.split(":")[0]
        assert line in KAFKAS_VERSIONS or line == f"{name}: UNSUPPORTED", f"Kafka advertises other versions: {line}"


@test
def kafka_cluster_tells_the_cluster_id_and_its_endpoints():
    said = tool("kafka-cluster", "cluster-id")
    assert re.fullmatch(r"Cluster ID: \S{22}\n", said), said
    contains(plain(tool("kafka-cluster", "list-endpoints")), "1 127.0.0.1")


@test
def kafka_log_dirs_shows_each_partition_s_size():
    topic = new_topic(partitions=2)
    produce(topic, ["x" * 1000])
    described = tool("kafka-log-dirs", "--describe", "--topic-list", topic)
    [broker] = json.loads(described.splitlines()[-1])["brokers"]
    [directory] = broker["logDirs"]
    equal((broker["broker"], directory["error"]), (1, None))
    partitions = sorted((each["partition"], each["offsetLag"], each["isFuture"]) for each in directory["partitions"])
    equal(partitions, [(f"{topic}-0", 0, False), (f"{topic}-1", 0, False)])
    sizes = sorted(each["size"] for each in directory["partitions"])
    assert sizes[0] == 0 and 1000 < sizes[1] < 1200, sizes


@test
def kafka_metadata_quorum_describes_its_status_and_replication():
    status = dict(line.split(":", 1) for line in tool("kafka-metadata-quorum", "describe", "--status").splitlines())
    equal(sorted(status), sorted(QUORUM_FIELDS))
    assert int(status["HighWatermark"]) > 0 and int(status["LeaderEpoch"]) > 0, status
    equal(status["MaxFollowerLag"].strip(), "0")
    header, leader = tool("kafka-metadata-quorum", "describe", "--replication").splitlines()
    equal(header.split(), ["NodeId", "DirectoryId", "LogEndOffset", "Lag", "LastFetchTimestamp", "LastCaughtUpTimestamp", "Status"])
    equal((leader.split()[0], leader.split()[3], leader.split()[-1]), ("1", "0", "Leader"))


QUORUM_FIELDS = [
    "ClusterId", "LeaderId", "LeaderEpoch", "HighWatermark", "MaxFollowerLag", "MaxFollowerLagTimeMs", "CurrentVoters", "CurrentObservers",
]  # fmt: skip


@test
def kafka_leader_election_has_nothing_to_do_for_one_node():
    topic = new_topic()
    one = ("--topic", topic, "--partition", 0)
    same(tool("kafka-leader-election", "--election-type", "preferred", *one), "Valid replica already elected for partitions T-0", T=topic)
    contains(refused("kafka-leader-election", "--election-type", "preferred", "--topic", f"{topic}-2", "--partition", 0), "T-2-0".replace("T", topic))


@test
def kafka_reassign_partitions_lists_no_reassignments():
    same(tool("kafka-reassign-partitions", "--list"), "No partition reassignments found.")


@test
def kafka_configs_sets_describes_and_takes_back_quotas_of_clients_and_users():
    client, user = harness.unique("client"), harness.unique("user")
    of_client = ("--entity-type", "clients", "--entity-name", client)
    of_both = ("--entity-type", "users", "--entity-name", user, "--entity-type", "clients", "--entity-default")
    alter, describe = ("kafka-configs", "--alter"), ("kafka-configs", "--describe")
    same(tool(*alter, *of_client, "--add-config", "producer_byte_rate=1000,consumer_byte_rate=2000"), "Completed updating config for client C.", C=client)
    tool(*alter, *of_both, "--add-config", "producer_byte_rate=3000")
    told = lambda *entity: plain(tool(*describe, *entity), C=client, U=user)  # noqa: E731
    # Kafka's broker learns of a quota a moment after its controller has taken it.
    harness.eventually("the quota is known", lambda: "producer_byte_rate=3000.0" in told(*of_both))
    expected = "Quota configs for client-id 'C' are consumer_byte_rate=2000.0, producer_byte_rate=1000.0"
    equal(told(*of_client), expected)
    contains(told("--entity-type", "clients"), expected)
    equal(told(*of_both), "Quota configs for user-principal 'U', the default client-id are producer_byte_rate=3000.0")
    contains(refused(*alter, *of_client, "--add-config", "producer_byte_rate=-1"), "InvalidRequestException")
    tool(*alter, *of_client, "--delete-config", "producer_byte_rate,consumer_byte_rate")
    tool(*alter, *of_both, "--delete-config", "producer_byte_rate")
    harness.eventually("the quotas are gone", lambda: told(*of_client) == "" and told(*of_both) == "")


@test
def kafka_features_describes_what_the_broker_supports():
    described = plain(tool("kafka-features", "describe"))
    for name, level in (("group.version", 1), ("share.version", 1), ("transaction.version", 2)):
        contains(described, f"Feature: {name} SupportedMinVersion: 0 SupportedMaxVersion: {level} FinalizedVersionLevel: {level} ")
    for line in described.splitlines():
        assert re.fullmatch(r"Feature: \S+\s+SupportedMinVersion: \S+\s+SupportedMaxVersion: \S+\s+FinalizedVersionLevel: \S+\s+Epoch: \d+", line), line


@test
@not_yet("settings of client metrics", "metrics of clients are not collected here")
def kafka_client_metrics_are_added_listed_described_and_deleted():
    name = harness.unique("subscription")
    tool("kafka-client-metrics", "--alter", "--name", name, "--metrics", "org.apache.kafka.consumer.", "--interval", 30000)
    contains(tool("kafka-client-metrics", "--list"), name)
    contains(tool("kafka-client-metrics", "--describe", "--name", name), "interval.ms=30000")
    tool("kafka-client-metrics", "--delete", "--name", name)
    assert name not in tool("kafka-client-metrics", "--list")
