"""Apache Kafka's answers as golden files, `golden/VERSION/TEST_FILE.json`: every test's requests, each with its answer.

Against Kafka a test fails if an answer differs from the file; COMPAT_WRITE_GOLDEN=1 writes the file anew.
Against Duramen a test fails if an answer differs from the file, and `differences.py` does not list the difference.
"""

import copy
import json
import os
import re
import sys
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import batch
import checks
import differences

ABSENT = differences.ABSENT
HERE = Path(__file__).resolve().parent
WRITES = bool(os.environ.get("COMPAT_WRITE_GOLDEN"))
REWRITE = "COMPAT_WRITE_GOLDEN=1 compat/run.sh --broker kafka --suite wire"
WAYS_OUT = {
    "duramen": f"Mend Duramen, or list the field in wire/differences.py with the reason. If the test has changed: {REWRITE}",
    "kafka": f"If the test or Kafka's version has changed: {REWRITE}",
}

# Tests without a golden record, each with the reason. Their own assertions remain.
UNRECORDED = {
    "test_a_broker_has_no_more_share_sessions_than_it_may": "Kafka may answer before it has read anything.",
    "test_a_connection_closes_only_after_the_requests_before_the_bad_one_were_answered": "An answer may be lost with its connection.",
    "test_a_classic_group_has_no_more_members_than_it_may": "Two members ask at the same time.",
    "test_a_repeat_that_overtakes_its_first_answer_lands_once": "Two connections write at the same time.",
    "test_a_wrong_leader_epoch_is_fenced_or_unknown": "It asks with an older epoch where there is one; Kafka begins with epoch 0.",
    "test_all_topics_are_described_if_none_is_named": "It goes through the topics of all tests before it, page by page.",
    "test_null_records_are_answered_or_close_the_connection": "Kafka fails and does not answer, so it is not asked.",
    "test_settings_of_a_running_broker_reach_the_topics_that_do_not_override_them": "It writes until a setting holds.",
    "test_the_same_settings_of_a_node_are_live": "It asks about the settings that both brokers have and that an answer lists.",
}

# --- Normalisation: what no two runs, or no two brokers, have in common. ---
# A field stands here by its name, or as API.NAME where another API has one of this name.

# Texts for people, which the tests assert where clients read them, and durations.
LEFT_OUT = {"ErrorMessage", "BatchIndexErrorMessage", "ThrottleTimeMs", "Documentation"}
# Fields of which only the presence remains: each broker begins its epochs, and the metadata's log, at a number of its own.
PRESENT = {
    "CommittedLeaderEpoch", "CurrentLeaderEpoch", "LeaderEpoch", "PartitionLeaderEpoch", "CoordinatorEpoch", "FinalizedFeaturesEpoch",
    "DescribeQuorum.HighWatermark", "DescribeQuorum.LogEndOffset", "Port", "TotalBytes", "UsableBytes",
    "AssignmentEpoch", "GenerationIdOrMemberEpoch", "GroupEpoch", "MemberEpoch",
}  # fmt: skip
# Fields whose values are numbered, in the order in which a test meets them; the same value has the same number. Every UUID
# is numbered, too.
NUMBERED = {
    "ClusterId": "cluster",
    "ProducerId": "producer",
    "ProducerIdFilters": "producer",
    "V3AndBelowProducerId": "producer",
    "SessionId": "session",
}
# Fields in which 0 means that there is none.
FROM_1 = {"AssignmentEpoch", "GenerationIdOrMemberEpoch", "GroupEpoch", "MemberEpoch", "SessionId"}
UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|^[\w-]{22}$")
ADDRESS = re.compile(r"\b127\.0\.0\.1:\d+\b")
NO_UUID = "00000000-0000-0000-0000-000000000000"
# A time in milliseconds this near to the present is one of the run; others are a test's own.
NOW_MS = 30 * 86_400_000
# Number that `checks.unique` puts at the end of a name. Some answers list other tests' topics and groups: none is kept.
MADE = re.compile(r"(?<![0-9A-Za-z])(?:gw\d+)?1\d{10}(?![0-9A-Za-z])")
# An answer that lists all settings of something is kept without those of the brokers' files, and those at their default:
# `test_settings.py` has tables of them. Which loggers there are depends on the classes that Kafka has loaded by then.
UNLISTED_CONFIGS = STATIC_CONFIG, DEFAULT_CONFIG, LOGGER_CONFIG = 4, 5, 6
# The partition of a group's or a producer's coordinator comes from a hash of its name.
INTERNAL = {"__consumer_offsets", "__transaction_state", "__share_group_state"}
LONGEST_TEXT = 300
LONGEST_RECORDS = 20_000
LONGEST_MESSAGE = 2000
# How many of a test's exchanges, and of an answer's fields, a failure shows.
SHOWN = 5

# Fields that identify the elements of an array.
KEYS = (
    "Name", "Topic", "TopicName", "TopicId", "ResourceName", "Partition", "PartitionIndex", "ApiKey", "GroupId", "TransactionalId", "MemberId",
    "Feature", "BrokerId", "NodeId",
)  # fmt: skip


class Normalised:
    """The requests and answers of one test, without what differs from run to run."""

    def __init__(self, numbers):
        self.names = {number: f"#{place}" for place, number in enumerate(numbers, 1)}
        self.numbers = {}
        self.now_ms = time.time() * 1000
        directory = os.environ.get("DATA_DIR", "-")
        # Kafka's logs are a directory below.
        self.places = {f"{directory}/log": "<directory>", directory: "<directory>", checks.bootstrap() or "-": "<broker>"}
        self.places[os.environ.get("STRICT_BOOTSTRAP", "-")] = "<strict broker>"
        self.places.pop("-", None)

    def exchange(self, each):
        self.api = each.api
        named = any(resource.get("ConfigurationKeys") for resource in each.request.get("Resources", ()))
        return [each.api, each.version, self.value(each.request), self.value(self.arranged(each.answer, named))]

    def arranged(self, value, all_settings):
        """Arrays of structures in an order of their contents, and only with what is this test's."""
        if isinstance(value, dict):
            if INTERNAL & {value.get("Topic"), value.get("Name")} and isinstance(value.get("Partitions"), list):
                value = {**value, "Partitions": f"<{len(value['Partitions'])} of them>"}
            return {name: self.arranged(inner, all_settings) for name, inner in value.items()}
        if not isinstance(value, list):
            return value
        if not all(isinstance(element, dict) for element in value):
            return sorted(value) if all(isinstance(element, int) for element in value) else value
        own = [self.arranged(element, all_settings) for element in value if not self.is_foreign(element)]
        if not all_settings:
            own = [element for element in own if element.get("ConfigSource") not in UNLISTED_CONFIGS]
        return sorted(own, key=self.place)

    def is_foreign(self, element):
        names = [element[key] for key in KEYS if isinstance(element.get(key), str)]
        return any(number[0] not in self.names for name in names for number in MADE.finditer(name))

    def place(self, element):
        known = self.numbers.get("uuid", {})
        return UUID.sub(lambda match: str(known.get(match[0], "")), self.own(str(element)))

    def own(self, text):
        return MADE.sub(lambda match: self.names.get(match[0], match[0]), text)

    def value(self, value, field=""):
        if isinstance(value, dict):
            return {name: self.value(inner, name) for name, inner in value.items() if name not in LEFT_OUT}
        if isinstance(value, (list, tuple)):
            return [self.value(element, field) for element in value]
        if field == "Records":
            return self.records(value)
        if isinstance(value, (bytes, bytearray)):
            value = bytes(value).decode("latin-1") if len(value) <= LONGEST_TEXT else f"<{len(value)} bytes>"
        if value is None or isinstance(value, bool) or value == "":
            return value
        is_number = isinstance(value, (int, float))
        if is_number and value < (1 if field in FROM_1 else 0):
            return value
        if {field, f"{self.api}.{field}"} & PRESENT:
            return "<some>"
        if field in NUMBERED:
            return self.number(NUMBERED[field], value)
        if is_number:
            return "<now>" if abs(value - self.now_ms) < NOW_MS else value
        return self.text(value)

    def text(self, value):
        for place, name in self.places.items():
            value = value.replace(place, name)
        value = ADDRESS.sub("<address>", value)
        value = UUID.sub(lambda match: match[0] if match[0] == NO_UUID else self.number("uuid", match[0]), self.own(value))
        return value if len(value) <= LONGEST_TEXT else f"<{len(value)} characters>"

    def number(self, kind, value):
        of_kind = self.numbers.setdefault(kind, {})
        return f"<{kind} {of_kind.setdefault(value, len(of_kind) + 1)}>"

    def records(self, data):
        """The whole batches, in short; or the number of bytes that are none."""
        if not data:
            return data if data is None else ""
        if len(data) > LONGEST_RECORDS:
            return f"<{len(data)} bytes>"
        try:
            return list(self.batches(data)) or f"<{len(data)} bytes>"
        except (AssertionError, IndexError):
            return f"<{len(data)} bytes>"

    def batches(self, data):
        """Each whole batch. A client ignores one that is cut at the end of an answer."""
        while len(data) >= batch.HEADER.size:
            each = batch.Batch(data)
            assert each.magic == 2 and each.length >= 49 and 0 <= each.count <= each.length
            if len(each.bytes) < each.length + 12:
                return
            yield self.batch(each)
            data = data[each.length + 12 :]

    def batch(self, each):
        kept = {"at": each.base_offset, "last": each.last_offset, "time": self.value(each.base_timestamp)}
        if each.attributes:
            kept["attributes"] = each.attributes
        if each.max_timestamp != each.base_timestamp:
            kept["until"] = self.value(each.max_timestamp)
        if each.count != each.last_offset_delta + 1:
            kept["count"] = each.count
        if each.producer_id >= 0:
            kept |= {"producer": self.value(each.producer_id, "ProducerId"), "epoch": each.epoch, "sequence": each.sequence}
        if not each.crc_is_right():
            kept["crc"] = "wrong"
        if each.attributes & 7 or len(each.bytes) > LONGEST_TEXT:
            return {**kept, "bytes": len(each.bytes)}
        if each.attributes & batch.CONTROL:
            return {**kept, "keys": [(key or b"").hex() for key, _ in each.records()]}
        return {**kept, "values": [self.value(value) for value in each.values()]}


# --- Recording ---


class Exchange:
    def __init__(self, api, version, request):
        self.api, self.version, self.request = api, version, copy.deepcopy(request)
        self.answer = "<not read>"

    def is_answered(self, answer):
        self.answer = copy.deepcopy(answer)


class Recorder:
    """What the running test asks, and what it is answered. Nothing is kept between tests, nor while `on` is not set."""

    def __init__(self):
        self.on = False
        self.exchanges = []

    def begin(self):
        checks.made.clear()
        differences.used.clear()
        self.exchanges, self.on = [], True

    def asked(self, api, version, request):
        """Returns the exchange that waits for its answer, if one is recorded."""
        if not self.on:
            return None
        self.exchanges.append(Exchange(api, version, request))
        return self.exchanges[-1]

    def normalised(self):
        normalised = Normalised(checks.made)
        return [normalised.exchange(each) for each in self.exchanges]


recorder = Recorder()


@contextmanager
def unrecorded():
    """What is asked inside is no part of the record: preparations, and what is asked until something has happened."""
    before, recorder.on = recorder.on, False
    try:
        yield
    finally:
        recorder.on = before


def ask_again(pause_s=0.0):
    """Forgets the last request and its answer: the same is asked again after a pause, and only the last answer counts."""
    if recorder.on:
        recorder.exchanges.pop()
    time.sleep(pause_s)


def eventually(what, holds, timeout_s=10):
    """As `checks.eventually`; only what is asked by the last try is recorded."""
    before = len(recorder.exchanges)

    def tried():
        if recorder.on:
            del recorder.exchanges[before:]
        return holds()

    return checks.eventually(what, tried, timeout_s)


# --- Golden files ---


@cache
def kafka_version():
    return re.search(r"<kafka.version>(.+)</kafka.version>", (HERE.parent / "kafka/pom.xml").read_text())[1]


def path_of(file):
    return HERE / "golden" / kafka_version() / f"{file}.json"


@cache
def kept(file):
    """By test the exchanges with Kafka."""
    path = path_of(file)
    return json.loads(path.read_text()) if path.exists() else {}


# By file and test what is to be written.
fresh = {}


def judge(file, test):
    """Compares the exchanges of a test with those that Kafka had. Returns in words what is wrong, if anything is."""
    if test in UNRECORDED:
        return ""
    exchanges = json.loads(json.dumps(recorder.normalised()))
    if WRITES and checks.broker_kind() == "kafka":
        fresh.setdefault(file, {})[test] = exchanges
        return ""
    wrong = list(compare(test, kept(file).get(test, []), exchanges))
    found = f"{test}: {len(wrong)} of {len(exchanges)} exchanges are others than with Kafka {kafka_version()}"
    return "\n".join([found, *wrong[:SHOWN], WAYS_OUT[checks.broker_kind()]]) if wrong else ""


def compare(test, kafkas, exchanges):
    """Yields in words each answer that is another than Kafka's, up to the first request that is another."""
    for number, (kafka, now) in enumerate(zip(kafkas, exchanges), 1):
        request = f"  request {number}: {in_short(now[:3])}"
        if kafka[:3] != now[:3]:
            yield "\n".join([f"{request}\n    Kafka was asked: {in_short(kafka[:3])}", "    It comes from another answer, or the test has changed."])
            return
        differ = [each for each in differing(kafka[3], now[3], kafka[0]) if not differences.allows(test, *each)]
        if differ:
            fields = [f"    {field}: {in_short(theirs)} in the golden file, now {in_short(ours)}" for field, theirs, ours in differ[:SHOWN]]
            answers = [f"    golden file: {in_short(kafka[3])}", f"    {checks.broker_kind():11}: {in_short(now[3])}"]
            yield "\n".join([request, *fields, *answers])
    if len(kafkas) != len(exchanges):
        yield f"  {len(exchanges)} requests, of which the golden file has {len(kafkas)}: the test has changed, or it is new."


def differing(kafka, now, field):
    """Yields each field that differs, with both values. Beside an error code that differs, what else does follows from it."""
    if isinstance(kafka, dict) and isinstance(now, dict):
        if kafka.get("ErrorCode") != now.get("ErrorCode"):
            yield f"{field}.ErrorCode", kafka.get("ErrorCode"), now.get("ErrorCode")
            return
        for name in sorted({*kafka, *now}):
            yield from differing(kafka.get(name, ABSENT), now.get(name, ABSENT), f"{field}.{name}")
    elif isinstance(kafka, list) and isinstance(now, list):
        by_key, now_by_key = keyed(kafka), keyed(now)
        for key in sorted({*by_key, *now_by_key}, key=str):
            if key in by_key and key in now_by_key:
                yield from differing(by_key[key], now_by_key[key], field)
            else:
                yield field, key if key in by_key else ABSENT, key if key in now_by_key else ABSENT
    elif kafka != now:
        yield field, kafka, now


def keyed(elements):
    """By their names, if all have one; else by their places."""
    keys = [next((element[key] for key in KEYS if element.get(key) is not None), None) for element in elements if isinstance(element, dict)]
    if len(set(keys)) == len(elements) and None not in keys:
        return dict(zip(keys, elements))
    return dict(enumerate(elements))


def in_short(value):
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…"


def write():
    """Writes the golden files of the tests that ran: one exchange a line. Tests that are gone go from the file."""
    for file, tests in fresh.items():
        there = {test: exchanges for test, exchanges in {**kept(file), **tests}.items() if exchanges and hasattr(sys.modules[file], test)}
        blocks = []
        for test, exchanges in sorted(there.items()):
            lines = ",\n".join(json.dumps(exchange, sort_keys=True, separators=(",", ":"), ensure_ascii=False) for exchange in exchanges)
            blocks.append(f"{json.dumps(test)}: [\n{lines}\n]")
        if not there:
            continue
        path = path_of(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{\n" + ",\n".join(blocks) + "\n}\n")
