"""Tables of fast.py, with the goals beside the figures. report.py prints them."""

import statistics

from tables import DASH, get, number, table

QUANTILES = ("p50", "p90", "p99")
# From this delay on a fast append is to be so much faster than acks=all at each quantile, where each node has a disk.
GAIN_FROM_MS, GAIN = 1, 1.5
OF_ACKS_1 = 1.15
BESIDE = {"p50": 1.05, "p99": 1.10}
SLOW = {"p50": 1.1, "p99": 1.3}
OF_WIRE, CPU = 0.9, 1.2


def _median(points, *path):
    """Of all passes."""
    values = [value for point in points if (value := get(point, *path)) is not None]
    return statistics.median(values) if values else None


def _by_mode(points, *keys):
    """Points of all passes, by their facts and then by mode."""
    found = {}
    for point in points:
        found.setdefault(tuple(point[key] for key in keys), {}).setdefault(point["mode"], []).append(point)
    return found


def _ms(points):
    """Each quantile in milliseconds, the median of all passes; and what p50 was in each of them."""
    if not points:
        return DASH
    quantiles = "/".join(number(_median(points, "latency_us", q) / 1000, 2) for q in QUANTILES)
    return quantiles + " (" + " ".join(number(point["latency_us"]["p50"] / 1000, 2) for point in points) + ")"


def _quotient(over, under, quantile):
    above, below = (_median(points, "latency_us", quantile) for points in (over, under))
    return above / below if above and below else None


def _times(value, is_met):
    return DASH if value is None else f"{value:.2f}×" + ("" if is_met is None else " ✓" if is_met else " ✗")


def latency(found):
    rows = []
    for variant, result in found.items():
        for (nodes, d, x), modes in sorted(_by_mode(result.get("points", []), "nodes", "d", "x").items()):
            every, one, fast = (modes.get(mode, []) for mode in ("all", "1", "fast"))
            gains = [_quotient(every, fast, q) for q in QUANTILES]
            counts = d >= GAIN_FROM_MS and variant == "duramen"
            behind = _quotient(fast, one, "p50")
            rows.append([
                variant, nodes, number(d, 2), number(x, 2), number(_median([*every, *one, *fast], "sync_ms"), 2),
                _ms(every), _ms(one), _ms(fast),
                DASH if not fast else " ".join(_times(it, it >= GAIN if counts else None) for it in gains),
                _times(behind, behind <= OF_ACKS_1 if behind and counts else None),
                _share(fast),
            ])  # fmt: skip
    return (
        "### One appender of 1 KiB: p50/p90/p99 in ms (p50 of each pass)\n\n"
        + table(
            ["broker", "nodes", "d ms", "x ms", "a sync, ms", "acks=all", "acks=1", "fast", "acks=all/fast at p50, p90, p99", "fast/acks=1 at p50",
             "in one round trip"], rows,
        )
        + f"\nGoals, for d = x ≥ {GAIN_FROM_MS} ms and a disk a node: acks=all/fast ≥ {GAIN}×, fast/acks=1 ≤ {OF_ACKS_1}×.\n"
    )  # fmt: skip


def _share(points):
    share = _median(points, "fast_share")
    return DASH if share is None else f"{share:.1%}"


def beside(found):
    rows = []
    for variant, result in found.items():
        for (d, x), modes in _by_mode(result.get("points", []), "d", "x").items():
            every, one, fast = (modes.get(mode, []) for mode in ("all", "1", "fast"))
            losses = {q: _quotient(fast, every, q) for q in QUANTILES}
            rows.append([
                variant, number(d, 2), number(x, 2), _ms(every), _ms(one), _ms(fast),
                " ".join(_times(loss, loss <= BESIDE[q] if q in BESIDE else None) for q, loss in losses.items()), _share(fast),
            ])  # fmt: skip
    return (
        "### A client beside the leader: p50/p90/p99 in ms (p50 of each pass)\n\n"
        + table(["broker", "d ms to the leader", "x ms, and d to others", "acks=all", "acks=1", "fast", "fast/acks=all at p50, p90, p99",
                 "in one round trip"], rows)
        + f"\nGoals: fast/acks=all ≤ {BESIDE['p50']}× at p50, ≤ {BESIDE['p99']}× at p99.\n"
    )  # fmt: skip


def slow_node(found):
    rows = []
    for variant, result in found.items():
        points = result.get("points", [])
        well = [point for point in points if point["slow"] == "none"]
        for point in points:
            ratios = {q: point["latency_us"][q] / _median(well, "latency_us", q) for q in QUANTILES}
            is_goal = point["slow"] != "none"
            rows.append([
                variant, {"none": "none", "member": "a member", "outsider": "no member"}[point["slow"]],
                number(point["slow_node"]), *(" ".join(map(str, point[which])) for which in ("members", "members_after")), _ms([point]),
                " ".join(_times(it, it <= SLOW[q] if q in SLOW and is_goal else None) for q, it in ratios.items()), _share([point]),
            ])  # fmt: skip
    seconds = next((result["seconds"] for result in found.values() if "seconds" in result), DASH)
    return (
        f"### Five nodes, d = x = 1 ms, one slower by 50 ms: {seconds} s from the second second on, p50/p90/p99 in ms (p50)\n\n"
        + table(["broker", "slow is", "node", "members before", "after", "fast", "of none slow at p50, p90, p99", "in one round trip"], rows)
        + f"\nGoals: ≤ {SLOW['p50']}× at p50, ≤ {SLOW['p99']}× at p99.\n"
    )


def failover(found):
    rows, goals = [], []
    for variant, result in found.items():
        behind, serving = {}, {}
        for mode, name in (("all", "acks=all"), ("fast", "fast")):
            kills = [kill for kill in result.get("kills", []) if kill["mode"] == mode]
            if not kills:
                continue
            pauses = sorted(kill["pause_ms"] for kill in kills)
            behind[mode] = statistics.median(kill["pause_ms"] - kill["elected_ms"] for kill in kills)
            settled = [kill["served_ms"] - kill["elected_ms"] for kill in kills if "served_ms" in kill]
            serving[mode] = statistics.median(settled) if settled else None
            sums = {what: sum(kill[what] for kill in kills) for what in ("acknowledged", "before_commit", "lost", "twice", "out_of_order")}
            rows.append([
                variant, name, len(kills), number(pauses[0]), number(statistics.median(pauses)), number(pauses[-1]),
                number(max(kill["pause_before_ms"] for kill in kills)), number(_median(kills, "elected_ms")),
                number(behind[mode]), number(serving[mode], 1), *map(number, sums.values()),
                sum(len(kill["failures"]) for kill in kills),
            ])  # fmt: skip
        more = 50 + 4 * result.get("x", 0)
        if len(behind) == 2:
            is_met = behind["fast"] <= behind["all"] + more
            goals.append(f"Goal: the pause behind the election, fast ≤ acks=all and {more} ms: {'✓' if is_met else '✗'}.")
        if all(serving.get(mode) is not None for mode in ("all", "fast")):
            is_met = serving["fast"] <= serving["all"] + more
            goals.append(f"The same of the time from the election to served: {'✓' if is_met else '✗'}.")
    return (
        "### The leader is killed under 1,000 appends a second, three nodes, d = x = 1 ms: longest time without an ack, ms\n\n"
        + table(["broker", "acks", "kills", "shortest", "median", "longest", "longest before a kill", "elected after",
                 "pause behind the election", "from the election to served", "acknowledged", "before their commit", "lost", "twice", "out of order",
                 "producers that failed"], rows)
        + "\n" + "\n".join([*goals, "Goal: none lost, none twice, none out of order.\n"])
    )  # fmt: skip


def throughput(found):
    rows = []
    for variant, result in found.items():
        by_rate = _by_mode(result.get("points", []), "rate")
        for (rate,), modes in by_rate.items():
            members = _median(modes.get("fast", []), "members")
            alike = by_rate.get((rate // members,), {}) if members else {}
            normal_cpu = _median(alike.get("all", []), "node_cpu_ms_per_mb")
            for mode, name in (("all", "acks=all"), ("fast", "fast")):
                points = modes.get(mode)
                if not points:
                    continue
                speed, cpu = (_median(points, what) for what in ("megabytes_per_second", "node_cpu_ms_per_mb"))
                copies = _median(points, "members") if mode == "fast" else 1
                of_wire = speed * 1e6 * copies / rate if speed and rate and copies else None
                cost = cpu / normal_cpu if cpu and normal_cpu and mode == "fast" else None
                rows.append([
                    variant, f"{rate / 1e6:.0f} MB/s" if rate else "none", name, number(speed, 1), number(copies),
                    _times(of_wire, of_wire >= OF_WIRE if of_wire and mode == "fast" else None), number(cpu, 2),
                    _times(cost, cost <= CPU if cost else None),
                    _share(points),
                ])  # fmt: skip
    return (
        "### Bulk of 1,000 B in batches of 500, three nodes, d = x = 1 ms\n\n"
        + table(["broker", "client's wire", "acks", "MB/s of payload", "copies (m)", "MB/s of wire/m", "node CPU ms an MB", "of acks=all at that rate",
                 "in one round trip"], rows)
        + f"\nGoals: ≥ {OF_WIRE}× of wire/m where the wire is the limit, node CPU ≤ {CPU}× of acks=all.\n"
    )  # fmt: skip


TABLES = {
    "fast_latency": latency,
    "fast_slow_node": slow_node,
    "fast_beside": beside,
    "fast_failover": failover,
    "fast_throughput": throughput,
}
