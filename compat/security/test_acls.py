"""The matrix of requests and rules: what each request is answered under each rule. Kafka's answers are in `acls.expected.json`."""

import json
import os
import re
from pathlib import Path

import pytest

from broker import COMPAT
from checks import broker_kind, equal
from matrix import STATES, World, base

EXPECTED = Path(__file__).resolve().parent / "acls.expected.json"
WRITES = bool(os.environ.get("COMPAT_WRITE_GOLDEN"))
REWRITE = "COMPAT_WRITE_GOLDEN=1 compat/run.sh --broker kafka --suite security"

# Requests that Duramen answers otherwise on purpose: a regular expression for Kafka's outcome, its replacement in Duramen's, the reason.
# Duramen's outcome must have the replacement wherever Kafka's has the expression.
DIFFERENCES = {
    "Fetch of a replica": (
        "Partitions.ErrorCode 6",
        "Partitions.ErrorCode 0",
        "Kafka knows no such replica. Duramen's nodes fetch by other means; a client that may name a replica id reads as others do.",
    ),
    "Metadata of a missing topic": ("; Topics.TopicAuthorizedOperations .*", "", "Kafka has a set of operations for a topic that does not exist."),
    "Metadata, which creates": (
        "^Topics.ErrorCode 3$",
        "Topics.ErrorCode 0; Topics.Partitions.ErrorCode 0",
        "Duramen answers when the topic is there, Kafka before.",
    ),
    "DescribeUserScramCredentials": ("; Results.ErrorCode 31", "", "Kafka repeats the refusal beside each user."),
    "AlterShareGroupOffsets": (
        "ErrorCode 29; Responses.TopicId id of acl-topic",
        "ErrorCode 29",
        "Kafka's refusal has the topic's id, and so tells that the topic exists.",
    ),
}


@pytest.fixture(scope="module")
def world(guarded):
    return World(guarded)


def expected(state):
    """Kafka's outcome of each request. The file has it where it is another one than that of the base state."""
    return {name: outcomes.get(state, outcomes[base(state)]) for name, outcomes in json.loads(EXPECTED.read_text()).items()}


def ours(name, kafkas):
    pattern, replacement, _reason = DIFFERENCES.get(name, ("$^", "", ""))
    return re.sub(pattern, replacement, kafkas) if broker_kind() == "duramen" else kafkas


@pytest.fixture(scope="module")
def written():
    """The outcomes of all states, of which the file of expectations is made."""
    found = {}
    yield found
    if found and WRITES and broker_kind() == "kafka":
        assert found.keys() == STATES.keys(), "all states are written at once"

        def differing(name):
            return {state: found[state][name] for state in STATES if state == base(state) or found[state][name] != found[base(state)][name]}

        EXPECTED.write_text(json.dumps({name: differing(name) for name in found["none"]}, indent=1) + "\n")


@pytest.mark.parametrize("state", STATES)
def test_each_request_is_answered_as_kafka_does_under_a_rule(world, written, state):
    found = written[state] = world.outcomes(state)
    if WRITES and broker_kind() == "kafka":
        return
    kafkas = expected(state)
    equal(found.keys(), kafkas.keys(), f"requests; if they have changed: {REWRITE}")
    wanted = {name: ours(name, kafkas[name]) for name in found}
    wrong = [f"{name}\n    expected {wanted[name]}\n         got {found[name]}" for name in found if found[name] != wanted[name]]
    assert not wrong, "\n".join([f"under the rule {state!r}:", *wrong])


def test_each_difference_is_one_of_what_kafka_answers():
    table = json.loads(EXPECTED.read_text())
    unused = [name for name, (pattern, _, _) in DIFFERENCES.items() if not any(re.search(pattern, it) for it in table[name].values())]
    equal(unused, [])


# Questions that no request of the matrix asks, each with the reason.
UNASKED = {
    ("JoinGroup", "Describe", "Topic"): "it is left out, where others subscribe by regular expressions",
    ("DescribeReplicas", "Describe", "Cluster"): "of Duramen alone",
    ("DescribeFast", "Write", "Topic"): "of Duramen alone",
    ("AppendFast", "Write", "Topic"): "of Duramen alone",
    ("BeginBackup", "Alter", "Cluster"): "of Duramen alone",
}


def test_each_question_matters_to_some_answer():
    """Each row of docs/access.md has a request of its API whose answer is another one with the right, or without it."""
    table = json.loads(EXPECTED.read_text())

    def differs(outcomes, wanted):
        """Whether a state and the one without the right have other outcomes."""
        of = lambda state: outcomes.get(state, outcomes[base(state)])  # noqa: E731
        for state in STATES:
            effect, _, rights = state.partition(" ")
            others = [it for it in rights.split(", ") if it != wanted]
            without = f"{effect} {', '.join(others)}" if others else base(state)
            if wanted in rights.split(", ") and without in STATES and of(state) != of(without):
                return True
        return False

    def requests_of(api):
        return [outcomes for name, outcomes in table.items() if re.match(rf"{api}\b", name)]

    page = (COMPAT.parent / "docs/access.md").read_text().partition("## The native API")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in page.splitlines() if line.startswith("| ")]
    questions = [(api, right, kind.removeprefix("any ")) for api, right, kind, *_ in rows if kind not in ("none", "Resource")]
    assert len(questions) > 100, questions
    sets = {(api, right, kind) for api, right, kind in questions if right.startswith("each")}
    silent = {it for it in set(questions) - sets if not any(differs(outcomes, f"{it[2]} {it[1]}") for outcomes in requests_of(it[0]))}
    equal(silent, set(UNASKED))
    without = {api for api, *_ in sets if not any("AuthorizedOperations" in it for outcomes in requests_of(api) for it in outcomes.values())}
    equal(without, set(), "sets of operations")
