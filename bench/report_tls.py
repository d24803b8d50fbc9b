"""Tables of tls.py, with the goals beside the figures. report.py prints them."""

from tables import number, table

# CPU of a read with TLS: of Kafka's with TLS, and of the same broker's without; bytes a second of Kafka's with TLS.
OF_KAFKA, OF_PLAIN, RATE_OF_KAFKA = 0.55, 2.0, 2.0
# Of the client's alone, beside a burst; of appends without rules.
BESIDE, WITH_RULES = 2.0, 0.98
# Of the appends without TLS.
APPENDS = 0.9


def tls(found):
    result = found.get("duramen", {})
    if "reads" not in result:
        return ""
    return "\n".join([_reads(result["reads"]), _appends(result["appends"]), _burst(result["burst"]), _rules(result["rules"])])


def _mark(value, is_met):
    return f"{value:.2f}×{' ✓' if is_met else ' ✗'}"


def _reads(points):
    of = {(point["broker"], point["tls"], point["mib"]): point for point in points}
    rows = []
    for (broker, sealed, mib), point in of.items():
        cpu, rate = point["cpu_s_a_gb"], point["gb_a_second"]
        own, theirs = of[broker, False, mib], of["kafka", sealed, mib]
        of_plain, of_kafka, of_rate = cpu / own["cpu_s_a_gb"], cpu / theirs["cpu_s_a_gb"], rate / theirs["gb_a_second"]
        is_judged = broker == "duramen" and sealed
        low, high = point["cpu_spread"]
        rows.append([
            mib, broker, _way(sealed), f"{cpu:.2f} ({low:.2f} to {high:.2f})", f"{rate:.2f}", f"{point['client_busy']:.2f}",
            _mark(of_plain, of_plain <= OF_PLAIN) if is_judged else f"{of_plain:.2f}×",
            _mark(of_kafka, of_kafka <= OF_KAFKA) if is_judged else f"{of_kafka:.2f}×",
            _mark(of_rate, of_rate >= RATE_OF_KAFKA) if is_judged else f"{of_rate:.2f}×",
        ])  # fmt: skip
    headings = ["MiB a fetch", "broker", "way", "broker CPU s/GB", "GB/s", "client's cores", "CPU of the same plain", "CPU of Kafka's", "GB/s of Kafka's"]
    goals = f"Goals with TLS: ≤ {OF_PLAIN}× of its own plain CPU, ≤ {OF_KAFKA}× of Kafka's CPU, ≥ {RATE_OF_KAFKA}× of Kafka's rate."
    return "### Hot reads on one connection\n\n" + table(headings, rows) + f"\n{goals}\n"


def _way(sealed):
    return "TLS 1.3" if sealed else "plain"


def _appends(points):
    plain = {point["broker"]: point for point in points if not point["tls"]}
    rows = []
    for point in points:
        ratio = point["appends_a_second"] / plain[point["broker"]]["appends_a_second"]
        is_judged = point["broker"] == "duramen" and point["tls"]
        rows.append([
            point["broker"], _way(point["tls"]), number(point["appends_a_second"]), point["cpu_us_an_append"],
            _mark(ratio, ratio >= APPENDS) if is_judged else f"{ratio:.2f}×",
        ])  # fmt: skip
    headings = ["broker", "way", "appends/s", "broker CPU µs an append", "appends of plain"]
    return "### Appends of 2 KiB, 128 connections\n\n" + table(headings, rows) + f"\nGoal: ≥ {APPENDS}×.\n"


def _burst(found):
    rows = []
    for broker, it in found.items():
        ratio = it["p99_us_beside"] / it["p99_us_alone"]
        rows.append([broker, it["connections"], it["seconds"], it["p99_us_alone"], it["p99_us_beside"], _mark(ratio, ratio <= BESIDE)])
    headings = ["broker", "connections", "seconds", "p99 µs alone", "p99 µs beside", "of alone"]
    return "### A client beside a burst of TLS connections\n\n" + table(headings, rows) + f"\nGoal: ≤ {BESIDE}×.\n"


def _rules(it):
    rates, cpu = it["appends_a_second"], it["cpu_us_an_append"]
    ratio = rates["many"] / rates["none"]
    rows = [
        ["none", number(rates["none"]), cpu["none"], "1.00×"],
        [number(it["rules"]), number(rates["many"]), cpu["many"], _mark(ratio, ratio >= WITH_RULES)],
    ]
    headings = ["rules", "appends/s", "node CPU µs an append", "appends of none"]
    return "### Appends and rules of access, 128 connections\n\n" + table(headings, rows) + f"\nGoal: ≥ {WITH_RULES}×.\n"


TABLES = {"tls": tls}
