"""Compares what producers were told with what a consumer finds: content and order, not counts.

Every message has the key `producer:number`, numbers counting up from 0 in the order of sending.
"""

from collections import namedtuple

# What a producer was told about message `number`; `digest` is the SHA-256 of the value.
Ack = namedtuple("Ack", "number partition offset digest")
# What a consumer found.
Found = namedtuple("Found", "partition offset key digest")


def judge(acks, found, shown=(), idempotent=()):
    """Returns what is wrong, as sentences; nothing is wrong when the list is empty.

    `acks` maps each producer to its acknowledgements, `found` is everything a consumer read at the end, partition by
    partition in the order it came, `shown` is what a consumer saw meanwhile, `idempotent` names the producers whose
    messages may be there once only. A plain producer's retry may repeat a message, but not overtake.
    """
    wrong = []
    at = {}
    next_offset = {}
    numbers = {}
    for record in found:
        expected = next_offset.get(record.partition, 0)
        if record.offset != expected:
            wrong.append(f"partition {record.partition}: offset {record.offset} where {expected} should be")
        next_offset[record.partition] = record.offset + 1
        at[record.partition, record.offset] = record
        producer, number = record.key.rsplit(":", 1)
        numbers.setdefault((producer, record.partition), []).append(int(number))
    for producer, told in acks.items():
        wrong += _missing_or_changed(producer, told, at)
    for (producer, partition), sequence in numbers.items():
        wrong += _out_of_order(f"{producer} in partition {partition}", sequence, producer in idempotent)
    for record in shown:
        if at.get((record.partition, record.offset)) != record:
            now = at.get((record.partition, record.offset))
            wrong.append(f"partition {record.partition} offset {record.offset} showed {record.key}, later {now and now.key}")
    return wrong


def _missing_or_changed(producer, told, at):
    wrong = []
    for ack in told:
        record = at.get((ack.partition, ack.offset))
        if record is None:
            wrong.append(f"{producer}:{ack.number} was acknowledged at {ack.offset}, nothing is there")
        elif record.key != f"{producer}:{ack.number}":
            wrong.append(f"{producer}:{ack.number} was acknowledged at {ack.offset}, {record.key} is there")
        elif record.digest != ack.digest:
            wrong.append(f"{producer}:{ack.number} at {ack.offset} has another content")
    return wrong


def _out_of_order(who, sequence, once_only):
    wrong = []
    highest = -1
    for number in sequence:
        if number > highest + 1:
            wrong.append(f"{who}: {number} follows {highest}")
        elif number <= highest and once_only:
            wrong.append(f"{who}: {number} comes again after {highest}")
        highest = max(highest, number)
    return wrong
