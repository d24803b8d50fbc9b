"""The judge must be able to find what it is there to find: each test harms a sound history in one way."""

from checks import equal
from judge import Ack, Found, judge


def history():
    """Two producers in one partition: `once` is idempotent, `plain` repeated its batch 1, 2 after a lost answer."""
    keys = ["once:0", "plain:0", "once:1", "plain:1", "plain:2", "plain:1", "plain:2", "once:2", "plain:3"]
    found = [Found(0, offset, key, f"digest of {key}") for offset, key in enumerate(keys)]
    first = {key: keys.index(key) for key in keys}
    first["plain:1"], first["plain:2"] = 5, 6
    acks = {
        producer: [Ack(number, 0, first[f"{producer}:{number}"], f"digest of {producer}:{number}") for number in range(count)]
        for producer, count in [("once", 3), ("plain", 4)]
    }
    return acks, found


def verdict(acks, found, shown=()):
    return judge(acks, found, shown, idempotent=["once"])


def renumbered(records):
    return [record._replace(offset=offset) for offset, record in enumerate(records)]


def test_a_sound_history_has_nothing_wrong():
    acks, found = history()
    equal(verdict(acks, found, shown=found[:4]), [])


def test_an_acknowledged_message_at_the_end_that_is_gone_is_found():
    acks, found = history()
    assert verdict(acks, found[:-1])


def test_every_message_dropped_from_the_middle_is_found_with_and_without_a_hole():
    acks, found = history()
    for index in range(len(found) - 1):
        left = found[:index] + found[index + 1 :]
        assert verdict(acks, left), f"hole at {index}"
        assert verdict(acks, renumbered(left)), f"closed up at {index}"


def test_a_message_of_an_idempotent_producer_that_is_there_twice_is_found():
    acks, found = history()
    for index in (0, 2, 7):
        assert verdict(acks, found + [found[index]._replace(offset=len(found))]), f"repeat of {found[index].key}"


def test_two_messages_that_changed_places_are_found():
    acks, found = history()
    for index in range(len(found) - 1):
        swapped = found[:]
        swapped[index], swapped[index + 1] = swapped[index + 1], swapped[index]
        assert verdict(acks, renumbered(swapped)), f"swap at {index}"


def test_a_message_that_was_sent_but_skipped_is_found_even_if_nobody_was_told():
    acks, found = history()
    del acks["once"][1:]
    assert verdict(acks, renumbered([record for record in found if record.key != "once:1"]))


def test_a_changed_content_is_found():
    acks, found = history()
    found[2] = found[2]._replace(digest="another")
    assert verdict(acks, found)


def test_an_acknowledgement_with_another_offset_is_found():
    acks, found = history()
    acks["once"][1] = acks["once"][1]._replace(offset=1)
    assert verdict(acks, found)


def test_a_message_that_was_shown_and_then_replaced_is_found():
    acks, found = history()
    assert verdict(acks, found, shown=[Found(0, 4, "once:9", "digest of once:9")])
    assert verdict(acks, found, shown=[Found(0, 99, "once:9", "digest of once:9")])
