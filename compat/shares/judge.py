"""What is wrong with what the consumers of one share group were told, as sentences; nothing if all is well.

A place is a partition and an offset. Of each record that was written the group must get rid, by a decision that was taken, and
by one only: none is lost, and none comes again though somebody was told that it is accepted. Where a consumer does not know
whether its decision was taken, both is right.
"""

from collections import Counter


def judge(written, told, left):
    """`written` are places; `told` are lines of all consumers, (what, place); `left` are places that the group still gives out
    when all of them are gone."""
    by_what = {what: Counter(place for said, place in told if said == what) for what in ("delivered", "accepted", "unknown")}
    delivered, accepted, unknown = (by_what[what] for what in ("delivered", "accepted", "unknown"))
    left = set(left)
    wrong = [f"{place} was accepted {count} times" for place, count in accepted.items() if count > 1]
    wrong += [f"{place} was accepted, and came again" for place in left & accepted.keys()]
    wrong += [f"{place} was decided on, and nobody got it" for place in (accepted.keys() | unknown.keys()) - delivered.keys()]
    wrong += [f"{place} was lost" for place in written if place not in accepted and place not in unknown and place not in left]
    wrong += [f"{place} was never written" for place in delivered.keys() - set(written)]
    return sorted(wrong)
