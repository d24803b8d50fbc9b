"""Committed offsets that move with a transaction: until it ends they are pending, and then they are there or never were."""

import checks
from calls import new_topic
from checks import equal
from golden import eventually
from test_groups import commit, coordinator, delete_group, new_member
from test_transactional_log import visible, write
from transactional import Transactional, describe, served, settle, until_settled

INVALID_REQUEST, OFFSET_METADATA_TOO_LARGE, INVALID_GROUP_ID, UNKNOWN_TOPIC_OR_PARTITION = 42, 12, 24, 3
ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID = 22, 25
INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING = 47, 48, 49
UNSTABLE_OFFSET_COMMIT, TRANSACTION_ABORTABLE = 88, 120
NOTHING = -1
PENDING = (UNSTABLE_OFFSET_COMMIT, NOTHING)


def scene(partitions=1):
    """A connection, a topic, and a group that has committed 3."""
    served().close()
    connection, group = coordinator()
    topic = new_topic(connection, partitions)
    equal(commit(connection, group, topic, 3), 0)
    return connection, topic, group


def offset(connection, group, topic, stable=True, version=9, partition=0):
    """(error, offset) of a partition. Only from version 7 on one may ask for what no transaction can change any more."""
    wanted = {"GroupId": group, "Topics": [{"Name": topic, "PartitionIndexes": [partition]}]}
    body = {"Groups": [wanted]} if version >= 8 else wanted
    body |= {"RequireStable": stable} if version >= 7 else {}
    answer = connection.call("OffsetFetch", version, body)
    group = answer["Groups"][0] if version >= 8 else answer
    equal(group.get("ErrorCode", 0), 0)
    found = group["Topics"][0]["Partitions"][0]
    return found["ErrorCode"], found["CommittedOffset"]


def is_stable(connection, group, topic, expected):
    eventually(f"{expected} is committed", lambda: offset(connection, group, topic) == (0, expected))


def test_offsets_are_pending_until_their_transaction_ends():
    for version in (1, 2):
        connection, topic, group = scene()
        with connection:
            producer = Transactional(connection, version).init()
            producer.send_offset(group, topic, 10)
            described = describe(producer)
            equal((described["TransactionState"], [t["Topic"] for t in described["Topics"]]), ("Ongoing", ["__consumer_offsets"]))
            for asked in range(1, 10):
                equal(offset(connection, group, topic, False, asked), (0, 3), f"v{asked}: as before the transaction")
            for asked in range(7, 10):
                equal(offset(connection, group, topic, True, asked), PENDING, f"v{asked}")
            producer.commit()
            is_stable(connection, group, topic, 10)
            equal(offset(connection, group, topic, False), (0, 10))
            producer.send_offset(group, topic, 20)
            equal(offset(connection, group, topic), PENDING)
            producer.abort()
            is_stable(connection, group, topic, 10)
            equal(settle(producer), "CompleteAbort")


def test_every_version_of_txn_offset_commit_commits():
    connection, topic, group = scene()
    with connection:
        for version in range(6):
            producer = Transactional(connection, 1).init()
            equal([producer.add_offsets(group, asked) for asked in range(5)], [0] * 5)
            equal(producer.commit_offset(group, topic, 100 + version, version=version), 0, f"v{version}")
            producer.commit()
            is_stable(connection, group, topic, 100 + version)


def test_a_group_that_was_not_added_is_added_by_the_broker_or_refused():
    connection, topic, group = scene()
    with connection:
        for version, code in ((0, 48), (1, 48), (2, 48), (3, 48), (4, TRANSACTION_ABORTABLE)):
            producer = Transactional(connection, 1).init()
            equal(producer.commit_offset(group, topic, 9, version=version), code, f"v{version}")
            equal(describe(producer)["TransactionState"], "Empty", f"v{version}")
            equal(producer.add_offsets(group), 0)
            producer.commit()
            settle(producer)
            equal(producer.commit_offset(group, topic, 9, version=version), code, f"v{version}: after the end")
        producer = Transactional(connection).init()
        equal(producer.commit_offset(group, "nowhere", 9), UNKNOWN_TOPIC_OR_PARTITION)
        equal(describe(producer)["TransactionState"], "Empty", "nothing to add")
        for who, code in (
            ({"ProducerEpoch": 1}, INVALID_PRODUCER_EPOCH),
            ({"ProducerEpoch": -1}, INVALID_PRODUCER_EPOCH),
            ({"ProducerId": producer.producer_id + 1}, INVALID_PRODUCER_ID_MAPPING),
            ({"TransactionalId": checks.unique("unknown")}, INVALID_PRODUCER_ID_MAPPING),
            ({"TransactionalId": ""}, INVALID_REQUEST),
        ):
            equal(producer.commit_offset(group, topic, 9, **who), code, f"{who}")
        equal(offset(connection, group, topic), (0, 3), "nothing is pending")
        equal(producer.commit_offset(group, topic, 9), 0)
        producer.commit()
        is_stable(connection, group, topic, 9)


def test_in_an_open_transaction_a_producers_epoch_is_still_looked_at():
    for version in (1, 2):
        connection, topic, group = scene(partitions=2)
        with connection:
            producer = Transactional(connection, version).init()
            producer.send_offset(group, topic, 9)
            for by in (1, -1):
                equal(producer.commit_offset(group, topic, 99, ProducerEpoch=producer.epoch + by), INVALID_PRODUCER_EPOCH)
            equal(producer.commit_offset(group, topic, 99, ProducerId=producer.producer_id + 1), INVALID_PRODUCER_ID_MAPPING)
            equal(producer.commit_offset("", topic, 99), INVALID_GROUP_ID)
            equal(producer.commit_offset(group, topic, 99, partition=7), UNKNOWN_TOPIC_OR_PARTITION)
            partitions = [
                {"PartitionIndex": 0, "CommittedOffset": 11, "CommittedMetadata": None},
                {"PartitionIndex": 1, "CommittedOffset": 11, "CommittedMetadata": "x" * 4097},
            ]
            body = producer.mine(GroupId=group, Topics=[{"Name": topic, "Partitions": partitions}])
            answer = connection.call("TxnOffsetCommit", 3 + version, body)["Topics"][0]["Partitions"]
            equal([p["ErrorCode"] for p in answer], [0, OFFSET_METADATA_TOO_LARGE])
            equal(offset(connection, group, topic, partition=1), (0, NOTHING), "beside a pending one")
            producer.commit()
            is_stable(connection, group, topic, 11)


def test_a_group_with_members_takes_offsets_of_its_members_and_of_who_names_none():
    connection, topic, group = scene()
    with connection:
        joined = new_member(connection, group)
        member, generation = joined["MemberId"], joined["GenerationId"]
        for version in (1, 2):
            producer = Transactional(connection, version).init()
            producer.send_offset(group, topic, 5)
            send = lambda **who: producer.commit_offset(group, topic, 6, **who)  # noqa: E731
            equal(send(MemberId=member, GenerationId=generation), 0)
            for wrong in (generation + 1, generation - 1):
                equal(send(MemberId=member, GenerationId=wrong), ILLEGAL_GENERATION)
            equal(send(MemberId="stranger", GenerationId=generation), UNKNOWN_MEMBER_ID)
            equal(send(MemberId=member, GenerationId=generation, GroupInstanceId="unknown"), UNKNOWN_MEMBER_ID)
            producer.commit()
            is_stable(connection, group, topic, 6)


def test_a_plain_commit_during_a_transaction_is_taken_and_the_last_one_written_holds():
    connection, topic, group = scene()
    with connection:
        producer = Transactional(connection).init()
        producer.send_offset(group, topic, 10)
        equal(commit(connection, group, topic, 4), 0)
        equal(offset(connection, group, topic, stable=False), (0, 4))
        equal(offset(connection, group, topic), PENDING)
        producer.abort()
        is_stable(connection, group, topic, 4)
        producer.send_offset(group, topic, 11)
        equal(commit(connection, group, topic, 5), 0)
        producer.commit()
        settle(producer)
        equal(offset(connection, group, topic), (0, 5), "it was written after the transaction's")


def test_of_two_transactions_for_one_group_the_last_one_written_holds():
    connection, topic, group = scene()
    with connection:
        first, second = Transactional(connection).init(), Transactional(connection).init()
        first.send_offset(group, topic, 10)
        second.send_offset(group, topic, 20)
        second.commit()
        settle(second)
        equal(offset(connection, group, topic, stable=False), (0, 20))
        equal(offset(connection, group, topic), PENDING)
        first.commit()
        settle(first)
        equal(offset(connection, group, topic), (0, 20))


def test_all_offsets_of_a_group_name_those_that_are_pending():
    connection, topic, group = scene(partitions=2)
    with connection:
        equal(commit(connection, group, topic, 3), 0)
        producer = Transactional(connection).init()
        producer.send_offset(group, topic, 10)
        for stable, expected in ((True, PENDING), (False, (0, 3))):
            answer = connection.call("OffsetFetch", 9, {"Groups": [{"GroupId": group, "Topics": None}], "RequireStable": stable})
            found = [(p["ErrorCode"], p["CommittedOffset"]) for t in answer["Groups"][0]["Topics"] for p in t["Partitions"]]
            equal(found, [expected])
        producer.commit()


def test_a_deleted_groups_pending_offsets_are_gone():
    connection, topic, group = scene()
    with connection:
        producer = Transactional(connection).init()
        producer.send_offset(group, topic, 10)
        equal(delete_group(connection, group), 0)
        producer.commit()
        settle(producer)
        equal(offset(connection, group, topic), (0, NOTHING))


def test_a_fenced_producers_offsets_are_not_committed():
    for version in (1, 2):
        connection, topic, group = scene()
        with connection:
            first = Transactional(connection, version).init()
            first.send_offset(group, topic, 10)
            second = Transactional(connection, version, first.id).init()
            is_stable(connection, group, topic, 3)
            equal(until_settled(lambda: first.commit_offset(group, topic, 11)), INVALID_PRODUCER_EPOCH)
            second.send_offset(group, topic, 12)
            second.commit()
            is_stable(connection, group, topic, 12)


def test_records_and_offsets_of_one_transaction_move_together():
    for version in (1, 2):
        connection, topic, group = scene(partitions=2)
        with connection:
            producer = Transactional(connection, version).init()
            for number, commits in ((0, True), (1, False), (2, True)):
                for partition in range(2):
                    write(producer, topic, b"%d" % number, partition=partition)
                producer.send_offset(group, topic, 10 + number)
                producer.finish(commits)
            settle(producer)
            is_stable(connection, group, topic, 12)
            equal(visible(connection, topic), [b"0", b"2"])
