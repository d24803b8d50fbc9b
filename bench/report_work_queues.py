"""Tables of work queues."""

from report_queues import HEADINGS, milliseconds, notes, rows_of, times
from tables import DASH, get, number, table

OURS = "gRPC"


def _ours(found, key, *path, limit=1):
    points = get(found, "duramen", key) or []
    return next((get(it, *path) for it in points if "total" in it and it["way"] == OURS and it["limit"] == limit), None)


def _is_whole(point):
    return f"{number(point['missing'])} · {number(point['twice'])} · {number(point.get('unsettled', 0))}"


def _drains(found):
    rows = []
    for variant, start, point in rows_of(found):
        if "total" not in point:
            continue
        ours = _ours(found, "points", "messages_per_second", limit=point["limit"])
        thousands = point["total"] / 1000
        is_ours = variant == "duramen" and point["way"] == OURS
        rows.append([
            point["limit"], *start, point["way"], number(point["messages_per_second"]),
            DASH if is_ours else times(ours, point["messages_per_second"]), number(point["broker_cpu_seconds"] / thousands, 3),
            number(point["client_cpu_seconds"] / thousands, 3), milliseconds(point["lease_us"]), milliseconds(point["settle_us"]),
            _is_whole(point),
        ])  # fmt: skip
    rows.sort(key=lambda row: row[0])
    return "### 100,000 messages that wait for 64 workers\n\n" + table(
        ["leased at once", *HEADINGS, "way", "messages/s", "Duramen by gRPC is", "broker CPU s a 1,000", "client CPU s a 1,000",
         "a lease, p50/p99 ms", "a settlement, p50/p99 ms", "left over · twice · refused"], rows,
    )  # fmt: skip


def _waits(found):
    rows, quantiles = [], ("p50", "p99", "p999")
    for variant, start, point in rows_of(found, "waits"):
        if "total" not in point:
            continue
        # Before the messages that count, share consumers have a warm-up of which the report knows nothing.
        latency, append, is_ours = point["latency_us"], point["append_us"], variant == "duramen" and point["way"] == OURS
        theirs = [_ours(found, "waits", "latency_us", quantile) for quantile in ("p50", "p99")]
        rows.append([
            *start, point["way"], milliseconds(latency, *quantiles), milliseconds(append, *quantiles),
            DASH if is_ours else " · ".join(times(latency[at], ours) for at, ours in zip(("p50", "p99"), theirs)),
            DASH if "unsettled" in point else number(point["broker_cpu_seconds"] / point["total"] * 1000, 3), _is_whole(point),
        ])  # fmt: skip
    return "### 64 workers that wait for 500 messages a second\n\n" + table(
        [*HEADINGS, "way", "to the worker, p50/p99/p99.9 ms", "to the ack, p50/p99/p99.9 ms",
         "times Duramen's by gRPC, p50 · p99 to the worker", "broker CPU s a 1,000", "left over · twice · refused"], rows,
    )  # fmt: skip


def _delays(found):
    rows = [
        [*start, point["way"], number(point["total"]), milliseconds(point["latency_us"], "p50", "p99", "p999", "max"),
         number(point["early"]), milliseconds(point["append_us"]), number(point["broker_cpu_seconds"] / point["total"] * 1000, 3),
         _is_whole(point)]
        for _, start, point in rows_of(found, "delays") if "total" in point
    ]  # fmt: skip
    return "### Messages that are delayed by 1 to 10 s\n\n" + table(
        [*HEADINGS, "way", "messages", "late by, p50/p99/p99.9/max ms", "early", "to the ack, p50/p99 ms", "broker CPU s a 1,000",
         "left over · twice · refused"], rows,
    )  # fmt: skip


def work_queues(found):
    return "\n".join([_drains(found), _waits(found), _delays(found)]) + notes("work_queues", found, "points", "waits", "delays")
