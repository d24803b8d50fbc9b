"""kafka-transactions, and the other tools where they have to do with transactions."""

import re

import calls
import checks
from checks import equal
from console import OPEN_NODES, contains, new_topic, plain, produce, refused, same, tool
from test_groups import partition_of
from test_records import segment_directory
from transactional import Transactional, settle, until_settled

LISTED = "TransactionalId Coordinator ProducerId TransactionState"
PRODUCERS = "ProducerId ProducerEpoch LatestCoordinatorEpoch LastSequence LastTimestamp CurrentTransactionStartOffset"


def open_transaction(topic):
    """By hand-made frames, so that nobody ends it."""
    id = checks.unique("open")
    coordinator = coordinator_of(id)
    producer = Transactional(RightNode(calls.connect(OPEN_NODES[coordinator]), connect_to_leader(topic)), 1, id=id).init()
    producer.coordinator = coordinator
    producer.send(topic, [b"open"], timestamp=1_000)
    return producer


class RightNode:
    """As one connection: records go to the leader of their partition, everything else to the coordinator."""

    def __init__(self, coordinator, leader):
        self.coordinator, self.leader = coordinator, leader

    def call(self, api, version, body):
        return (self.leader if api == "Produce" else self.coordinator).call(api, version, body)


def coordinator_of(id):
    asked = {"KeyType": 1, "CoordinatorKeys": [id]}
    with calls.connect() as connection:
        found = until_settled(lambda: connection.call("FindCoordinator", 6, asked)["Coordinators"][0])
    equal(f"{found['Host']}:{found['Port']}", OPEN_NODES.get(found["NodeId"]), "the coordinator's address")
    return found["NodeId"]


def connect_to_leader(topic):
    with calls.connect() as connection:
        calls.wait_for_leaders(connection, topic, 1)
    leader = calls.connect_to_leader(topic)
    checks.eventually("the leader serves it", lambda: calls.list_offset(leader, topic, calls.LATEST)["ErrorCode"] == 0)
    return leader


def transactions(*arguments):
    return tool("kafka-transactions", *arguments)


def test_kafka_transactions_lists_them_by_age_and_pattern():
    producer = open_transaction(new_topic())
    row = f"ID {producer.coordinator} {producer.producer_id} Ongoing"
    same(transactions("list", "--transactional-id-pattern", producer.id), f"{LISTED}\n{row}", ID=producer.id)
    contains(transactions("list"), producer.id)
    same(transactions("list", "--transactional-id-pattern", producer.id, "--duration-filter", 3_600_000), LISTED)
    contains(refused("kafka-transactions", "list", "--transactional-id-pattern", "*["), "unexpected error INVALID_REGULAR_EXPRESSION")
    producer.abort()


def test_kafka_transactions_describes_one_by_its_id():
    topic = new_topic()
    producer = open_transaction(topic)
    header = "CoordinatorId TransactionalId ProducerId ProducerEpoch TransactionState TransactionTimeoutMs CurrentTransactionStartTimeMs"
    said = transactions("describe", "--transactional-id", producer.id).splitlines()
    equal(said[0].split(), [*header.split(), "TransactionDurationMs", "TopicPartitions"])
    row = said[1].split()
    equal([*row[:6], row[8]], [str(producer.coordinator), producer.id, str(producer.producer_id), "0", "Ongoing", "60000", f"{topic}-0"])
    assert 0 <= int(row[7]) < 60_000, row
    producer.commit()
    settle(producer)
    row = transactions("describe", "--transactional-id", producer.id).splitlines()[1].split()
    equal([row[4], len(row)], ["CompleteCommit", 8], "it has no partitions any more")
    contains(refused("kafka-transactions", "describe", "--transactional-id", "nobody"), "failed because the ID could not be found")


def test_kafka_transactions_describes_the_producers_of_a_partition():
    topic = new_topic()
    producer = open_transaction(topic)
    asked = ("describe-producers", "--topic", topic, "--partition", 0)
    same(transactions(*asked), f"{PRODUCERS}\n{producer.producer_id} 0 -1 0 1000 0")
    producer.commit()
    settle(producer)
    row = transactions(*asked).splitlines()[1].split()
    equal([*row[:2], row[3], row[5]], [str(producer.producer_id), "0", "0", "None"])
    assert int(row[2]) >= 0, "the epoch of the coordinator that wrote the marker"


def test_kafka_transactions_aborts_in_a_partition_what_it_is_told_to():
    """What is open and known to its coordinator does not hang; none can be made to hang where each batch is verified."""
    topic = new_topic()
    producer = open_transaction(topic)
    asked = ("find-hanging", "--topic", topic, "--partition", 0, "--max-transaction-timeout", 1)
    same(transactions(*asked), "Topic Partition ProducerId ProducerEpoch CoordinatorEpoch StartOffset LastTimestamp Duration(min)")
    transactions("abort", "--topic", topic, "--partition", 0, "--start-offset", 0)
    row = transactions("describe-producers", "--topic", topic, "--partition", 0).splitlines()[1].split()
    equal(row[5], "None", "no transaction")
    equal(consumed(topic), [])
    producer.abort()


def test_kafka_transactions_ends_one_by_force():
    topic = new_topic()
    producer = open_transaction(topic)
    produce(topic, ["after"])
    transactions("forceTerminateTransaction", "--transactionalId", producer.id)
    checks.eventually("it is over", lambda: consumed(topic) == ["after"])
    assert producer.end(True)["ErrorCode"] in (47, 90)


def consumed(topic):
    asked = ("--topic", topic, "--from-beginning", "--timeout-ms", 1500, "--isolation-level", "read_committed")
    return tool("kafka-console-consumer", *asked).splitlines()


def test_the_console_consumer_reads_what_is_committed_or_all():
    topic = new_topic()
    producer = open_transaction(topic)
    producer.abort()
    settle(producer)
    produce(topic, ["kept"])
    equal(consumed(topic), ["kept"])
    equal(tool("kafka-console-consumer", "--topic", topic, "--from-beginning", "--max-messages", 2, "--timeout-ms", 20000).splitlines(), ["open", "kept"])


def test_the_perf_tools_send_and_read_by_transactions():
    topic = new_topic()
    size = ("--num-records", 5000, "--record-size", 200, "--throughput", -1)
    said = tool("kafka-producer-perf-test", "--topic", topic, *size, "--transactional-id", checks.unique("perf"), "--transaction-duration-ms", 50)
    contains(said, "5000 records sent, ")
    header, figures = tool("kafka-consumer-perf-test", "--topic", topic, "--num-records", 5000, "--timeout", 20000).splitlines()[-2:]
    equal(int(dict(zip(header.split(", "), figures.split(", "), strict=True))["data.consumed.in.nMsg"]), 5000)


def test_the_topic_of_transactions_is_kafkas_and_its_formatter_reads_it():
    producer = open_transaction(new_topic())
    producer.commit()
    settle(producer)
    described = tool("kafka-topics", "--describe", "--topic", "__transaction_state")
    contains(plain(described), f"PartitionCount: 50 ReplicationFactor: {len(OPEN_NODES)}")
    contains(described, "cleanup.policy=compact")
    partition = partition_of(producer.id)
    reading = ("--topic", "__transaction_state", "--partition", partition, "--offset", "earliest", "--timeout-ms", 1500)
    read = tool("kafka-console-consumer", *reading, "--formatter", "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter")
    contains(read, f'"transactionalId":"{producer.id}"')
    logs = sorted(segment_directory("__transaction_state", partition).glob("*.log"))
    dumped = tool("kafka-dump-log", "--files", ",".join(map(str, logs)), "--transaction-log-decoder")
    ours = [line for line in dumped.splitlines() if f'"transactionalId":"{producer.id}"' in line]
    # Empty, ongoing, prepared and complete.
    equal([re.search(r'"transactionStatus":(\d)', line)[1] for line in ours], ["0", "1", "2", "4"])
