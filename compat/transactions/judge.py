"""Compares what a transactional loop was told with what readers of committed records find.

A loop reads the numbers 0, 1, 2... and writes `NUMBER ATTEMPT` into each of two partitions, and its next offset, by one
transaction for each attempt. `told` has ("committed", attempt, next) and ("aborted", attempt); of an attempt that is not
there nobody knows how it ended, and then either of it is right, but all of it.
"""


def judge(told, found, shown, offset):
    """Returns what is wrong, as sentences. `found` and `shown` have a list of values for each of the partitions, read at the
    end and meanwhile; `offset` is what the group has committed."""
    wrong = []
    for partition, values in enumerate(found):
        numbers = [int(value.split()[0]) for value in values]
        for at, number in enumerate(numbers):
            if number != at:
                wrong.append(f"partition {partition}: {values[at]} where {at} should be")
                break
        if len(values) != offset:
            wrong.append(f"partition {partition} has {len(values)} values, and the group has committed {offset}")
        if shown[partition] != values[: len(shown[partition])]:
            at = next(at for at, value in enumerate(shown[partition]) if values[at : at + 1] != [value])
            wrong.append(f"partition {partition} showed {shown[partition][at]} at {at}, where later {values[at : at + 1]} was")
    if found[0] != found[1]:
        wrong.append("the two partitions differ")
    visible = {value.split()[1] for values in found for value in values}
    for outcome, attempt, *after in told:
        if outcome == "aborted" and attempt in visible:
            wrong.append(f"{attempt} was aborted and is seen")
        if outcome == "committed" and attempt not in visible:
            wrong.append(f"{attempt} was committed and is not seen")
        if outcome == "committed" and after[0] > offset:
            wrong.append(f"{attempt} committed the offset {after[0]}, and now it is {offset}")
    return wrong
