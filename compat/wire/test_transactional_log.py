"""What transactions leave in a log: markers, the last stable offset, and what a reader of committed records is told."""

import struct
import threading
import time

import schema
from batch import CONTROL, HEADER, TRANSACTIONAL, batches
from calls import EARLIEST, LATEST, MAX_TIMESTAMP, connect, delete_records, fetch, new_producer_id, new_topic, produce, topic_id
from checks import equal
from golden import eventually
from transactional import Transactional, served, settle

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED = 1, 3, 47, 52
COMMITTED, UNCOMMITTED = 1, 0
ABORT, COMMIT = 0, 1
# Now, so that the log need not begin a new segment for the markers, which are of now.
NOW = {"timestamp": int(time.time() * 1000)}


def new_transactional(connection, version=2, **fields):
    return Transactional(connection, version, **fields).init()


def write(producer, topic, *values, partition=0):
    return producer.send(topic, list(values), partition, **NOW)


def committed(connection, topic, offset=0, **fields):
    return fetch(connection, topic, offset, IsolationLevel=COMMITTED, **fields)


def aborted(answer):
    return [(each["ProducerId"], each["FirstOffset"]) for each in answer["AbortedTransactions"]]


def offsets(answer):
    return [each.base_offset for each in batches(answer["Records"])]


def visible(connection, topic, offset=0, partition=0):
    """The values that a reader of committed records takes out of one fetch, found as its client would find them."""
    answer = committed(connection, topic, offset, partition=partition)
    open_aborts = sorted((first, id) for id, first in aborted(answer))
    of_aborted, values = set(), []
    for each in batches(answer["Records"]):
        while open_aborts and open_aborts[0][0] <= each.last_offset:
            of_aborted.add(open_aborts.pop(0)[1])
        if each.attributes & CONTROL:
            if marker(each)[0] == ABORT:
                of_aborted.discard(each.producer_id)
        elif not (each.attributes & TRANSACTIONAL and each.producer_id in of_aborted):
            values += each.values()
    return values


def marker(batch):
    """(kind, coordinator epoch) of a control batch, every byte of its record looked at."""
    record = batch.bytes[HEADER.size :]
    equal((len(record), record[:5].hex(), record[9:10].hex()), (17, "2000000008", "0c"), "length, attributes, deltas, sizes of key and value")
    equal(record[16:], b"\0", "no headers")
    key_version, kind = struct.unpack(">hh", record[5:9])
    value_version, coordinator_epoch = struct.unpack(">hi", record[10:16])
    equal((key_version, value_version), (0, 0))
    return kind, coordinator_epoch


def test_a_marker_is_a_control_batch_of_one_record():
    with served() as connection:
        for version in (1, 2):
            topic = new_topic(connection)
            producer = new_transactional(connection, version)
            id = producer.producer_id
            before = int(time.time() * 1000)
            for commit, kind in ((True, COMMIT), (False, ABORT)):
                offset = write(producer, topic, b"a", b"b")
                epoch = producer.epoch
                producer.finish(commit)
                settle(producer)
                data, end = batches(fetch(connection, topic, offset)["Records"])
                equal((data.attributes, data.producer_id, data.epoch, data.count), (TRANSACTIONAL, id, epoch, 2), f"protocol {version}")
                equal((end.base_offset, end.last_offset_delta, end.count), (offset + 2, 0, 1))
                # The marker of protocol 2 carries the next epoch, so that nothing of the old one comes after it.
                equal((end.attributes, end.producer_id, end.epoch, end.sequence), (TRANSACTIONAL | CONTROL, id, epoch + version - 1, -1))
                # Kafka counts the coordinator's epochs from 0; Duramen's are Raft terms.
                equal((marker(end)[0], min(marker(end)[1], 0)), (kind, 0), "of the coordinator's epoch")
                equal(end.base_timestamp, end.max_timestamp)
                assert before <= end.base_timestamp <= time.time() * 1000 + 1000, "the marker's time is the coordinator's"
                assert end.crc_is_right() and end.magic == 2


def test_the_marker_of_who_was_fenced_has_the_next_epoch():
    with served() as connection:
        for version in (1, 2):
            topic = new_topic(connection)
            first = new_transactional(connection, version)
            write(first, topic, b"open")
            new_transactional(connection, version, id=first.id)
            _, end = batches(fetch(connection, topic)["Records"])
            equal((marker(end)[0], end.epoch), (ABORT, first.epoch + 1), f"protocol {version}")


def test_a_transaction_over_several_partitions_has_a_marker_in_each():
    with served() as connection:
        for version in (1, 2):
            one, two = new_topic(connection, partitions=3), new_topic(connection)
            producer = new_transactional(connection, version)
            for commit in (True, False):
                starts = {(topic, p): write(producer, topic, b"x", partition=p) for topic, p in ((one, 0), (one, 2), (two, 0))}
                producer.finish(commit)
                settle(producer)
                for (topic, p), start in starts.items():
                    [end] = batches(fetch(connection, topic, start + 1, p)["Records"])
                    equal((end.producer_id, marker(end)[0]), (producer.producer_id, COMMIT if commit else ABORT))
            equal(fetch(connection, one, 0, 1)["HighWatermark"], 0, "none where nothing was written")


def test_the_last_stable_offset_is_the_first_one_of_the_oldest_open_transaction():
    with served() as connection:
        topic = new_topic(connection)
        first, second = new_transactional(connection), new_transactional(connection)
        write(first, topic, b"0")
        write(second, topic, b"1")
        second.commit()
        settle(second)
        equal(produce(connection, topic, first.batch("", [b"3"], attributes=0, producer_id=-1, epoch=-1, sequence=-1, **NOW))["BaseOffset"], 3)
        by_id = topic_id(connection, topic)
        for version in schema.valid_versions("Fetch"):
            named = by_id if version >= 13 else topic
            for level, seen in ((COMMITTED, []), (UNCOMMITTED, [0, 1, 2, 3])):
                answer = fetch(connection, named, version=version, IsolationLevel=level)
                got = (answer["ErrorCode"], answer["HighWatermark"], answer["LastStableOffset"], offsets(answer))
                equal(got, (0, 4, 0, seen), f"v{version} level {level}")
        for offset in range(5):
            answer = committed(connection, topic, offset)
            equal((answer["ErrorCode"], answer["Records"], aborted(answer)), (0, b"", []), "beyond it, and inside the log")
        beyond = committed(connection, topic, 5)
        equal((beyond["ErrorCode"], beyond["HighWatermark"], beyond["LastStableOffset"]), (OFFSET_OUT_OF_RANGE, -1, -1))
        first.abort()
        settle(first)
        answer = committed(connection, topic)
        equal((answer["HighWatermark"], answer["LastStableOffset"], offsets(answer)), (5, 5, [0, 1, 2, 3, 4]))
        equal(aborted(answer), [(first.producer_id, 0)])
        equal(visible(connection, topic), [b"1", b"3"])


def test_every_version_of_fetch_names_the_aborted_transactions():
    with served() as connection:
        topic = new_topic(connection)
        producer = new_transactional(connection)
        for commit in (True, False, True, False):
            write(producer, topic, b"kept" if commit else b"aborted")
            producer.finish(commit)
        settle(producer)
        by_id = topic_id(connection, topic)
        expected = [(producer.producer_id, 2), (producer.producer_id, 6)]
        for version in schema.valid_versions("Fetch"):
            named = by_id if version >= 13 else topic
            equal(aborted(committed(connection, named, version=version)), expected, f"v{version}")
            equal(fetch(connection, named, version=version, IsolationLevel=UNCOMMITTED)["AbortedTransactions"], None, f"v{version}")
        # From a marker on, its transaction is still named; after it no more.
        for offset in range(9):
            answer = committed(connection, topic, offset)
            equal(aborted(answer), [each for each in expected if offset <= each[1] + 1], f"from {offset}")
        equal(visible(connection, topic), [b"kept", b"kept"])


def test_what_is_aborted_is_known_wherever_a_fetch_begins_and_however_little_it_takes():
    with served() as connection:
        topic = new_topic(connection)
        producers = [new_transactional(connection) for _ in range(3)]
        kept = []
        for turn in range(12):
            producer = producers[turn % 3]
            for part in range(3):
                write(producer, topic, b"%d.%d" % (turn, part))
            if turn >= 2:
                # Three are always open at once, and every third is aborted.
                oldest = producers[(turn - 2) % 3]
                oldest.finish(commit := (turn - 2) % 4 != 0)
                kept += [b"%d.%d" % (turn - 2, part) for part in range(3)] if commit else []
        producers[10 % 3].commit()
        producers[11 % 3].commit()
        kept += [b"%d.%d" % (turn, part) for turn in (10, 11) for part in range(3)]
        for each in producers:
            settle(each)
        end = committed(connection, topic)["LastStableOffset"]
        equal(sorted(visible(connection, topic)), sorted(kept))
        one_by_one, at = [], 0
        while at < end:
            answer = committed(connection, topic, at, partition_max_bytes=1)
            [first, *_] = batches(answer["Records"])
            of_aborted = any(id == first.producer_id and start <= at for id, start in aborted(answer))
            if not first.attributes & CONTROL and not of_aborted:
                one_by_one += first.values()
            at = first.last_offset + 1
        equal(sorted(one_by_one), sorted(kept))


def test_offsets_of_committed_records_are_listed_up_to_the_last_stable_one():
    with served() as connection:
        topic = new_topic(connection)
        done, open = new_transactional(connection), new_transactional(connection)
        at = NOW["timestamp"]
        done.send(topic, [b"x"], timestamp=at)
        done.commit()
        settle(done)
        open.send(topic, [b"x"], timestamp=at + 1_000_000)

        def listed(timestamp, level, version=11):
            entry = {"PartitionIndex": 0, "Timestamp": timestamp}
            body = {"ReplicaId": -1, "IsolationLevel": level, "Topics": [{"Name": topic, "Partitions": [entry]}]}
            answer = connection.call("ListOffsets", version, body)["Topics"][0]["Partitions"][0]
            equal(answer["ErrorCode"], 0)
            return answer["Offset"]

        for version in range(2, 12):
            for level, latest in ((UNCOMMITTED, 3), (COMMITTED, 2)):
                equal(listed(LATEST, level, version), latest, f"v{version} level {level}")
                equal(listed(EARLIEST, level, version), 0, f"v{version} level {level}")
                equal(listed(at, level, version), 0, f"v{version} level {level}")
            equal(listed(at + 1_000_000, UNCOMMITTED, version), 2, f"v{version}")
            equal(listed(at + 1_000_000, COMMITTED, version), -1, f"v{version}")
            if version >= 7:
                equal(listed(MAX_TIMESTAMP, UNCOMMITTED, version), 2, f"v{version}")
        open.abort()


def test_a_waiting_reader_of_committed_records_wakes_at_the_end_of_the_transaction():
    with served() as connection, connect() as reader:
        for version in (1, 2):
            topic = new_topic(connection)
            producer = new_transactional(connection, version)
            write(producer, topic, b"x")
            waited = {}

            def read():
                started = time.monotonic()
                waited["answer"] = committed(reader, topic, max_wait_ms=10_000)
                waited["seconds"] = time.monotonic() - started

            thread = threading.Thread(target=read)
            thread.start()
            # What is written into the open transaction does not wake it.
            for _ in range(3):
                write(producer, topic, b"more")
            assert thread.is_alive()
            producer.commit()
            thread.join(15)
            equal(len(offsets(waited["answer"])) >= 1, True, f"protocol {version}")
            assert waited["seconds"] < 5, f"it woke after {waited['seconds']:.1f} s"


def test_a_beginning_may_be_moved_past_aborted_transactions():
    with served() as connection:
        topic = new_topic(connection)
        producer = new_transactional(connection)
        for _ in range(3):
            write(producer, topic, b"aborted")
            producer.abort()
        write(producer, topic, b"kept")
        producer.commit()
        settle(producer)
        equal(delete_records(connection, topic, 3)["LowWatermark"], 3)
        answer = committed(connection, topic, 3)
        equal(aborted(answer), [(producer.producer_id, 2), (producer.producer_id, 4)], "whose marker is still there")
        equal(visible(connection, topic, 3), [b"kept"])


def test_producers_are_described_with_their_open_transactions():
    with served() as connection:
        topic = new_topic(connection)
        id, epoch = new_producer_id(connection)
        plain = Transactional(connection)
        open, done = new_transactional(connection, 1), new_transactional(connection, 1)
        write(done, topic, b"x", b"y")
        done.commit()
        settle(done)
        write(open, topic, b"z")
        produce(connection, topic, plain.batch(topic, [b"p"], attributes=0, producer_id=id, epoch=epoch, sequence=0, **NOW))

        def described():
            topics = [{"Name": topic, "PartitionIndexes": [0, 7]}, {"Name": "nowhere", "PartitionIndexes": [0]}]
            found = connection.call("DescribeProducers", 0, {"Topics": topics})["Topics"]
            return {(t["Name"], p["PartitionIndex"]): p for t in found for p in t["Partitions"]}

        found = described()
        equal({key: p["ErrorCode"] for key, p in found.items()}, {(topic, 0): 0, (topic, 7): 3, ("nowhere", 0): 3})
        names = ("ProducerEpoch", "LastSequence", "CurrentTxnStartOffset", "CoordinatorEpoch")
        # What matters of the coordinator's epoch is whether there was one.
        of = lambda found: {  # noqa: E731
            p["ProducerId"]: tuple(min(p[name], 0) if name == "CoordinatorEpoch" else p[name] for name in names)
            for p in found[topic, 0]["ActiveProducers"]
        }
        expected = {done.producer_id: (0, 1, -1, 0), open.producer_id: (0, 0, 3, -1), id: (0, 0, -1, -1)}
        equal(of(found), expected)
        open.abort()
        settle(open)
        equal(of(described())[open.producer_id], (0, 0, -1, 0))


# As a coordinator writes them, which a client may do where nobody is authorized.


def write_marker(connection, topic, producer_id, epoch, commit=False, coordinator_epoch=0, version=1, transaction_version=0, partition=0):
    marker = {"ProducerId": producer_id, "ProducerEpoch": epoch, "TransactionResult": commit, "CoordinatorEpoch": coordinator_epoch}
    marker["Topics"] = [{"Name": topic, "PartitionIndexes": [partition]}]
    marker |= {"TransactionVersion": transaction_version} if version >= 2 else {}
    [answer] = connection.call("WriteTxnMarkers", version, {"Markers": [marker]})["Markers"]
    equal(answer["ProducerId"], producer_id)
    return answer["Topics"][0]["Partitions"][0]["ErrorCode"]


def test_a_marker_of_an_older_epoch_or_an_older_coordinator_is_refused():
    with served() as connection:
        for version, transaction_version in ((1, 0), (2, 0), (2, 1), (2, 2)):
            what = f"v{version} of protocol {transaction_version}"
            topic = new_topic(connection)
            producer = new_transactional(connection).init()
            equal(producer.epoch, 1)
            write(producer, topic, b"x")
            mark = lambda epoch, coordinator_epoch=0: write_marker(  # noqa: E731
                connection, topic, producer.producer_id, epoch, False, coordinator_epoch, version, transaction_version
            )
            equal(mark(0), INVALID_PRODUCER_EPOCH, what)
            # In protocol 2 the epoch has gone on before the marker is written.
            equal(mark(1), INVALID_PRODUCER_EPOCH if transaction_version == 2 else 0, what)
            equal(mark(2), 0, what)
            equal(mark(2, 7), 0, f"{what}: a newer coordinator")
            equal(mark(3, 3), TRANSACTION_COORDINATOR_FENCED, what)
            equal(write_marker(connection, topic, producer.producer_id, 3, partition=9), UNKNOWN_TOPIC_OR_PARTITION, what)
            equal(producer.produce(topic, [b"late"], **NOW)["ErrorCode"], INVALID_PRODUCER_EPOCH, what)
            producer.abort()


def test_a_transaction_that_hangs_can_be_aborted_by_its_marker():
    """What `kafka-transactions abort` sends when a partition has an open transaction that no coordinator knows of."""
    with served() as connection:
        topic = new_topic(connection)
        producer = new_transactional(connection, 1)
        write(producer, topic, b"x")
        equal(committed(connection, topic)["LastStableOffset"], 0)
        equal(write_marker(connection, topic, producer.producer_id, producer.epoch), 0)
        answer = eventually("it is stable", lambda: (a := committed(connection, topic))["LastStableOffset"] == 2 and a)
        equal(aborted(answer), [(producer.producer_id, 0)])
        producer.abort()
