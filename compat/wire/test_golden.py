"""The comparison with Kafka's golden files finds every change of an answer. No broker is asked."""

import copy

import pytest

import golden

FILES = sorted(path.stem for path in golden.path_of("any").parent.glob("*.json"))


def harmed(value):
    """Yields the value with each of its fields changed, and each field and element left out, one at a time."""
    if isinstance(value, (dict, list)):
        for at in list(value) if isinstance(value, dict) else range(len(value)):
            without = copy.copy(value)
            del without[at]
            yield without
            for other in harmed(value[at]):
                changed = copy.copy(value)
                changed[at] = other
                yield changed
    else:
        yield "changed" if value is None or isinstance(value, str) else not value if isinstance(value, bool) else value + 1


@pytest.mark.parametrize("file", FILES)
def test_every_change_of_an_answer_is_found(file):
    found = 0
    for exchanges in golden.kept(file).values():
        for api, _, _, answer in exchanges[:4]:
            assert not list(golden.differing(answer, answer, api))
            for other in harmed(answer):
                assert list(golden.differing(answer, other, api)), f"{api}: {answer} and {other}"
                found += 1
    assert found > 50


def test_another_request_and_another_number_of_requests_are_found():
    request = ["Fetch", 12, {"MaxWaitMs": 0}]
    kafkas = [[*request, {"ErrorCode": 0}]]
    assert not list(golden.compare("a_test", kafkas, kafkas))
    for exchanges in ([], kafkas * 2, [["Fetch", 11, {"MaxWaitMs": 0}, {"ErrorCode": 0}]], [[*request, {"ErrorCode": 1}]]):
        assert len(list(golden.compare("a_test", kafkas, exchanges))) == 1, exchanges


def test_a_failure_shows_the_request_and_both_answers():
    [said] = golden.compare("a_test", [["Fetch", 12, {"MaxWaitMs": 7}, {"ErrorCode": 3}]], [["Fetch", 12, {"MaxWaitMs": 7}, {"ErrorCode": 0}]])
    for part in ("MaxWaitMs", "Fetch.ErrorCode: 3 in the golden file, now 0"):
        assert part in said, said


def test_each_kind_of_value_is_normalised():
    body = {"Name": "wire-10000000001", "Port": 9092, "ProducerId": 0, "LeaderEpoch": 0, "Other": 5}
    normalised = golden.Normalised(["10000000001"])
    normalised.api = "Any"
    expected = {"Name": "wire-#1", "Port": "<some>", "ProducerId": "<producer 1>", "LeaderEpoch": "<some>", "Other": 5}
    assert normalised.value(body) == expected
    assert normalised.value({"ProducerId": -1, "LeaderEpoch": -1}) == {"ProducerId": -1, "LeaderEpoch": -1}, "there is none"
    assert normalised.arranged([{"Name": "wire-10000000002"}], False) == [], "another test's"
