"""Versions, framing and the order of responses: what happens before any API is reached."""

import random
import struct
import time

import schema
from batch import batch
from calls import connect, fetch_body, fetched_values, new_topic, produce, produce_body
from checks import SLOWNESS, equal
from connection import Closed, parse_response, request_header
from differences import check
from golden import ask_again

# The APIs of a log; groups, transactions and the rest of admin are advertised when they are there.
LOG_APIS = [
    "Produce", "Fetch", "ListOffsets", "Metadata", "ApiVersions", "CreateTopics", "DeleteTopics", "DeleteRecords",
    "InitProducerId", "OffsetForLeaderEpoch", "DescribeCluster", "DescribeTopicPartitions",
]  # fmt: skip


def assert_serves(connection, version=12):
    assert connection.call("Metadata", version)["Brokers"], "a connection that should live does not answer"


def test_an_unknown_version_of_api_versions_is_answered_in_version_0_with_error_35_and_the_list():
    with connect() as connection:
        for version in (5, 99, 32767):
            no_tagged_fields = b"\0"
            connection.send_frame(struct.pack(">hhih", 18, version, 7, -1) + no_tagged_fields)
            correlation_id, payload = connection.receive_frame()
            answer = parse_response("ApiVersions", 0, payload)
            equal((correlation_id, answer["ErrorCode"]), (7, 35))
            listed = {api["ApiKey"]: (api["MinVersion"], api["MaxVersion"]) for api in answer["ApiKeys"]}
            equal(listed.get(18), (0, 4), "the range of ApiVersions itself")
        assert_serves(connection)


def test_every_version_of_a_log_api_that_kafka_accepts_is_advertised():
    with connect() as connection:
        answer = connection.call("ApiVersions", 4, {"ClientSoftwareName": "wire", "ClientSoftwareVersion": "1"})
    advertised = {api["ApiKey"]: (api["MinVersion"], api["MaxVersion"]) for api in answer["ApiKeys"]}
    for api in LOG_APIS:
        versions = schema.valid_versions(api)
        low = 0 if api == "Produce" else versions[0]  # librdkafka turns features off when Produce starts above 0
        equal(advertised.get(schema.layout(api + "Request")["apiKey"]), (low, versions[-1]), api)


def test_api_versions_lists_the_same_apis_in_every_version_sorted_by_key():
    with connect() as connection:
        body = {"ClientSoftwareName": "wire", "ClientSoftwareVersion": "1"}
        answers = [connection.call("ApiVersions", version, body if version >= 3 else {}) for version in range(5)]
    for answer in answers:
        equal(answer["ErrorCode"], 0)
        equal(answer["ApiKeys"], answers[0]["ApiKeys"])
    keys = [api["ApiKey"] for api in answers[0]["ApiKeys"]]
    equal(keys, sorted(keys))


def test_every_field_of_api_versions_is_kafkas():
    kafkas = {key: (name, schema.valid_versions(name)) for key, name in schema.requests().items()}
    with connect() as connection:
        for version in schema.valid_versions("ApiVersions"):
            body = {"ClientSoftwareName": "wire", "ClientSoftwareVersion": "1"} if version >= 3 else {}
            answer = connection.call("ApiVersions", version, body)
            equal(answer.pop("ErrorCode"), 0, f"v{version}")
            rows = answer.pop("ApiKeys")
            for row in rows:
                api, versions = kafkas[row["ApiKey"]]
                # librdkafka turns features off when Produce starts above 0.
                low = 0 if api == "Produce" else versions[0]
                equal((row["MinVersion"], row["MaxVersion"]), (low, versions[-1]), f"v{version}: {api}")
            missing = set(kafkas) - {row["ApiKey"] for row in rows}
            check(tuple(kafkas[key][0] for key in sorted(missing)), "APIs that are not there", f"v{version}")
            if version >= 1:
                equal(answer.pop("ThrottleTimeMs"), 0, f"v{version}")
            if version >= 3:
                # kafka-clients 3.3 to 3.7 fail on a supported feature whose minimum is below 1, and ask in version 3.
                below = "" if version >= 4 else ", below version 4"
                check(features(answer.pop("SupportedFeatures"), "Version"), f"features that are supported{below}")
                check(features(answer.pop("FinalizedFeatures"), "VersionLevel"), "features at their level", f"v{version}")
                assert answer.pop("FinalizedFeaturesEpoch") >= 0, f"v{version}"
                equal(answer.pop("ZkMigrationReady"), False, f"v{version}")
            equal(answer, {}, f"v{version}: what is left")


def features(rows, level):
    return tuple(sorted((row["Name"], row["Min" + level], row["Max" + level]) for row in rows))


def test_the_second_version_of_transactions_is_offered_with_all_that_it_needs():
    """From transaction.version 2 on a client adds partitions to its transaction by producing to them: all of it has to be there."""
    with connect() as connection:
        answer = connection.call("ApiVersions", 4, {"ClientSoftwareName": "wire", "ClientSoftwareVersion": "1"})
    level = {feature["Name"]: feature["MaxVersionLevel"] for feature in answer["FinalizedFeatures"]}.get("transaction.version", 0)
    newest = {api["ApiKey"]: api["MaxVersion"] for api in answer["ApiKeys"]}
    needed = {"Produce": 12, "AddPartitionsToTxn": 5, "AddOffsetsToTxn": 4, "EndTxn": 5, "TxnOffsetCommit": 5}
    missing = [api for api, version in needed.items() if newest.get(schema.layout(api + "Request")["apiKey"], -1) < version]
    equal((level, missing), (2, []), "transaction.version, and what it lacks")


def test_a_client_software_name_with_a_space_is_an_invalid_request():
    with connect() as connection:
        answer = connection.call("ApiVersions", 3, {"ClientSoftwareName": "not valid", "ClientSoftwareVersion": "1"})
        equal(answer["ErrorCode"], 42)
        assert_serves(connection)


def test_produce_below_version_3_is_advertised_and_closes_the_connection_when_used():
    with connect() as connection:
        topic = new_topic(connection)
        for version in range(3):
            with connect() as old:
                old.send("Produce", version, {"Acks": -1, "TimeoutMs": 1000, "TopicData": produce_body(topic, batch([b"v"]))["TopicData"]})
                assert old.is_closed_by_broker(), f"v{version}"
        equal(fetched_values(connection, topic), [])


def test_an_unknown_api_or_version_closes_its_connection_and_no_other():
    with connect() as bystander:
        for key, version in [(999, 0), (-1, 0), (3, 14), (3, -1), (1, 3), (19, 1), (4, 0)]:
            with connect() as connection:
                connection.send_frame(struct.pack(">hhih", key, version, 1, -1) + bytes(8))
                assert connection.is_closed_by_broker(), f"api {key} v{version}"
        assert_serves(bystander)


def test_a_request_that_cannot_be_parsed_closes_its_connection_and_no_other():
    header = request_header("Metadata", 1, 1)
    produce_header = request_header("Produce", 9, 1)
    fetch_header = request_header("Fetch", 12, 1)
    malformed = {
        "an array longer than the frame": header + struct.pack(">i", 1000),
        "an array of 2^31-1": header + struct.pack(">i", 0x7FFFFFFF),
        "a null array where null is not allowed": request_header("ListOffsets", 1, 1) + struct.pack(">ii", -1, -1),
        "a string longer than the frame": header + struct.pack(">ih", 1, 0x7FFF),
        "a body that is missing": header,
        "a header that is cut": header[:6],
        "a compact array of 2^32-2": produce_header + b"\0" + struct.pack(">hi", -1, 1000) + b"\xff\xff\xff\xff\x0f",
        "a varint that does not end": produce_header + b"\0" + struct.pack(">hi", -1, 1000) + b"\xff" * 12,
        "a tagged field longer than the frame": fetch_header + bytes(30) + b"\1\1\x7f",
        "a string that is not UTF-8 in the header": struct.pack(">hhih", 3, 1, 1, 30_000),
    }
    with connect() as bystander:
        for what, frame in malformed.items():
            with connect() as connection:
                connection.send_frame(frame)
                assert connection.is_closed_by_broker(), what
        assert_serves(bystander)


def test_bytes_after_the_end_of_a_request_are_ignored():
    with connect() as connection:
        body = schema.encode("MetadataRequest", 1, {"Topics": []})
        connection.send_frame(request_header("Metadata", 1, 5) + body + b"left over")
        correlation_id, payload = connection.receive_frame()
        equal(correlation_id, 5)
        assert parse_response("Metadata", 1, payload)["Brokers"]


def test_a_frame_length_that_is_negative_or_above_the_limit_closes_the_connection():
    with connect() as bystander:
        for length in (-1, -(2**31), 104_857_601, 2**31 - 1):
            with connect() as connection:
                connection.send_bytes(struct.pack(">i", length))
                assert connection.is_closed_by_broker(), f"length {length}"
        assert_serves(bystander)


def test_a_client_that_leaves_in_the_middle_of_a_frame_disturbs_nobody():
    with connect() as bystander:
        for sent in (b"\0", b"\0\0\0", struct.pack(">i", 5000) + b"half"):
            with connect() as connection:
                connection.send_bytes(sent)
        assert_serves(bystander)


def test_a_request_that_arrives_byte_by_byte_is_answered():
    with connect() as connection:
        payload = request_header("Metadata", 1, 3) + schema.encode("MetadataRequest", 1, {"Topics": []})
        for byte in struct.pack(">i", len(payload)) + payload:
            connection.send_bytes(bytes([byte]))
            time.sleep(0.001)
        equal(connection.receive_frame()[0], 3)


def test_requests_that_arrive_in_two_pieces_are_all_answered():
    """A broker that forgets, between two reads, that more has come waits for ever; only many tries show it."""
    pause = random.Random()
    with connect() as connection:
        payload = request_header("Metadata", 1, 3) + schema.encode("MetadataRequest", 1, {"Topics": []})
        frame = struct.pack(">i", len(payload)) + payload
        for number in range(40_000):
            connection.send_bytes(frame[:10])
            until = time.perf_counter() + pause.random() * 20e-6
            while time.perf_counter() < until:
                pass
            connection.send_bytes(frame[10:])
            try:
                connection.receive_frame(timeout_s=5)
            except TimeoutError:
                raise AssertionError(f"request {number} was never answered") from None


def test_a_null_or_empty_client_id_is_served():
    with connect() as connection:
        for client_id in (None, ""):
            for version in (1, 9):
                frame = request_header("Metadata", version, 4, client_id) + schema.encode("MetadataRequest", version, {"Topics": []})
                connection.send_frame(frame)
                equal(connection.receive_frame()[0], 4)


def test_responses_keep_the_order_of_their_requests():
    with connect() as connection:
        topic = new_topic(connection)
        slow = connection.send("Fetch", 12, fetch_body([(topic, 0, 0)], max_wait_ms=700))
        quick = [connection.send("Metadata", 12) for _ in range(3)]
        started = time.monotonic()
        parked = connection.receive("Fetch", 12, slow)
        assert time.monotonic() - started > 0.5, "the fetch did not wait"
        equal(parked["Responses"][0]["Partitions"][0]["Records"] or b"", b"")
        for correlation_id in quick:
            connection.receive("Metadata", 12, correlation_id)


def test_a_hundred_pipelined_produce_requests_land_in_order():
    with connect() as connection:
        topic = new_topic(connection)
        values = [b"%d" % number for number in range(100)]
        sent = [connection.send("Produce", 12, produce_body(topic, batch([value]))) for value in values]
        for offset, correlation_id in enumerate(sent):
            answer = connection.receive("Produce", 12, correlation_id)["Responses"][0]["PartitionResponses"][0]
            equal((answer["ErrorCode"], answer["BaseOffset"]), (0, offset))
        equal(fetched_values(connection, topic), values)


def test_acks_0_has_no_response():
    with connect() as connection:
        topic = new_topic(connection)
        connection.send("Produce", 12, produce_body(topic, batch([b"quiet"]), acks=0))
        after = connection.send("Metadata", 12)
        connection.receive("Metadata", 12, after)
        deadline = time.monotonic() + 5 * SLOWNESS
        while fetched_values(connection, topic) != [b"quiet"] and time.monotonic() < deadline:
            ask_again(0.01)
        equal(fetched_values(connection, topic), [b"quiet"])


def test_an_error_under_acks_0_closes_the_connection():
    with connect() as bystander:
        topic = new_topic(bystander)
        with connect() as connection:
            connection.send("Produce", 12, produce_body(topic, batch([b"v"]), partition=9, acks=0))
            assert connection.is_closed_by_broker()
        assert_serves(bystander)


def test_acks_other_than_0_1_and_all_are_refused_with_error_21():
    with connect() as connection:
        topic = new_topic(connection)
        for acks in (2, -2, 32767):
            equal(produce(connection, topic, batch([b"v"]), acks=acks)["ErrorCode"], 21, f"acks={acks}")
        equal(fetched_values(connection, topic), [])


def test_a_connection_closes_only_after_the_requests_before_the_bad_one_were_answered():
    with connect() as connection:
        topic = new_topic(connection)
        first = connection.send("Produce", 12, produce_body(topic, batch([b"kept"])))
        connection.send_frame(struct.pack(">hhih", 999, 0, 1, -1))
        try:
            answer = connection.receive("Produce", 12, first)["Responses"][0]["PartitionResponses"][0]
            equal(answer["ErrorCode"], 0)
        except Closed:
            pass  # allowed: the client does not know, as with any broken connection
    with connect() as connection:
        assert fetched_values(connection, topic) in ([], [b"kept"])
