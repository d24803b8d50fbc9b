"""Tables of small_requests.py, with the goals beside the figures. report.py prints them."""

from tables import DASH, get, number, table

# Of the bare server's, for Duramen: appends a second, CPU an append, and appends a second beside a busy loop.
RATE, CPU, RATE_BESIDE = 0.9, 1.3, 0.8


def small_requests(found):
    result = found.get("duramen", {})
    parts = [
        ("points", "128 appenders of 2 KiB, all servers in turn", RATE),
        ("beside_a_busy_loop", "The same beside a busy loop", RATE_BESIDE),
        ("many_partitions", "The same over 1,000 partitions", None),
    ]
    return "\n".join(_table(get(result, key) or [], title, rate) for key, title, rate in parts)


def _table(points, title, rate):
    rows = [
        [
            point["connections"], point["target"], number(point["appends_per_second"]),
            _goal(point, "of_first", rate, lambda value: value >= rate),
            number(point["server_cpu_us"], 1), _goal(point, "server_cpu_of_first", rate, lambda value: value <= CPU),
            number(point["client_cpu_us"], 1), f"{point['p50_us'] / 1000:.2f}/{point['p99_us'] / 1000:.2f}",
        ]
        for point in points
    ]  # fmt: skip
    goals = f"\nGoals: ≥ {rate}× of the bare server's appends, ≤ {CPU}× of its CPU an append.\n" if rate else ""
    return f"### {title}\n\n" + table(
        ["connections", "server", "appends/s", "of the bare server's", "server CPU µs an append", "of the bare server's",
         "client CPU µs an append", "p50/p99 ms"], rows,
    ) + goals  # fmt: skip


def _goal(point, key, has_goal, is_met):
    if point["target"] == "bare":
        return DASH
    mark = "" if not has_goal or point["target"] != "duramen" else " ✓" if is_met(point[key]) else " ✗"
    return f"{point[key]:.2f}×{mark}"


TABLES = {"small_requests": small_requests}
