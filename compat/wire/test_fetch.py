"""Fetch: what is returned, when it waits, and incremental sessions. ListOffsets and OffsetForLeaderEpoch."""

import threading
import time

import checks
import schema
from batch import batch, batches
from calls import (
    EARLIEST, FETCH_BY_NAME, LATEST, MAX_TIMESTAMP, connect, create_topic, delete_records, describe_topic, fetch, fetch_body, list_offset, new_topic,
    produce, topic_id, wait_for_leaders,
)  # fmt: skip
from checks import equal
from differences import check
from golden import ask_again

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID = 1, 3, 100
FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH = 70, 71
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH = 74, 75
NOWHERE = "12345678-1234-1234-1234-123456789abc"


def fill(connection, topic, count, partition=0, size=1):
    for number in range(count):
        equal(produce(connection, topic, batch([b"%0*d" % (size, number)]), partition)["ErrorCode"], 0)


def test_every_version_of_fetch_returns_the_same_records():
    with connect() as connection:
        topic = new_topic(connection)
        by_id = topic_id(connection, topic)
        fill(connection, topic, 3)
        for version in schema.valid_versions("Fetch"):
            answer = fetch(connection, by_id if version >= 13 else topic, version=version)
            equal((answer["ErrorCode"], answer["HighWatermark"], answer["LastStableOffset"]), (0, 3, 3), f"v{version}")
            equal([b.base_offset for b in batches(answer["Records"])], [0, 1, 2], f"v{version}")
            if version >= 5:
                equal(answer["LogStartOffset"], 0)
            if version >= 11:
                equal(answer["PreferredReadReplica"], -1)


def test_the_aborted_list_is_null_when_uncommitted_is_read_and_empty_when_committed_is():
    with connect() as connection:
        topic = new_topic(connection)
        fill(connection, topic, 1)
        equal(fetch(connection, topic, IsolationLevel=0)["AbortedTransactions"], None)
        committed = fetch(connection, topic, IsolationLevel=1)
        equal((committed["AbortedTransactions"], len(batches(committed["Records"]))), ([], 1))


def test_the_first_batch_comes_whole_even_above_every_maximum():
    with connect() as connection:
        topic = new_topic(connection)
        sent = batch([b"x" * 5000])
        produce(connection, topic, sent)
        produce(connection, topic, sent)
        for limits in [{"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 1, "partition_max_bytes": 1}, {"max_bytes": 0}]:
            answer = fetch(connection, topic, **limits)
            equal([(b.base_offset, len(b.bytes)) for b in batches(answer["Records"])], [(0, len(sent))], f"{limits}")


def test_a_fetch_may_not_return_more_than_its_maximum_after_the_first_batch():
    with connect() as connection:
        topic = new_topic(connection)
        fill(connection, topic, 10, size=1000)
        one = len(batch([b"%01000d" % 0]))
        for limits in [{"max_bytes": 3 * one + 10}, {"partition_max_bytes": 3 * one + 10}]:
            records = fetch(connection, topic, **limits)["Records"]
            equal(len(batches(records)), 3, f"{limits}")
            assert len(records) <= 3 * one + 10


def test_the_maximum_of_a_response_leaves_later_partitions_empty_not_wrong():
    with connect() as connection:
        topic = new_topic(connection, partitions=3)
        for partition in range(3):
            fill(connection, topic, 1, partition, size=2000)
        wanted = [(topic, partition, 0) for partition in (2, 0, 1)]
        answer = connection.call("Fetch", FETCH_BY_NAME, fetch_body(wanted, max_bytes=100))
        got = [(p["PartitionIndex"], p["ErrorCode"], len(batches(p["Records"]))) for p in answer["Responses"][0]["Partitions"]]
        equal(got, [(2, 0, 1), (0, 0, 0), (1, 0, 0)], "in the order of the request, data for the first")


def test_a_partition_that_is_named_twice_is_answered_once_by_the_last_word():
    with connect() as connection:
        topic, other = (new_topic(connection) for _ in range(2))
        fill(connection, topic, 3)
        fill(connection, other, 1)
        for epoch in (-1, 0):
            body = fetch_body([(topic, 0, 9), (other, 0, 0), (topic, 0, 2)], SessionEpoch=epoch)
            answer = connection.call("Fetch", FETCH_BY_NAME, body)["Responses"]
            told = [(t["Topic"], p["ErrorCode"], [b.base_offset for b in batches(p["Records"])]) for t in answer for p in t["Partitions"]]
            equal(told, [(topic, 0, [2]), (other, 0, [0])], f"epoch {epoch}")


def test_an_offset_inside_a_batch_returns_that_batch_whole():
    with connect() as connection:
        topic = new_topic(connection)
        produce(connection, topic, batch([b"a", b"b", b"c"]))
        produce(connection, topic, batch([b"d", b"e"]))
        for offset, base_offsets in [(0, [0, 3]), (1, [0, 3]), (2, [0, 3]), (3, [3]), (4, [3])]:
            equal([b.base_offset for b in batches(fetch(connection, topic, offset)["Records"])], base_offsets, f"offset {offset}")


def test_an_offset_at_the_end_is_empty_and_above_the_end_out_of_range():
    with connect() as connection:
        topic = new_topic(connection)
        equal((fetch(connection, topic, 0)["ErrorCode"], fetch(connection, topic, 0)["Records"]), (0, b""), "an empty log")
        fill(connection, topic, 2)
        at_end = fetch(connection, topic, 2)
        equal((at_end["ErrorCode"], at_end["HighWatermark"], at_end["Records"]), (0, 2, b""))
        for offset in (3, 10**12, -1, -2):
            above = fetch(connection, topic, offset)
            equal((above["ErrorCode"], above["Records"] or b""), (OFFSET_OUT_OF_RANGE, b""), f"offset {offset}")
            equal((above["HighWatermark"], above["LastStableOffset"], above["LogStartOffset"]), (-1, -1, -1))


def test_below_the_log_start_is_out_of_range():
    with connect() as connection:
        topic = new_topic(connection)
        fill(connection, topic, 5)
        equal(delete_records(connection, topic, 3)["LowWatermark"], 3)
        equal(fetch(connection, topic, 2)["ErrorCode"], OFFSET_OUT_OF_RANGE)
        answer = fetch(connection, topic, 3)
        equal((answer["ErrorCode"], answer["LogStartOffset"], answer["HighWatermark"]), (0, 3, 5))


def test_unknown_topics_partitions_and_ids_are_said_by_code():
    with connect() as connection:
        topic = new_topic(connection)
        by_id = topic_id(connection, topic)
        equal(fetch(connection, checks.unique("nowhere"))["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION)
        for partition in (1, -1, 2**31 - 1):
            equal(fetch(connection, topic, partition=partition)["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION)
            equal(fetch(connection, by_id, partition=partition)["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION)
        for version in (13, 18):
            answer = fetch(connection, NOWHERE, version=version)
            equal((answer["ErrorCode"], answer["HighWatermark"]), (UNKNOWN_TOPIC_ID, -1), f"v{version}")


def test_a_wrong_leader_epoch_is_fenced_or_unknown():
    with connect() as connection:
        topic = new_topic(connection)
        fill(connection, topic, 1)
        epoch = describe_topic(connection, topic)["Partitions"][0]["LeaderEpoch"]
        for asked, error in [(epoch, 0), (-1, 0), (epoch + 1, UNKNOWN_LEADER_EPOCH)] + [(epoch - 1, FENCED_LEADER_EPOCH)] * (epoch > 0):
            body = fetch_body([(topic, 0, 0, {"CurrentLeaderEpoch": asked})])
            answer = connection.call("Fetch", FETCH_BY_NAME, body)["Responses"][0]["Partitions"][0]
            equal(answer["ErrorCode"], error, f"epoch {asked} where {epoch} is")


# Waiting.


def test_an_empty_fetch_waits_its_time_and_no_longer():
    with connect() as connection:
        topic = new_topic(connection)
        for wait_ms in (0, 300, 1000):
            started = time.monotonic()
            equal(fetch(connection, topic, max_wait_ms=wait_ms)["Records"], b"")
            took_ms = (time.monotonic() - started) * 1000
            assert wait_ms - 5 <= took_ms <= wait_ms + 400, f"asked to wait {wait_ms} ms, took {took_ms:.0f} ms"


def test_a_parked_fetch_wakes_promptly_on_produce():
    with connect() as connection, connect() as writer:
        topic = new_topic(connection)
        for round_number in range(5):
            answers = []
            reader = threading.Thread(target=lambda at=round_number: answers.append((fetch(connection, topic, at, max_wait_ms=15_000), time.monotonic())))
            reader.start()
            time.sleep(0.2)
            assert reader.is_alive(), "the fetch did not wait"
            produce(writer, topic, batch([b"v"]))
            acknowledged = time.monotonic()
            reader.join()
            answer, answered = answers[0]
            equal([b.base_offset for b in batches(answer["Records"])], [round_number])
            assert answered - acknowledged < 0.25, f"woke {answered - acknowledged:.2f} s after the acknowledgement"


def test_a_parked_fetch_of_many_partitions_wakes_for_the_one_that_got_data():
    with connect() as connection, connect() as writer:
        topic = new_topic(connection, partitions=50)
        sent = connection.send("Fetch", FETCH_BY_NAME, fetch_body([(topic, p, 0) for p in range(50)], max_wait_ms=15_000))
        time.sleep(0.2)
        produce(writer, topic, batch([b"v"]), 33)
        started = time.monotonic()
        answer = connection.receive("Fetch", FETCH_BY_NAME, sent)
        assert time.monotonic() - started < 0.5
        equal([p["PartitionIndex"] for p in answer["Responses"][0]["Partitions"] if p["Records"]], [33])
        equal(len(answer["Responses"][0]["Partitions"]), 50, "outside a session every partition is answered")


def test_min_bytes_holds_a_fetch_until_there_are_enough():
    with connect() as connection, connect() as writer:
        topic = new_topic(connection)
        one = len(batch([b"x" * 1000]))
        sent = connection.send("Fetch", FETCH_BY_NAME, fetch_body([(topic, 0, 0)], max_wait_ms=15_000, min_bytes=3 * one))
        for _ in range(3):
            time.sleep(0.15)
            produce(writer, topic, batch([b"x" * 1000]))
        answer = connection.receive("Fetch", FETCH_BY_NAME, sent)["Responses"][0]["Partitions"][0]
        equal(len(batches(answer["Records"])), 3)


def test_min_bytes_above_max_bytes_are_not_waited_for():
    with connect() as connection:
        topic = new_topic(connection)
        equal(produce(connection, topic, batch([b"x" * 100]))["ErrorCode"], 0)
        began = time.monotonic()
        records = fetch(connection, topic, max_wait_ms=10_000, min_bytes=1_000_000, max_bytes=50)["Records"]
        equal(len(batches(records)), 1)
        assert time.monotonic() - began < 5, "it waited"


def test_min_bytes_not_reached_returns_what_is_there_at_the_timeout():
    with connect() as connection:
        topic = new_topic(connection)
        fill(connection, topic, 1)
        started = time.monotonic()
        equal(len(batches(fetch(connection, topic, max_wait_ms=400, min_bytes=10_000)["Records"])), 1)
        assert 0.39 < time.monotonic() - started < 1


def test_an_unknown_partition_is_answered_beside_the_ones_that_wait():
    """Kafka lets the fetch wait its time for the partitions that exist; to answer at once is as good."""
    with connect() as connection:
        topic = new_topic(connection)
        started = time.monotonic()
        answer = connection.call("Fetch", FETCH_BY_NAME, fetch_body([(topic, 0, 0), (topic, 7, 0)], max_wait_ms=500))
        assert time.monotonic() - started < 1.5
        got = {p["PartitionIndex"]: p["ErrorCode"] for p in answer["Responses"][0]["Partitions"]}
        equal(got, {0: 0, 7: UNKNOWN_TOPIC_OR_PARTITION})


def test_deleting_a_topic_answers_a_fetch_that_waits_for_it():
    with connect() as connection, connect() as admin:
        topic = new_topic(connection)
        sent = connection.send("Fetch", FETCH_BY_NAME, fetch_body([(topic, 0, 0)], max_wait_ms=15_000))
        time.sleep(0.2)
        admin.call("DeleteTopics", 6, {"Topics": [{"Name": topic}], "TimeoutMs": 5000})
        started = time.monotonic()
        answer = connection.receive("Fetch", FETCH_BY_NAME, sent)
        assert time.monotonic() - started < 2
        equal(answer["Responses"][0]["Partitions"][0]["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION)


# Incremental fetch sessions (KIP-227).


class Session:
    """A fetch session as a client keeps it: the id given by the broker, and an epoch that grows."""

    def __init__(self, connection, partitions, version=FETCH_BY_NAME):
        self.connection, self.version = connection, version
        answer = connection.call("Fetch", version, fetch_body(partitions, SessionId=0, SessionEpoch=0))
        equal(answer["ErrorCode"], 0)
        self.id, self.epoch, self.first = answer["SessionId"], 1, self.partitions_of(answer)
        assert self.id != 0, "the broker gave no session"

    def fetch(self, partitions=(), forgotten=(), **fields):
        answer = self.connection.call("Fetch", self.version, self.body(partitions, forgotten, **fields))
        equal((answer["ErrorCode"], answer["SessionId"]), (0, self.id))
        self.epoch += 1
        return self.partitions_of(answer)

    def body(self, partitions=(), forgotten=(), **fields):
        return fetch_body(partitions, SessionId=self.id, SessionEpoch=self.epoch, ForgottenTopicsData=list(forgotten), **fields)

    @staticmethod
    def partitions_of(answer):
        return {
            p["PartitionIndex"]: (p["ErrorCode"], [b.base_offset for b in batches(p["Records"] or b"")])
            for topic in answer["Responses"]
            for p in topic["Partitions"]
        }


def test_a_session_answers_every_partition_first_and_then_only_those_that_changed():
    with connect() as connection:
        topic = new_topic(connection, partitions=3)
        fill(connection, topic, 1, partition=1)
        session = Session(connection, [(topic, p, 0) for p in range(3)])
        equal(session.first, {0: (0, []), 1: (0, [0]), 2: (0, [])}, "the full answer")
        equal(session.fetch(), {1: (0, [0])}, "data again, because the client has not moved on")
        equal(session.fetch([(topic, 1, 1)]), {}, "nothing changed")
        equal(session.fetch(max_wait_ms=300), {}, "nothing changed, after a wait")
        fill(connection, topic, 1, partition=2)
        equal(session.fetch(), {2: (0, [0])}, "only what has data")


def test_a_session_wakes_for_data_and_keeps_its_offsets():
    with connect() as connection, connect() as writer:
        topic = new_topic(connection, partitions=20)
        session = Session(connection, [(topic, p, 0) for p in range(20)])
        for round_number in range(3):
            partition = 5 + round_number
            sent = connection.send("Fetch", FETCH_BY_NAME, session.body(max_wait_ms=10_000))
            time.sleep(0.1)
            fill(writer, topic, 1, partition)
            answer = connection.receive("Fetch", FETCH_BY_NAME, sent)
            session.epoch += 1
            equal(session.partitions_of(answer), {partition: (0, [0])})
            equal(session.fetch([(topic, partition, 1)]), {})


def test_forgotten_partitions_leave_the_session_and_new_ones_join_it():
    with connect() as connection:
        topic = new_topic(connection, partitions=3)
        for partition in range(3):
            fill(connection, topic, 1, partition)
        session = Session(connection, [(topic, 0, 0), (topic, 1, 0)])
        equal(session.fetch(forgotten=[{"Topic": topic, "Partitions": [0]}]), {1: (0, [0])})
        equal(session.fetch([(topic, 2, 0)]), {1: (0, [0]), 2: (0, [0])})
        equal(session.fetch([(topic, 1, 1), (topic, 2, 1)]), {})


def test_a_session_reports_a_moved_log_start_and_high_watermark():
    with connect() as connection:
        topic = new_topic(connection)
        fill(connection, topic, 4)
        session = Session(connection, [(topic, 0, 4)])
        equal(session.fetch(), {})
        delete_records(connection, topic, 2)
        equal(session.fetch(), {0: (0, [])}, "the log start moved")
        equal(session.fetch(), {})


def test_an_error_in_a_session_is_repeated_until_it_is_gone():
    with connect() as connection:
        topic = new_topic(connection)
        session = Session(connection, [(topic, 0, 0), (topic, 9, 0)])
        equal(session.first, {0: (0, []), 9: (UNKNOWN_TOPIC_OR_PARTITION, [])})
        equal(session.fetch(), {9: (UNKNOWN_TOPIC_OR_PARTITION, [])})
        equal(session.fetch([(topic, 0, 5)]), {0: (OFFSET_OUT_OF_RANGE, []), 9: (UNKNOWN_TOPIC_OR_PARTITION, [])})


def test_sessions_work_with_topic_ids():
    with connect() as connection:
        topic = new_topic(connection, partitions=2)
        by_id = topic_id(connection, topic)
        session = Session(connection, [(by_id, 0, 0), (by_id, 1, 0)], version=18)
        equal(session.first, {0: (0, []), 1: (0, [])})
        fill(connection, topic, 1, partition=1)
        equal(session.fetch(), {1: (0, [0])})
        equal(session.fetch(forgotten=[{"TopicId": by_id, "Partitions": [1]}]), {})


def test_an_unknown_session_or_a_wrong_epoch_is_said_by_code():
    with connect() as connection:
        topic = new_topic(connection)

        def error_of(session_id, epoch):
            body = fetch_body([(topic, 0, 0)], SessionId=session_id, SessionEpoch=epoch)
            answer = connection.call("Fetch", FETCH_BY_NAME, body)
            assert not answer["ErrorCode"] or not answer["Responses"]
            return answer["ErrorCode"]

        equal(error_of(123456, 1), FETCH_SESSION_ID_NOT_FOUND, "a session that never was")
        session = Session(connection, [(topic, 0, 0)])
        equal(error_of(session.id, 5), INVALID_FETCH_SESSION_EPOCH, "an epoch ahead")
        session.fetch()
        equal(error_of(session.id, 1), INVALID_FETCH_SESSION_EPOCH, "an epoch behind")
        equal(session.fetch(), {}, "the session survives both")
        equal(error_of(session.id, -1), 0, "epoch -1 closes the session")
        equal(error_of(session.id, session.epoch), FETCH_SESSION_ID_NOT_FOUND, "closed")


def test_epoch_minus_1_without_a_session_makes_none():
    with connect() as connection:
        topic = new_topic(connection)
        answer = connection.call("Fetch", FETCH_BY_NAME, fetch_body([(topic, 0, 0)], SessionId=0, SessionEpoch=-1))
        equal((answer["ErrorCode"], answer["SessionId"]), (0, 0))


def test_a_recreated_topic_never_shows_old_data_to_a_session_with_the_old_id():
    with connect() as connection:
        topic = new_topic(connection)
        old_id = topic_id(connection, topic)
        fill(connection, topic, 3)
        session = Session(connection, [(old_id, 0, 0)], version=18)
        connection.call("DeleteTopics", 6, {"Topics": [{"Name": topic}], "TimeoutMs": 5000})
        recreate(connection, topic)
        new_id = topic_id(connection, topic)
        assert new_id != old_id
        stale = session.fetch()
        check(stale[0][0], "deleted topic in a session")
        equal(stale[0][1], [], "records of the deleted topic")
        equal(fetch(connection, old_id)["ErrorCode"], UNKNOWN_TOPIC_ID)
        equal(fetch(connection, new_id)["Records"], b"")
        equal(produce(connection, old_id, batch([b"v"]))["ErrorCode"], UNKNOWN_TOPIC_ID)


def recreate(connection, topic):
    deadline = time.monotonic() + 10 * checks.SLOWNESS
    while create_topic(connection, topic)["ErrorCode"] != 0:
        assert time.monotonic() < deadline, "the old topic does not go away"
        ask_again(0.05)
    wait_for_leaders(connection, topic, 1)


# Offsets.


def test_every_version_of_list_offsets_knows_the_beginning_and_the_end():
    with connect() as connection:
        topic = new_topic(connection)
        fill(connection, topic, 5)
        delete_records(connection, topic, 2)
        for version in schema.valid_versions("ListOffsets"):
            earliest = list_offset(connection, topic, EARLIEST, version=version)
            latest = list_offset(connection, topic, LATEST, version=version)
            equal((earliest["ErrorCode"], earliest["Offset"], earliest["Timestamp"]), (0, 2, -1), f"v{version}")
            equal((latest["ErrorCode"], latest["Offset"], latest["Timestamp"]), (0, 5, -1), f"v{version}")


def test_a_timestamp_finds_the_first_record_at_or_after_it_inside_batches_too():
    with connect() as connection:
        topic = new_topic(connection)
        produce(connection, topic, batch([b"a", b"b", b"c"], timestamps=[1000, 2000, 3000]))
        produce(connection, topic, batch([b"d", b"e"], timestamps=[2500, 5000]))
        cases = [(0, 0, 1000), (1000, 0, 1000), (1001, 1, 2000), (2000, 1, 2000), (2400, 2, 3000), (3000, 2, 3000), (3001, 4, 5000), (5000, 4, 5000)]
        for asked, offset, timestamp in cases:
            answer = list_offset(connection, topic, asked)
            equal((answer["ErrorCode"], answer["Offset"], answer["Timestamp"]), (0, offset, timestamp), f"timestamp {asked}")


def test_a_timestamp_after_all_records_finds_minus_1():
    with connect() as connection:
        topic = new_topic(connection)
        for prepare in (lambda: None, lambda: produce(connection, topic, batch([b"a"], timestamp=1000))):
            prepare()
            answer = list_offset(connection, topic, 1001)
            equal((answer["ErrorCode"], answer["Offset"], answer["Timestamp"], answer["LeaderEpoch"]), (0, -1, -1, -1))


def test_a_timestamp_before_the_log_start_finds_the_log_start():
    with connect() as connection:
        topic = new_topic(connection)
        produce(connection, topic, batch([b"a", b"b", b"c", b"d"], timestamps=[1000, 2000, 3000, 4000]))
        delete_records(connection, topic, 2)
        answer = list_offset(connection, topic, 1000)
        equal((answer["ErrorCode"], answer["Offset"], answer["Timestamp"]), (0, 2, 3000))


def test_minus_3_finds_the_record_with_the_largest_timestamp():
    with connect() as connection:
        topic = new_topic(connection)
        answer = list_offset(connection, topic, MAX_TIMESTAMP)
        equal((answer["ErrorCode"], answer["Offset"], answer["Timestamp"]), (0, -1, -1), "an empty log")
        produce(connection, topic, batch([b"a", b"b", b"c"], timestamps=[1000, 9000, 3000]))
        produce(connection, topic, batch([b"d"], timestamps=[5000]))
        produce(connection, topic, batch([b"e"], timestamps=[9000]))
        answer = list_offset(connection, topic, MAX_TIMESTAMP)
        equal((answer["ErrorCode"], answer["Offset"], answer["Timestamp"]), (0, 1, 9000), "the first of the largest")


def test_the_other_special_timestamps_are_known_from_their_version_on():
    with connect() as connection:
        topic = new_topic(connection)
        fill(connection, topic, 3)
        delete_records(connection, topic, 1)
        for timestamp, version, offset in [(-4, 8, 1), (-5, 9, -1), (-6, 11, -1)]:
            known = list_offset(connection, topic, timestamp, version=version)
            equal((known["ErrorCode"], known["Offset"], known["Timestamp"]), (0, offset, -1), f"{timestamp} in v{version}")
        for timestamp, version in [(-3, 6), (-4, 7), (-5, 8), (-6, 10), (-7, 11)]:
            too_early = list_offset(connection, topic, timestamp, version=version)
            equal((too_early["ErrorCode"], too_early["Offset"]), (35, -1), f"{timestamp} in v{version}")


def test_offsets_of_many_topics_and_partitions_are_listed_at_once():
    with connect() as connection:
        topics = [new_topic(connection, partitions=3) for _ in range(3)]
        missing, at = checks.unique("missing"), 1_700_000_000_000
        for topic in topics:
            for partition in (0, 1):
                for n in range(2):
                    data = batch([b"v"] * 2, timestamps=[at + 10 * n, at + 10 * n + 1])
                    equal(produce(connection, topic, data, partition=partition)["ErrorCode"], 0)
        delete_records(connection, topics[0], 1, partition=1)

        def listed(*asked):
            """`asked` are (topic, partition, timestamp)."""
            entries = [{"Name": name, "Partitions": [{"PartitionIndex": p, "Timestamp": time}]} for name, p, time in asked]
            answer = connection.call("ListOffsets", 11, {"ReplicaId": -1, "Topics": entries})["Topics"]
            return {(t["Name"], p["PartitionIndex"]): (p["ErrorCode"], p["Offset"], p["Timestamp"]) for t in answer for p in t["Partitions"]}

        for timestamp, full, empty in [
            (LATEST, (0, 4, -1), (0, 0, -1)),
            (EARLIEST, (0, 0, -1), (0, 0, -1)),
            (MAX_TIMESTAMP, (0, 3, at + 11), (0, -1, -1)),
            (-4, (0, 0, -1), (0, 0, -1)),
            (-5, (0, -1, -1), (0, -1, -1)),
            (-6, (0, -1, -1), (0, -1, -1)),
            (-7, (35, -1, -1), (35, -1, -1)),
            (at + 2, (0, 2, at + 10), (0, -1, -1)),
            (at + 12, (0, -1, -1), (0, -1, -1)),
        ]:
            expected = {(topic, partition): empty if partition == 2 else full for topic in topics for partition in range(3)}
            if timestamp in (EARLIEST, -4):
                expected[topics[0], 1] = (0, 1, -1)
            unknown = (35 if timestamp == -7 else UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
            expected |= {(topics[0], 9): unknown, (missing, 0): unknown}
            equal(listed(*[(*place, timestamp) for place in expected]), expected, f"at {timestamp}")
        twice = listed((topics[0], 0, LATEST), (topics[0], 1, LATEST), (topics[0], 0, EARLIEST))
        equal(twice, {(topics[0], 0): (42, -1, -1), (topics[0], 1): (0, 4, -1)})


def test_list_offsets_says_unknown_partitions_and_leader_epochs_by_code():
    with connect() as connection:
        topic = new_topic(connection)
        epoch = describe_topic(connection, topic)["Partitions"][0]["LeaderEpoch"]
        equal(list_offset(connection, topic, LATEST, partition=4)["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION)
        equal(list_offset(connection, checks.unique("nowhere"), LATEST)["ErrorCode"], UNKNOWN_TOPIC_OR_PARTITION)
        equal(list_offset(connection, topic, LATEST, CurrentLeaderEpoch=epoch + 1)["ErrorCode"], UNKNOWN_LEADER_EPOCH)
        equal(list_offset(connection, topic, LATEST, CurrentLeaderEpoch=epoch)["LeaderEpoch"], epoch)


def end_of_epoch(connection, topic, epoch, partition=0, version=4, current=-1):
    entry = {"Partition": partition, "CurrentLeaderEpoch": current, "LeaderEpoch": epoch}
    body = {"ReplicaId": -1, "Topics": [{"Topic": topic, "Partitions": [entry]}]}
    answer = connection.call("OffsetForLeaderEpoch", version, body)["Topics"][0]["Partitions"][0]
    return answer["ErrorCode"], answer["LeaderEpoch"], answer["EndOffset"]


def test_every_version_of_offset_for_leader_epoch_gives_the_end_of_the_current_epoch():
    with connect() as connection:
        topic = new_topic(connection)
        fill(connection, topic, 3)
        epoch = describe_topic(connection, topic)["Partitions"][0]["LeaderEpoch"]
        for version in schema.valid_versions("OffsetForLeaderEpoch"):
            equal(end_of_epoch(connection, topic, epoch, version=version), (0, epoch, 3), f"v{version}")


def test_an_epoch_of_the_future_has_no_end_and_wrong_current_epochs_are_said_by_code():
    with connect() as connection:
        topic = new_topic(connection)
        fill(connection, topic, 3)
        epoch = describe_topic(connection, topic)["Partitions"][0]["LeaderEpoch"]
        equal(end_of_epoch(connection, topic, epoch + 1), (0, -1, -1))
        equal(end_of_epoch(connection, topic, epoch, current=epoch + 1), (UNKNOWN_LEADER_EPOCH, -1, -1))
        equal(end_of_epoch(connection, topic, 0, partition=8), (UNKNOWN_TOPIC_OR_PARTITION, -1, -1))
