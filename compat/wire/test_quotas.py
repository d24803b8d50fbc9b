"""Client quotas: what is kept of them, what is refused, and how long a client that was too fast has to rest."""

import time

import checks
import schema
from batch import batch, batches
from calls import FETCH_BY_NAME, PRODUCE_BY_NAME, connect, fetch_body, fetched_values, new_topic, produce_body
from checks import equal
from connection import request_header
from differences import check
from golden import ask_again, eventually, unrecorded

INVALID_REQUEST, UNSUPPORTED_VERSION = 42, 35
EXACT, DEFAULT, SPECIFIED = 0, 1, 2


def new_client():
    """A client id that has no quota."""
    return checks.unique("client")


def alter(connection, entity, version=1, validate_only=False, **quotas):
    """`entity` is a dictionary of types to names; a quota of None is taken back. Returns the error."""
    ops = [{"Key": key, "Value": value or 0.0, "Remove": value is None} for key, value in quotas.items()]
    named = [{"EntityType": kind, "EntityName": name} for kind, name in entity.items()]
    body = {"Entries": [{"Entity": named, "Ops": ops}], "ValidateOnly": validate_only}
    [entry] = connection.call("AlterClientQuotas", version, body)["Entries"]
    equal(bool(entry["ErrorMessage"]), entry["ErrorCode"] != 0, "a reason beside the code")
    return entry["ErrorCode"]


def describe(connection, *components, version=1, strict=False):
    """Components are (type, kind of match, name). Returns the error and what was found."""
    wanted = [{"EntityType": kind, "MatchType": match, "Match": name} for kind, match, name in components]
    answer = connection.call("DescribeClientQuotas", version, {"Components": wanted, "Strict": strict})
    found = {}
    for entry in answer["Entries"] or []:
        entity = tuple(sorted((each["EntityType"], each["EntityName"]) for each in entry["Entity"]))
        found[entity] = {value["Key"]: value["Value"] for value in entry["Values"]}
    return answer["ErrorCode"], found


def wait_for(connection, client, quotas):
    """Kafka's broker learns of a quota a moment after its controller has taken it."""
    entity = (("client-id", client),)
    deadline = time.monotonic() + 10 * checks.SLOWNESS
    while describe(connection, ("client-id", EXACT, client))[1].get(entity, {}) != quotas:
        assert time.monotonic() < deadline, "the quota did not come to hold"
        ask_again(0.02)
    time.sleep(0.1)


def call_as(connection, client, api, version, body):
    return connection.call(api, version, body, client_id=client)


def test_quotas_are_set_described_and_taken_back_in_every_version():
    with connect() as connection:
        for version in (0, 1):
            client = new_client()
            entity = (("client-id", client),)
            equal(alter(connection, {"client-id": client}, version, producer_byte_rate=5e6, consumer_byte_rate=7e6), 0)
            wait_for(connection, client, {"producer_byte_rate": 5e6, "consumer_byte_rate": 7e6})
            equal(describe(connection, ("client-id", EXACT, client), version=version)[1], {entity: {"producer_byte_rate": 5e6, "consumer_byte_rate": 7e6}})
            equal(alter(connection, {"client-id": client}, version, consumer_byte_rate=None), 0)
            wait_for(connection, client, {"producer_byte_rate": 5e6})
            equal(alter(connection, {"client-id": client}, version, producer_byte_rate=None), 0)
            wait_for(connection, client, {})


def test_a_filter_finds_names_defaults_and_combinations():
    with connect() as connection:
        user, client = new_client(), new_client()
        entities = [{"user": user}, {"user": user, "client-id": client}, {"user": user, "client-id": None}]
        for entity in entities:
            equal(alter(connection, entity, producer_byte_rate=1e6), 0)
        found = lambda *components, **more: describe(connection, *components, **more)[1]  # noqa: E731
        deadline = time.monotonic() + 10 * checks.SLOWNESS
        while len(found(("user", EXACT, user))) < 3 and time.monotonic() < deadline:
            ask_again(0.02)
        just, both, default = ((("user", user),), (("client-id", client), ("user", user)), (("client-id", None), ("user", user)))
        equal(set(found(("user", EXACT, user))), {just, both, default})
        equal(set(found(("user", EXACT, user), strict=True)), {just})
        equal(set(found(("user", EXACT, user), ("client-id", EXACT, client))), {both})
        equal(set(found(("user", EXACT, user), ("client-id", DEFAULT, None))), {default})
        equal(set(found(("user", EXACT, user), ("client-id", SPECIFIED, None))), {both, default})
        equal(found(("ip", SPECIFIED, None), strict=True), {})
        for components, error in [
            ([("user", EXACT, None)], INVALID_REQUEST),
            ([("user", DEFAULT, "name")], INVALID_REQUEST),
            ([("user", SPECIFIED, "name")], INVALID_REQUEST),
            ([("user", 3, None)], INVALID_REQUEST),
            ([("", SPECIFIED, None)], INVALID_REQUEST),
            ([("user", SPECIFIED, None), ("user", SPECIFIED, None)], INVALID_REQUEST),
            ([("user", SPECIFIED, None), ("ip", SPECIFIED, None)], INVALID_REQUEST),
            ([("group", SPECIFIED, None)], UNSUPPORTED_VERSION),
        ]:
            equal(describe(connection, *components), (error, {}), f"{components}")
        for entity in entities:
            equal(alter(connection, entity, producer_byte_rate=None), 0)


def test_what_is_no_quota_is_refused_and_a_validation_sets_nothing():
    with connect() as connection:
        client = new_client()
        for entity, quotas in [
            ({}, {"producer_byte_rate": 1.0}),
            ({"group": "g"}, {"producer_byte_rate": 1.0}),
            ({"client-id": ""}, {"producer_byte_rate": 1.0}),
            ({"client-id": client, "ip": "10.0.0.1"}, {"producer_byte_rate": 1.0}),
            ({"client-id": client}, {"no_such_quota": 1.0}),
            ({"client-id": client}, {"producer_byte_rate": -1.0}),
            ({"client-id": client}, {"producer_byte_rate": 0.5}),
        ]:
            equal(alter(connection, entity, **quotas), INVALID_REQUEST, f"{entity} {quotas}")
        equal(alter(connection, {"client-id": client}, no_such_quota=None), 0, "what is not there may be taken back")
        check(alter(connection, {"client-id": client}, validate_only=True, controller_mutation_rate=50.0), "quota that is not enforced")
        equal(alter(connection, {"client-id": client}, validate_only=True, producer_byte_rate=1e6), 0)
        time.sleep(0.2)
        equal(describe(connection, ("client-id", EXACT, client)), (0, {}))


def test_a_producer_above_its_quota_is_answered_at_once_and_not_listened_to_for_a_while():
    with connect() as setup, connect() as connection:
        topic, client = new_topic(setup), new_client()
        equal(alter(setup, {"client-id": client}, producer_byte_rate=10_000.0), 0)
        wait_for(setup, client, {"producer_byte_rate": 10_000.0})
        body = produce_body(topic, batch([bytes(60_000)]))
        rests = []
        for _ in range(2):
            began = time.monotonic()
            answer = call_as(connection, client, "Produce", PRODUCE_BY_NAME, body)
            equal(answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"], 0)
            assert time.monotonic() - began < 1, "the answer waited"
            rests.append(answer["ThrottleTimeMs"])
        # 120 KB in a window of ten seconds of 10 KB/s: 20 KB too much, two seconds' worth.
        equal(rests[0], 0)
        assert 1000 <= rests[1] <= 3000, rests
        began = time.monotonic()
        call_as(connection, client, "Metadata", 12, {"Topics": []})
        waited_ms = (time.monotonic() - began) * 1000
        assert waited_ms >= rests[1] - 200, f"listened to after {waited_ms:.0f} of {rests[1]} ms"
        equal(call_as(setup, new_client(), "Produce", PRODUCE_BY_NAME, body)["ThrottleTimeMs"], 0, "others are not slowed")
        equal(len(fetched_values(setup, topic)), 3)
        equal(alter(setup, {"client-id": client}, producer_byte_rate=None), 0)


def test_a_producer_that_wants_no_answers_is_not_listened_to_either():
    with connect() as setup, connect() as connection:
        topic, client = new_topic(setup), new_client()
        equal(alter(setup, {"client-id": client}, producer_byte_rate=10_000.0), 0)
        wait_for(setup, client, {"producer_byte_rate": 10_000.0})
        body = produce_body(topic, batch([bytes(120_000)]), acks=0)
        header = request_header("Produce", PRODUCE_BY_NAME, next(connection.correlation_ids), client)
        connection.send_frame(header + schema.encode("ProduceRequest", PRODUCE_BY_NAME, body))
        eventually("the record is there", lambda: len(fetched_values(setup, topic)) == 1)
        # 20 KB too much, two seconds' worth.
        began = time.monotonic()
        call_as(connection, client, "Metadata", 12, {"Topics": []})
        waited = time.monotonic() - began
        assert 1 <= waited <= 3, f"listened to after {waited:.1f} s"
        equal(alter(setup, {"client-id": client}, producer_byte_rate=None), 0)


def test_a_quota_of_a_user_s_client_comes_before_that_of_the_client():
    with connect() as connection:
        topic, client = new_topic(connection), new_client()
        both = {"user": "ANONYMOUS", "client-id": client}
        equal(alter(connection, {"client-id": client}, producer_byte_rate=1e9), 0)
        equal(alter(connection, both, producer_byte_rate=1000.0), 0)
        wait_for(connection, client, {"producer_byte_rate": 1e9})
        wanted = [("user", EXACT, "ANONYMOUS"), ("client-id", EXACT, client)]
        eventually("the quota holds", lambda: describe(connection, *wanted)[1])
        time.sleep(0.1)
        with connect() as other:
            body = produce_body(topic, batch([bytes(11_000)]))
            rest_ms = call_as(other, client, "Produce", PRODUCE_BY_NAME, body)["ThrottleTimeMs"]
            assert 500 <= rest_ms <= 2500, rest_ms
        for entity in (both, {"client-id": client}):
            equal(alter(connection, entity, producer_byte_rate=None), 0)


def test_a_consumer_above_its_quota_is_told_to_rest_and_gets_its_records_later():
    with connect() as setup, connect() as connection:
        topic, client = new_topic(setup), new_client()
        for _ in range(3):
            equal(call_as(setup, "loader", "Produce", PRODUCE_BY_NAME, produce_body(topic, batch([bytes(60_000)])))["ThrottleTimeMs"], 0)
        equal(alter(setup, {"client-id": client}, consumer_byte_rate=10_000.0), 0)
        wait_for(setup, client, {"consumer_byte_rate": 10_000.0})
        # Each batch comes whole, however little is asked for, and counts whole.
        ask = lambda offset: call_as(connection, client, "Fetch", FETCH_BY_NAME, fetch_body([(topic, 0, offset)], partition_max_bytes=1000))  # noqa: E731
        first = ask(0)
        equal((first["ThrottleTimeMs"], len(batches(first["Responses"][0]["Partitions"][0]["Records"]))), (0, 1))
        second = ask(1)
        equal(second["Responses"], [], "a fetch that has to rest")
        assert 1000 <= second["ThrottleTimeMs"] <= 3000, second["ThrottleTimeMs"]
        equal(alter(setup, {"client-id": client}, consumer_byte_rate=None), 0)
        wait_for(setup, client, {})
        third = ask(1)
        # Kafka may give nothing once more, for what it counted before.
        deadline = time.monotonic() + 10 * checks.SLOWNESS
        while checks.broker_kind() == "kafka" and not (third["Responses"] and third["Responses"][0]["Partitions"][0]["Records"]):
            assert time.monotonic() < deadline, "the records never come"
            ask_again(0.1)
            third = ask(1)
        equal((third["ThrottleTimeMs"], len(batches(third["Responses"][0]["Partitions"][0]["Records"]))), (0, 1))


def test_a_client_whose_requests_take_too_much_time_is_told_to_rest_for_a_second_at_most():
    with connect() as setup, connect() as connection:
        client = new_client()
        equal(alter(setup, {"client-id": client}, request_percentage=0.01), 0)
        wait_for(setup, client, {"request_percentage": 0.01})
        # A hundredth of a percent is a millisecond in the window of ten seconds.
        asked = (call_as(connection, client, "Metadata", 12, {"Topics": []})["ThrottleTimeMs"] for _ in range(2000))
        with unrecorded():
            rest_ms = next(ms for ms in asked if ms > 0)
        assert rest_ms <= 1000, rest_ms
        began = time.monotonic()
        call_as(connection, client, "Metadata", 12, {"Topics": []})
        waited_ms = (time.monotonic() - began) * 1000
        assert waited_ms >= rest_ms - 50, f"listened to after {waited_ms:.0f} of {rest_ms} ms"
        equal(call_as(setup, new_client(), "Metadata", 12, {"Topics": []})["ThrottleTimeMs"], 0, "others are not slowed")
        equal(alter(setup, {"client-id": client}, request_percentage=None), 0)
