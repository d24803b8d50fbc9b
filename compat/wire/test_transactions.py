"""Transactions at their coordinator: who may begin, add to and end one, in both versions of the protocol, and what is told of them."""

import time

import pytest
import checks
from calls import new_topic, produce_body, topic_id
from checks import equal
from differences import check
from golden import ask_again, eventually
from transactional import (
    CONCURRENT_TRANSACTIONS, END_TXN_1, END_TXN_2, PRODUCE_1, Transactional, describe, served, settle, until_settled,
)  # fmt: skip

UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST = 3, 42
OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH = 45, 47
INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, INVALID_TRANSACTION_TIMEOUT = 48, 49, 50
OPERATION_NOT_ATTEMPTED, PRODUCER_FENCED, TRANSACTIONAL_ID_NOT_FOUND = 55, 90, 105
TRANSACTION_ABORTABLE, INVALID_REGULAR_EXPRESSION = 120, 128
BOTH = (1, 2)


def fenced_by(version):
    """Fencing has a name of its own since AddPartitionsToTxn, AddOffsetsToTxn and EndTxn 2, and InitProducerId 4."""
    return INVALID_PRODUCER_EPOCH if version < 2 else PRODUCER_FENCED


# The coordinator, and who it knows.


def test_every_version_of_find_coordinator_finds_that_of_a_transactional_id():
    with served() as connection:
        for version in range(1, 7):
            if version < 4:
                found = [connection.call("FindCoordinator", version, {"KeyType": 1, "Key": "one"})]
            else:
                found = connection.call("FindCoordinator", version, {"KeyType": 1, "CoordinatorKeys": ["one", ""]})["Coordinators"]
            for each in found:
                equal((each["ErrorCode"], f"{each['Host']}:{each['Port']}"), (0, checks.bootstrap()), f"v{version}")


def test_every_version_of_init_producer_id_begins_at_epoch_0_and_counts_up():
    with served() as connection:
        for version in range(6):
            producer = Transactional(connection)
            answers = [until_settled(lambda: producer.init_once(version)) for _ in range(3)]
            equal([a["ErrorCode"] for a in answers], [0, 0, 0], f"v{version}")
            equal([a["ProducerEpoch"] for a in answers], [0, 1, 2], f"v{version}")
            equal(len({a["ProducerId"] for a in answers}), 1, f"v{version}")


def test_a_transactions_timeout_is_above_0_and_not_above_the_brokers_maximum():
    with served() as connection:
        for timeout_ms, code in ((0, 50), (-1, 50), (1, 0), (900_000, 0), (900_001, 50), (2**31 - 1, 50)):
            answer = until_settled(lambda: Transactional(connection, timeout_ms=timeout_ms).init_once())
            equal(answer["ErrorCode"], code, f"{timeout_ms} ms")
            equal(answer["ProducerId"] >= 0, code == 0)


def test_an_empty_transactional_id_and_half_an_identity_are_invalid():
    with served() as connection:
        producer = Transactional(connection)
        for id, epoch in ((5, -1), (-1, 5)):
            equal(producer.init_once(ProducerId=id, ProducerEpoch=epoch)["ErrorCode"], INVALID_REQUEST)
        producer.id = ""
        equal(producer.init_once()["ErrorCode"], INVALID_REQUEST)


def test_a_producer_that_names_its_epoch_gets_the_next_one_and_a_repeat_gets_the_same():
    with served() as connection:
        producer = Transactional(connection).init()
        for version in (3, 4, 5):
            mine = {"ProducerId": producer.producer_id, "ProducerEpoch": producer.epoch}
            for what in ("asked", "asked again with the old epoch"):
                answer = producer.init_once(version, **mine)
                expected = (0, producer.producer_id, producer.epoch + 1)
                equal((answer["ErrorCode"], answer["ProducerId"], answer["ProducerEpoch"]), expected, f"v{version}: {what}")
            producer.take(answer)
        id, epoch = producer.producer_id, producer.epoch
        for wrong in ((id, epoch - 2), (id, epoch + 1), (id + 1, epoch)):
            for version, code in ((3, INVALID_PRODUCER_EPOCH), (4, PRODUCER_FENCED), (5, PRODUCER_FENCED)):
                answer = producer.init_once(version, ProducerId=wrong[0], ProducerEpoch=wrong[1])
                equal(answer["ErrorCode"], code, f"v{version}: {wrong} of {(id, epoch)}")
        equal(describe(producer)["ProducerEpoch"], epoch, "nothing has changed")


def test_a_transactional_id_that_nobody_knows_may_come_with_an_old_identity():
    with served() as connection:
        answer = until_settled(lambda: Transactional(connection).init_once(ProducerId=10**9, ProducerEpoch=5))
        equal((answer["ErrorCode"], answer["ProducerEpoch"]), (0, 0))
        assert answer["ProducerId"] != 10**9


def test_a_second_producer_of_the_same_id_ends_the_transaction_of_the_first_and_fences_it():
    for version in BOTH:
        with served() as connection:
            topic = new_topic(connection)
            first = Transactional(connection, version).init()
            first.send(topic, [b"open"])
            second = Transactional(connection, version, first.id)
            # Kafka sends it away until the transaction is aborted; Duramen lets it wait for that.
            if (answer := second.init_once())["ErrorCode"] == 0:
                second.take(answer)
            else:
                equal(answer["ErrorCode"], CONCURRENT_TRANSACTIONS, "until it is aborted")
                ask_again()
                second.init()
            equal((second.producer_id, second.epoch), (first.producer_id, first.epoch + 2), "one epoch is that of the abort")
            equal(describe(second)["TransactionState"], "Empty")
            for asked in BOTH:
                equal(first.produce(topic, [b"late"], version=10 + asked)["ErrorCode"], INVALID_PRODUCER_EPOCH)
            for asked in range(4):
                equal(first.add(topic, version=asked), [fenced_by(asked)], f"AddPartitionsToTxn v{asked}")
                equal(first.add_offsets("group", asked), fenced_by(asked), f"AddOffsetsToTxn v{asked}")
            for asked in range(6):
                equal(first.end(True, asked)["ErrorCode"], fenced_by(asked), f"EndTxn v{asked}")
            mine = {"ProducerId": first.producer_id, "ProducerEpoch": first.epoch}
            for asked, code in ((3, INVALID_PRODUCER_EPOCH), (4, PRODUCER_FENCED), (5, PRODUCER_FENCED)):
                equal(first.init_once(asked, **mine)["ErrorCode"], code, f"InitProducerId v{asked}")
            second.send(topic, [b"goes on"])
            second.commit()


def test_a_producer_that_begins_anew_by_its_own_epoch_ends_its_open_transaction():
    for version in BOTH:
        with served() as connection:
            topic = new_topic(connection)
            producer = Transactional(connection, version).init()
            producer.send(topic, [b"open"])
            before = producer.epoch
            producer.init(ProducerId=producer.producer_id, ProducerEpoch=producer.epoch)
            equal(producer.epoch, before + 1)
            producer.send(topic, [b"goes on"])
            producer.commit()


# Protocol 1: the producer adds what it writes to.


def test_every_version_of_add_partitions_adds_and_may_be_repeated():
    with served() as connection:
        topic = new_topic(connection, partitions=3)
        producer = Transactional(connection, 1).init()
        equal(describe(producer)["TransactionState"], "Empty")
        for version in range(4):
            equal(producer.add(topic, [1], version), [0], f"v{version}")
        equal(producer.add(topic, [2, 1]), [0, 0])
        described = describe(producer)
        equal((described["TransactionState"], described["TransactionTimeoutMs"]), ("Ongoing", 60_000))
        equal([(t["Topic"], sorted(t["Partitions"])) for t in described["Topics"]], [(topic, [1, 2])])
        assert abs(described["TransactionStartTimeMs"] - time.time() * 1000) < 60_000


def test_partitions_are_added_all_or_none():
    with served() as connection:
        topic = new_topic(connection)
        producer = Transactional(connection, 1).init()
        equal(producer.add("nowhere"), [UNKNOWN_TOPIC_OR_PARTITION])
        body = {"V3AndBelow" + name: value for name, value in producer.mine().items()}
        body["V3AndBelowTopics"] = [{"Name": topic, "Partitions": [0, 7]}, {"Name": "nowhere", "Partitions": [0]}]
        answer = connection.call("AddPartitionsToTxn", 3, body)["ResultsByTopicV3AndBelow"]
        got = {(t["Name"], p["PartitionIndex"]): p["PartitionErrorCode"] for t in answer for p in t["ResultsByPartition"]}
        equal(got, {(topic, 0): OPERATION_NOT_ATTEMPTED, (topic, 7): 3, ("nowhere", 0): 3})
        equal(describe(producer)["TransactionState"], "Empty")


def test_who_is_not_the_producer_adds_and_ends_nothing():
    with served() as connection:
        topic = new_topic(connection)
        producer = Transactional(connection, 1).init()
        producer.send(topic, [b"open"])
        strangers = [
            ({"ProducerId": producer.producer_id + 1}, INVALID_PRODUCER_ID_MAPPING),
            ({"TransactionalId": checks.unique("unknown")}, INVALID_PRODUCER_ID_MAPPING),
            ({"TransactionalId": ""}, INVALID_REQUEST),
        ]
        for version in range(6):
            wrong_epochs = [({"ProducerEpoch": producer.epoch + by}, fenced_by(version)) for by in (1, -1)]
            for who, code in strangers + wrong_epochs:
                equal(producer.end(True, version, **who)["ErrorCode"], code, f"EndTxn v{version} {who}")
                if version < 4:
                    equal(producer.add(topic, version=version, **who), [code], f"AddPartitionsToTxn v{version} {who}")
                if version < 5:
                    equal(producer.add_offsets("group", version, **who), code, f"AddOffsetsToTxn v{version} {who}")
        equal(describe(producer)["TransactionState"], "Ongoing")
        producer.commit()


def test_what_was_not_added_is_not_written():
    with served() as connection:
        topic = new_topic(connection, partitions=2)
        for version in range(3, 12):
            producer = Transactional(connection, 1).init()
            # The older error is fatal to a client, the newer one asks it to abort.
            code = TRANSACTION_ABORTABLE if version >= 11 else INVALID_TXN_STATE
            equal(producer.produce(topic, [b"never added"], version=version)["ErrorCode"], code, f"v{version}")
            equal(describe(producer)["TransactionState"], "Empty", f"v{version}")
            equal(producer.add(topic), [0])
            equal(producer.produce(topic, [b"added"], version=version)["ErrorCode"], 0, f"v{version}")
            equal(producer.produce(topic, [b"never added"], 1, version=version)["ErrorCode"], code, f"v{version}: another partition")
            producer.commit()
            settle(producer)
            equal(producer.produce(topic, [b"too late"], version=version)["ErrorCode"], code, f"v{version}: after the end")
            equal(producer.add(topic), [0])
            equal(producer.produce(topic, [b"again"], version=version)["ErrorCode"], 0, f"v{version}: the next transaction")
            producer.abort()


def test_a_batch_of_another_epoch_or_producer_is_not_written():
    for version, begin in ((PRODUCE_1, 1), (12, 2)):
        with served() as connection:
            topic = new_topic(connection, partitions=2)
            producer = Transactional(connection, begin).init()
            producer.send(topic, [b"open"])
            for partition, what in ((0, "in the transaction"), (1, "not in it")):
                for by in (1, -1):
                    fields = {"epoch": producer.epoch + by, "sequence": 1 - partition}
                    answer = producer.produce(topic, [b"x"], partition, version, **fields)
                    equal(answer["ErrorCode"], INVALID_PRODUCER_EPOCH, f"v{version}: epoch {by:+} of a partition {what}")
            answer = producer.produce(topic, [b"x"], 1, version, producer_id=producer.producer_id + 1, sequence=0)
            equal(answer["ErrorCode"], INVALID_PRODUCER_ID_MAPPING, f"v{version}: another producer")
            producer.send(topic, [b"more"])
            producer.commit()


def test_a_batch_that_is_not_transactional_has_no_place_in_a_transaction():
    for version, begin in ((PRODUCE_1, 1), (12, 2)):
        with served() as connection:
            topic = new_topic(connection, partitions=2)
            producer = Transactional(connection, begin).init()
            producer.send(topic, [b"open"])
            equal(producer.produce(topic, [b"plain"], version=version, attributes=0)["ErrorCode"], INVALID_TXN_STATE, f"v{version}")
            # The transactional id of the request promises nothing.
            equal(producer.produce(topic, [b"plain"], 1, version=version, attributes=0)["ErrorCode"], 0, f"v{version}")
            equal([t["Partitions"] for t in describe(producer)["Topics"]], [[0]])
            producer.commit()


def test_sequences_count_inside_a_transaction_and_on_in_the_next_one():
    with served() as connection:
        topic = new_topic(connection)
        producer = Transactional(connection, 1).init()
        producer.send(topic, [b"1", b"2"])
        equal(producer.produce(topic, [b"gap"], sequence=5)["ErrorCode"], OUT_OF_ORDER_SEQUENCE_NUMBER)
        repeated = producer.produce(topic, [b"1", b"2"], sequence=0)
        equal((repeated["ErrorCode"], repeated["BaseOffset"]), (0, 0), "a repeat is told where it is")
        producer.commit()
        equal(producer.send(topic, [b"3"]), 3, "after the marker")
        equal(producer.produce(topic, [b"4"], sequence=0)["ErrorCode"], OUT_OF_ORDER_SEQUENCE_NUMBER)
        producer.abort()


def test_an_end_may_be_repeated_but_not_changed():
    for version in range(5):
        with served() as connection:
            topic = new_topic(connection)
            producer = Transactional(connection, 1).init()
            for commit in (True, False):
                equal(producer.end(commit, version)["ErrorCode"], INVALID_TXN_STATE, f"v{version}: nothing has begun")
            for commit in (True, False):
                producer.send(topic, [b"x"])
                equal(producer.end(commit, version)["ErrorCode"], 0, f"v{version}")
                equal(settle(producer), "CompleteCommit" if commit else "CompleteAbort")
                equal(producer.end(commit, version)["ErrorCode"], 0, f"v{version}: once more")
                equal(producer.end(not commit, version)["ErrorCode"], INVALID_TXN_STATE, f"v{version}: otherwise")
            described = describe(producer)
            equal((described["ProducerEpoch"], described["Topics"]), (0, []))


def test_a_transaction_that_wrote_nothing_ends_like_another():
    with served() as connection:
        topic = new_topic(connection, partitions=2)
        for commit in (True, False):
            producer = Transactional(connection, 1).init()
            equal(producer.add(topic, [0, 1]), [0, 0])
            producer.finish(commit)
            equal(settle(producer), "CompleteCommit" if commit else "CompleteAbort")


# Protocol 2: the broker adds what is written to, and each end begins a new epoch.


def test_a_first_batch_begins_the_transaction_and_adds_its_partition():
    with served() as connection:
        topic = new_topic(connection, partitions=2)
        by_id = topic_id(connection, topic)
        producer = Transactional(connection).init()
        for partition, version in ((0, 12), (1, 13)):
            named = by_id if version >= 13 else topic
            equal(producer.produce(named, [b"x"], partition, version)["ErrorCode"], 0, f"v{version}")
        described = describe(producer)
        equal(described["TransactionState"], "Ongoing")
        equal([(t["Topic"], sorted(t["Partitions"])) for t in described["Topics"]], [(topic, [0, 1])])
        producer.commit()


def test_a_batch_for_nowhere_begins_nothing():
    with served() as connection:
        topic = new_topic(connection)
        producer = Transactional(connection).init()
        for name, partition in (("nowhere", 0), (topic, 7)):
            equal(producer.produce(name, [b"x"], partition)["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION)
        stranger = checks.unique("unknown")
        equal(producer.produce(topic, [b"x"], transactional_id=stranger)["ErrorCode"], INVALID_PRODUCER_ID_MAPPING)
        equal(producer.produce(topic, [b"x"], transactional_id="")["ErrorCode"], INVALID_REQUEST)
        equal(producer.produce(topic, [b"x"], version=PRODUCE_1)["ErrorCode"], TRANSACTION_ABORTABLE, "an older request adds nothing")
        equal(describe(producer)["TransactionState"], "Empty")


def test_the_end_gives_the_next_epoch_and_its_repeat_the_same():
    with served() as connection:
        topic = new_topic(connection)
        producer = Transactional(connection).init()
        for commit in (True, False):
            producer.send(topic, [b"x"])
            ended = producer.end(commit)
            expected = (0, producer.producer_id, producer.epoch + 1)
            equal((ended["ErrorCode"], ended["ProducerId"], ended["ProducerEpoch"]), expected)
            equal(settle(producer), "CompleteCommit" if commit else "CompleteAbort")
            again = producer.end(commit)
            equal((again["ErrorCode"], again["ProducerId"], again["ProducerEpoch"]), expected, "asked again with the old epoch")
            other = producer.end(not commit)["ErrorCode"]
            if commit:
                equal(other, INVALID_TXN_STATE)
            else:
                check(other, "commit of what was aborted")
            old = producer.epoch
            equal(producer.produce(topic, [b"old"], sequence=1)["ErrorCode"], INVALID_PRODUCER_EPOCH)
            producer.take(ended)
            equal(producer.produce(topic, [b"new"], sequence=1)["ErrorCode"], OUT_OF_ORDER_SEQUENCE_NUMBER, "a new epoch begins at 0")
            producer.send(topic, [b"new"])
            for version in (END_TXN_1, END_TXN_2):
                equal(producer.end(commit, version, ProducerEpoch=old)["ErrorCode"], PRODUCER_FENCED, "the next one is open")
            producer.commit()


def test_nothing_can_be_committed_but_it_can_be_aborted_for_a_new_epoch():
    with served() as connection:
        topic = new_topic(connection)
        producer = Transactional(connection).init()
        equal(producer.end(True)["ErrorCode"], INVALID_TXN_STATE)
        for epoch in (1, 2):
            for what in ("aborted", "repeated"):
                ended = until_settled(lambda: producer.end(False))
                equal((ended["ErrorCode"], ended["ProducerEpoch"]), (0, epoch), what)
            producer.take(ended)
            equal(settle(producer), "CompleteAbort")
        producer.send(topic, [b"x"])
        producer.commit()
        equal(settle(producer), "CompleteCommit")
        producer.send(topic, [b"y"])
        producer.commit()
        check(producer.end(True)["ErrorCode"], "commit before its records")
        producer.send(topic, [b"z"])
        producer.commit()
        nothing = until_settled(lambda: producer.end(True)["ErrorCode"])
        equal(nothing, INVALID_TXN_STATE, "with the epoch that the commit gave")
        ended = producer.end(False)
        equal((ended["ErrorCode"], ended["ProducerEpoch"]), (0, producer.epoch + 1))


def test_a_transaction_begun_by_the_broker_may_be_ended_by_an_older_request():
    with served() as connection:
        topic = new_topic(connection)
        producer = Transactional(connection).init()
        for commit in (True, False):
            producer.send(topic, [b"x"])
            equal(until_settled(lambda: producer.end(commit, END_TXN_1))["ErrorCode"], 0)
            equal(settle(producer), "CompleteCommit" if commit else "CompleteAbort")
            equal(describe(producer)["ProducerEpoch"], 0, "no new epoch, and the sequences count on")


def test_a_refused_batch_leaves_the_transaction_open():
    with served() as connection:
        topic = new_topic(connection, partitions=2)
        producer = Transactional(connection).init()
        equal(producer.produce(topic, [b"x"], sequence=3)["ErrorCode"], OUT_OF_ORDER_SEQUENCE_NUMBER)
        damaged = producer.batch(topic, [b"x"], 1)[:-1] + b"?"
        body = produce_body(topic, damaged, 1, transactional_id=producer.id)
        equal(connection.call("Produce", 12, body)["Responses"][0]["PartitionResponses"][0]["ErrorCode"], 2)
        producer.send(topic, [b"right"])
        producer.commit()


# As the brokers ask each other, which a client may do where nobody is authorized.


def add_by_broker(connection, producer, topics, version=5, verify_only=False, **who):
    asked = producer.mine(Topics=[{"Name": name, "Partitions": partitions} for name, partitions in topics.items()], VerifyOnly=verify_only)
    answer = connection.call("AddPartitionsToTxn", version, {"Transactions": [asked | who]})
    equal(answer["ErrorCode"], 0)
    [transaction] = answer["ResultsByTransaction"]
    return {(t["Name"], p["PartitionIndex"]): p["PartitionErrorCode"] for t in transaction["TopicResults"] for p in t["ResultsByPartition"]}


def test_a_broker_may_ask_whether_a_partition_is_in_a_transaction():
    with served() as connection:
        topic = new_topic(connection, partitions=2)
        producer = Transactional(connection, 1).init()
        equal(producer.add(topic), [0])
        for version in (4, 5):
            got = add_by_broker(connection, producer, {topic: [0, 1]}, version, verify_only=True)
            equal(got, {(topic, 0): 0, (topic, 1): TRANSACTION_ABORTABLE}, f"v{version}")
            for verify_only in (True, False):
                for who, code in (
                    ({"ProducerEpoch": producer.epoch + 1}, PRODUCER_FENCED),
                    ({"ProducerEpoch": producer.epoch - 1}, PRODUCER_FENCED),
                    ({"ProducerId": producer.producer_id + 1}, INVALID_PRODUCER_ID_MAPPING),
                    ({"TransactionalId": checks.unique("unknown")}, INVALID_PRODUCER_ID_MAPPING),
                    ({"TransactionalId": ""}, INVALID_REQUEST),
                ):
                    got = add_by_broker(connection, producer, {topic: [0]}, version, verify_only, **who)
                    equal(got, {(topic, 0): code}, f"v{version} {who}")
        equal(add_by_broker(connection, producer, {topic: [1]}), {(topic, 1): 0})
        equal([sorted(t["Partitions"]) for t in describe(producer)["Topics"]], [[0, 1]])
        producer.commit()
        settle(producer)
        got = add_by_broker(connection, producer, {topic: [0]}, verify_only=True)
        equal(got, {(topic, 0): TRANSACTION_ABORTABLE}, "it has ended")


# What is told of transactions.


def listed(connection, ours, version=2, **filters):
    """Our ids among those listed, and the filters that were not understood."""
    answer = connection.call("ListTransactions", version, filters)
    equal(answer["ErrorCode"], 0)
    states = {t["TransactionalId"]: t["TransactionState"] for t in answer["TransactionStates"]}
    return sorted(states[each.id] for each in ours if each.id in states), answer["UnknownStateFilters"]


def test_transactions_are_listed_by_state_producer_age_and_pattern():
    with served() as connection:
        topic = new_topic(connection)
        name = checks.unique("listed")
        ongoing, done, empty = ours = [Transactional(connection, id=f"{name}-{number}").init() for number in range(3)]
        ongoing.send(topic, [b"x"])
        done.send(topic, [b"x"])
        done.commit()
        settle(done)
        for version in range(3):
            equal(listed(connection, ours, version), (["CompleteCommit", "Empty", "Ongoing"], []), f"v{version}")
            equal(listed(connection, ours, version, StateFilters=["Ongoing"]), (["Ongoing"], []), f"v{version}")
            equal(listed(connection, ours, version, StateFilters=["Ongoing", "nonsense"]), (["Ongoing"], ["nonsense"]), f"v{version}")
            equal(listed(connection, ours, version, StateFilters=["nonsense"]), ([], ["nonsense"]), f"v{version}")
            equal(listed(connection, ours, version, ProducerIdFilters=[ongoing.producer_id, 10**15]), (["Ongoing"], []), f"v{version}")
            if version >= 1:
                equal(listed(connection, [ongoing], version, DurationFilter=100_000), ([], []), f"v{version}: not that old")
                equal(listed(connection, ours, version, DurationFilter=-1)[0].count("Ongoing"), 1, f"v{version}")
        for pattern, states in (
            (f"{name}-.*", ["CompleteCommit", "Empty", "Ongoing"]),
            (f"{name}-0", ["Ongoing"]),
            (name, []),
            ("", ["CompleteCommit", "Empty", "Ongoing"]),
            (None, ["CompleteCommit", "Empty", "Ongoing"]),
        ):
            equal(listed(connection, ours, TransactionalIdPattern=pattern), (states, []), f"{pattern}")
        equal(listed(connection, ours, TransactionalIdPattern=f"{name}-.*", StateFilters=["Empty"]), (["Empty"], []))
        answer = connection.call("ListTransactions", 2, {"TransactionalIdPattern": "*["})
        equal((answer["ErrorCode"], answer["TransactionStates"]), (INVALID_REGULAR_EXPRESSION, []))
        ongoing.abort()


def test_what_is_described_and_what_is_not_there():
    with served() as connection:
        producer = Transactional(connection, timeout_ms=12_345).init()
        unknown = checks.unique("unknown")
        answers = connection.call("DescribeTransactions", 0, {"TransactionalIds": [unknown, producer.id, ""]})["TransactionStates"]
        got = {a["TransactionalId"]: (a["ErrorCode"], a["TransactionState"], a["TransactionTimeoutMs"], a["Topics"]) for a in answers}
        expected = {unknown: (TRANSACTIONAL_ID_NOT_FOUND, "", 0, []), producer.id: (0, "Empty", 12_345, []), "": (INVALID_REQUEST, "", 0, [])}
        equal(got, expected)
        equal(describe(producer)["TransactionStartTimeMs"], -1)


@pytest.mark.waits
def test_a_transaction_that_takes_too_long_is_aborted():
    """Kafka looks every ten seconds."""
    with served() as connection:
        topic = new_topic(connection)
        slow = {version: Transactional(connection, version, timeout_ms=200).init() for version in BOTH}
        for version, producer in slow.items():
            producer.send(topic, [b"slow"])
        for version, producer in slow.items():
            eventually("it is aborted", lambda: describe(producer)["TransactionState"] == "CompleteAbort", timeout_s=25)
            equal(describe(producer)["ProducerEpoch"], producer.epoch + 1)
            equal(producer.produce(topic, [b"late"])["ErrorCode"], INVALID_PRODUCER_EPOCH)
            equal(producer.add_offsets("group"), PRODUCER_FENCED)
        for asked in range(5):
            for commit in (True, False):
                equal(slow[1].end(commit, asked)["ErrorCode"], fenced_by(asked), f"EndTxn v{asked}")
        # A client of protocol 2 takes it for the answer that it missed.
        check(slow[2].end(True)["ErrorCode"], "commit of what was aborted")
        ended = slow[2].end(False)
        equal((ended["ErrorCode"], ended["ProducerEpoch"]), (0, slow[2].epoch + 1))
        for version, producer in slow.items():
            before = producer.epoch
            producer.init(ProducerId=producer.producer_id, ProducerEpoch=producer.epoch)
            equal(producer.epoch, before + 1, "the epoch that the abort made is given to who has the one before")
            producer.send(topic, [b"goes on"])
            producer.commit()
