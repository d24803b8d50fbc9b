"""The judge must be able to find what it is there to find: each test harms a sound history in one way."""

from checks import equal
from judge import judge

ATTEMPTS = ["1.0", "1.0", "1.2", "1.2", "2.0", "2.0"]


def history():
    """Attempt 1.1 was aborted; nobody was told what became of 2.0, which was committed, and of 2.1, which was not."""
    values = [f"{number} {attempt}" for number, attempt in enumerate(ATTEMPTS)]
    told = [("committed", "1.0", 2), ("aborted", "1.1"), ("committed", "1.2", 4)]
    return {"told": told, "found": [list(values), list(values)], "shown": [values[:3], values[:1]], "offset": 6}


def test_a_sound_history_has_nothing_wrong():
    equal(judge(**history()), [])


def test_a_record_that_is_lost_doubled_or_swapped_is_found():
    for partition in range(2):
        for at in range(len(ATTEMPTS)):
            for harm in ("lost", "doubled", "swapped"):
                harmed = history()
                values = harmed["found"][partition]
                if harm == "lost":
                    del values[at]
                elif harm == "doubled":
                    values.insert(at, values[at])
                elif at > 0:
                    values[at - 1 : at + 1] = reversed(values[at - 1 : at + 1])
                else:
                    continue
                assert judge(**harmed), f"{harm} at {at} of {partition}"


def test_a_whole_attempt_that_is_lost_or_torn_is_found():
    for begin in (0, 2, 4):
        for partitions in ((0,), (1,), (0, 1)):
            harmed = history()
            for partition in partitions:
                del harmed["found"][partition][begin : begin + 2]
            assert judge(**harmed), f"{begin} of {partitions}"


def test_a_last_attempt_that_is_there_without_its_offset_or_only_its_offset_is_found():
    for offset in (4, 5, 8):
        assert judge(**{**history(), "offset": offset})
    harmed = history()
    for values in harmed["found"]:
        values += ["6 2.1", "7 2.1"]
    assert judge(**harmed)
    equal(judge(**{**harmed, "offset": 8}), [], "it may have been committed, if all of it was")


def test_an_aborted_attempt_that_takes_the_place_of_the_right_one_is_found():
    harmed = history()
    for values in harmed["found"]:
        values[2:4] = ["2 1.1", "3 1.1"]
    assert judge(**harmed)


def test_what_was_shown_and_is_not_there_is_found():
    harmed = history()
    harmed["shown"][0][2] = "2 1.1"
    assert judge(**harmed)
    harmed = history()
    harmed["shown"][1] = harmed["found"][1] + ["6 2.1"]
    assert judge(**harmed)


def test_a_commit_that_went_back_is_found():
    harmed = history()
    harmed["told"].append(("committed", "2.0", 9))
    assert judge(**harmed)
