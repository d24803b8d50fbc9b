"""The judge finds each fault of a history that was sound before."""

from checks import equal
from judge import judge

WRITTEN = [(0, offset) for offset in range(6)]
# The first was released once; of the fourth nobody knows; the fifth is left, and the sixth too, though it may be accepted.
TOLD = [("delivered", place) for place in [*WRITTEN, (0, 0)]]
TOLD += [("accepted", (0, offset)) for offset in range(3)] + [("unknown", (0, 3)), ("unknown", (0, 5))]
LEFT = [(0, 4), (0, 5)]


def test_a_sound_history_is_sound():
    equal(judge(WRITTEN, TOLD, LEFT), [])


def test_each_fault_is_found():
    equal(judge(WRITTEN, [*TOLD, ("accepted", (0, 1))], LEFT), ["(0, 1) was accepted 2 times"])
    equal(judge(WRITTEN, TOLD, [*LEFT, (0, 2)]), ["(0, 2) was accepted, and came again"])
    equal(judge(WRITTEN, TOLD, [(0, 5)]), ["(0, 4) was lost"])
    equal(judge([*WRITTEN, (1, 0)], TOLD, LEFT), ["(1, 0) was lost"])
    equal(judge(WRITTEN, [*TOLD, ("delivered", (0, 9))], LEFT), ["(0, 9) was never written"])
    equal(judge([*WRITTEN, (0, 6)], [*TOLD, ("accepted", (0, 6))], LEFT), ["(0, 6) was decided on, and nobody got it"])
