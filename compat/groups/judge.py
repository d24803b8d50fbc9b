"""Says what is wrong with what a group processed and committed."""


def judge(sent, processed, committed, moves_back=False):
    """Returns sentences.

    `sent` is {(partition, offset): value}. `processed` is [(partition, offset, value)] of all members. `committed` is
    [{partition: offset}], the group's positions as they were seen one after the other; the last are those at the end.
    With `moves_back` the client may move a position back.
    """
    wrong = []
    seen = {}
    for partition, offset, value in processed:
        if sent.get((partition, offset)) != value:
            wrong.append(f"at {partition}/{offset} {value!r} was processed, sent was {sent.get((partition, offset))!r}")
        seen[partition, offset] = value
    wrong += [f"{partition}/{offset} was never processed" for partition, offset in sorted(sent.keys() - seen.keys())]
    wrong += [] if moves_back else _moves_back(committed)
    ends = {}
    for partition, offset in sent:
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    if not committed or committed[-1] != ends:
        wrong.append(f"the partitions end at {ends}, committed is {committed[-1] if committed else None}")
    return wrong


def _moves_back(committed):
    highest = {}
    for positions in committed:
        for partition, offset in highest.items():
            if positions.get(partition, -1) < offset:
                yield f"the position in partition {partition} went from {offset} back to {positions.get(partition)}"
        highest |= positions
