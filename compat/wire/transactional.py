"""Transactional producers by hand: every request of one, in one line each, with its answer as it came or asked for again."""

import time

import checks
from batch import TRANSACTIONAL, batch
from calls import connect, produce_body
from checks import equal
from golden import ask_again, eventually

COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
CONCURRENT_TRANSACTIONS = 51
# The last versions of the protocol in which a producer adds its partitions by itself (`transaction.version` 1).
PRODUCE_1, TXN_OFFSET_COMMIT_1, END_TXN_1, ADD_PARTITIONS_1 = 11, 4, 4, 3
# The first of the one in which the broker does, and every end of a transaction gives a new epoch (2).
PRODUCE_2, TXN_OFFSET_COMMIT_2, END_TXN_2 = 12, 5, 5


def served():
    """A connection to a broker whose coordinator is there."""
    connection = connect()
    until_settled(lambda: connection.call("FindCoordinator", 6, {"KeyType": 1, "CoordinatorKeys": ["any"]})["Coordinators"][0])
    return connection


class Transactional:
    """A producer with a transactional id. `version` is that of the protocol, 1 or 2."""

    def __init__(self, connection, version=2, id=None, timeout_ms=60_000):
        self.connection, self.version = connection, version
        self.id = id or checks.unique("transactional")
        self.timeout_ms = timeout_ms
        self.producer_id, self.epoch = -1, -1
        self.sequences = {}

    def init(self, **fields):
        """As a client does: asked again until no transaction of a predecessor is in the way."""
        answer = until_settled(lambda: self.init_once(**fields))
        equal(answer["ErrorCode"], 0, "InitProducerId")
        self.take(answer)
        return self

    def init_once(self, version=5, **fields):
        body = {"TransactionalId": self.id, "TransactionTimeoutMs": self.timeout_ms, **fields}
        return self.connection.call("InitProducerId", version, body)

    def take(self, answer):
        """The id and the epoch that it goes on with. A new epoch begins at sequence 0."""
        if (self.producer_id, self.epoch) != (answer["ProducerId"], answer["ProducerEpoch"]):
            self.producer_id, self.epoch = answer["ProducerId"], answer["ProducerEpoch"]
            self.sequences = {}

    def mine(self, **fields):
        return {"TransactionalId": self.id, "ProducerId": self.producer_id, "ProducerEpoch": self.epoch, **fields}

    def add(self, topic, partitions=(0,), version=ADD_PARTITIONS_1, **fields):
        """The error of each partition."""
        mine = {f"V3AndBelow{name}": value for name, value in self.mine(Topics=[{"Name": topic, "Partitions": list(partitions)}], **fields).items()}
        answer = self.connection.call("AddPartitionsToTxn", version, mine)
        return [p["PartitionErrorCode"] for p in answer["ResultsByTopicV3AndBelow"][0]["ResultsByPartition"]]

    def add_offsets(self, group, version=3, **fields):
        return self.connection.call("AddOffsetsToTxn", version, self.mine(GroupId=group, **fields))["ErrorCode"]

    def batch(self, topic, values, partition=0, **fields):
        sequence = self.sequences.get((topic, partition), 0)
        own = {"attributes": TRANSACTIONAL, "producer_id": self.producer_id, "epoch": self.epoch, "sequence": sequence}
        return batch(values, **{**own, **fields})

    def produce(self, topic, values, partition=0, version=None, transactional_id=None, **fields):
        """The answer for the partition, asked once."""
        version = self._by_default(version, PRODUCE_1, PRODUCE_2)
        records = self.batch(topic, values, partition, **fields)
        body = produce_body(topic, records, partition, transactional_id=self.id if transactional_id is None else transactional_id)
        answer = self.connection.call("Produce", version, body)["Responses"][0]["PartitionResponses"][0]
        if answer["ErrorCode"] == 0 and "sequence" not in fields:
            self.sequences[topic, partition] = self.sequences.get((topic, partition), 0) + len(values)
        return answer

    def send(self, topic, values, partition=0, **fields):
        """As a client does: the partition is added, if that is the client's to do, and the records are written."""
        if self.version == 1:
            equal(until_settled(lambda: self.add(topic, [partition])), [0], "AddPartitionsToTxn")
        answer = until_settled(lambda: self.produce(topic, values, partition, **fields))
        equal(answer["ErrorCode"], 0, "Produce")
        return answer["BaseOffset"]

    def commit_offset(self, group, topic, offset, partition=0, version=None, **fields):
        """TxnOffsetCommit of one partition: its error."""
        version = self._by_default(version, TXN_OFFSET_COMMIT_1, TXN_OFFSET_COMMIT_2)
        partitions = [{"PartitionIndex": partition, "CommittedOffset": offset, "CommittedMetadata": ""}]
        body = self.mine(GroupId=group, Topics=[{"Name": topic, "Partitions": partitions}], **fields)
        return self.connection.call("TxnOffsetCommit", version, body)["Topics"][0]["Partitions"][0]["ErrorCode"]

    def send_offset(self, group, topic, offset, partition=0):
        if self.version == 1:
            equal(until_settled(lambda: self.add_offsets(group)), 0, "AddOffsetsToTxn")
        equal(until_settled(lambda: self.commit_offset(group, topic, offset, partition)), 0, "TxnOffsetCommit")

    def end(self, commit, version=None, **fields):
        """The answer to EndTxn, asked once."""
        version = self._by_default(version, END_TXN_1, END_TXN_2)
        return self.connection.call("EndTxn", version, self.mine(Committed=commit, **fields))

    def finish(self, commit):
        answer = until_settled(lambda: self.end(commit))
        equal(answer["ErrorCode"], 0, "EndTxn")
        if self.version == 2:
            self.take(answer)

    def commit(self):
        self.finish(True)

    def abort(self):
        self.finish(False)

    def _by_default(self, version, *by_protocol):
        return by_protocol[self.version - 1] if version is None else version


def until_settled(ask):
    """What a client asks again for: a coordinator that loads, and a transaction whose end is still being written."""
    deadline = time.monotonic() + 20
    while True:
        answer = ask()
        code = answer["ErrorCode"] if isinstance(answer, dict) else answer[0] if isinstance(answer, list) else answer
        again = (COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS)
        if code not in again or time.monotonic() > deadline:
            return answer
        ask_again(0.01)


def describe(producer):
    asked = {"TransactionalIds": [producer.id]}
    described = until_settled(lambda: producer.connection.call("DescribeTransactions", 0, asked)["TransactionStates"][0])
    equal(described["ErrorCode"], 0, "DescribeTransactions")
    return described


def settle(producer):
    """Waits until every marker of the transaction is written, and returns how it ended."""
    complete = lambda: (state := describe(producer)["TransactionState"]).startswith("Complete") and state  # noqa: E731
    return eventually("the transaction is complete", complete)
