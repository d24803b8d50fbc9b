"""A sound history passes, and each harm to it is found: test_judge.py itself"""

import copy

from checks import equal
from judge import judge

SENT = {(partition, offset): f"{partition}.{offset}" for partition in (0, 1) for offset in range(3)}
PROCESSED = [(partition, offset, value) for (partition, offset), value in SENT.items()]
COMMITTED = [{}, {0: 1}, {0: 1, 1: 2}, {0: 3, 1: 3}]


def harmed(harm):
    sent, processed, committed = copy.deepcopy((SENT, PROCESSED, COMMITTED))
    harm(sent, processed, committed)
    return judge(sent, processed, committed)


def test_a_sound_history_passes_with_repeats_too():
    equal(judge(SENT, PROCESSED, COMMITTED), [])
    equal(judge(SENT, PROCESSED + PROCESSED[:4], COMMITTED), [])
    equal(judge(SENT, PROCESSED, [*COMMITTED[:3], {}, COMMITTED[3]], moves_back=True), [])


def test_every_harm_is_found():
    harms = {
        "never processed": lambda sent, processed, committed: processed.pop(2),
        "sent was": lambda sent, processed, committed: processed.append((0, 1, "other")),
        "sent was None": lambda sent, processed, committed: processed.append((0, 7, "0.7")),
        "went from 2 back to 1": lambda sent, processed, committed: committed.insert(3, {0: 2, 1: 1}),
        "went from 1 back to None": lambda sent, processed, committed: committed.insert(2, {}),
        "committed is {0: 3, 1: 2}": lambda sent, processed, committed: committed.__setitem__(-1, {0: 3, 1: 2}),
        "committed is None": lambda sent, processed, committed: committed.clear(),
    }
    for sentence, harm in harms.items():
        found = harmed(harm)
        assert len(found) == 1 and sentence in found[0], f"{sentence}: {found}"
