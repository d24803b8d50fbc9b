"""Runs the suites against one kind of broker or both; see README.md.  run.py [--short] [--secured] [--broker KIND] [--suite NAME]... """

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import secured
from broker import COMPAT, BrokerFailed, free_port, start, start_cluster

# Suites that run against a pair of brokers that are there: Kafka's defaults, and a stricter one.
CLIENTS = [
    "wire", "kcat", "confluent-kafka", "java", "kafka-tools", "connect", "mirror", "streams", "franz-go", "sarama", "kafka-go", "rust-rdkafka",
    "rskafka", "kafka-python", "aiokafka", "kafkajs", "old-clients", "programs", "cli", "native",
]  # fmt: skip
# The suites of the gate. Those of their tests that are marked as short end no session by silence and bound no time: a busy
# machine cannot fail them.
SHORT = ["kcat", "confluent-kafka", "java", "franz-go", "kafkajs"]
# How many nodes those brokers are. What Kafka's answers are to be compared with shows on one.
NODES = {"duramen": [1, 3], "kafka": [1]}
# A suite that goes through single connections, and those that `three` has, with kills.
ONE_NODE_ONLY = {"wire", "connect", "mirror", "streams"}
# Suites that start and kill brokers of their own.
OWN_BROKERS = [
    "restart", "compaction", "three", "cluster-tools", "groups", "transactions", "shares", "kill9", "native-kills", "sync_audit", "scale", "faults",
    "hostile", "security", "librdkafka", "kafka-python-upstream", "sarama-upstream", "native-openapi",
    "queues", "work-queues", "examples",
]  # fmt: skip
# What only one of the brokers promises, or shows well enough on one node.
ONLY = {suite: "duramen" for suite in ("native", "queues", "work-queues", "examples", "native-kills", "native-openapi", "three", "scale", "faults", "hostile")}
# The delay is Kafka's default; brokers here have none otherwise, so that the first member of a group is served at once.
STRICT_SETTINGS = {
    "auto.create.topics.enable": "false",
    "message.max.bytes": str(11 << 20),
    "group.initial.rebalance.delay.ms": "3000",
    # For the limits of groups (`wire/test_limits.py`): no other suite has more members there.
    "group.max.size": "2",
    "group.consumer.max.size": "2",
    "group.share.max.size": "2",
    "group.share.max.share.sessions": "2",
}
KILL9_SECONDS = {"duramen": 30, "kafka": 10}
SUITE_TIMEOUT_S = 480
# A suite whose tests sleep for minutes, one after the other against Kafka.
LONGER_S = {"librdkafka": 900}
OUTPUT_LINES_ON_FAILURE = 100
# What `measure_slowness` takes on two quiet cores.
QUIET_S = 0.05

# The suites that failed, for the last line: what they said is far above it.
FAILED = []
# The suites' results, each in a directory of its own; those of suites that failed are kept.
RESULTS = Path(tempfile.mkdtemp(prefix="duramen-compat-results-"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", choices=["duramen", "kafka"], help="default: both in turn")
    parser.add_argument("--suite", choices=CLIENTS + OWN_BROKERS, action="append", help="default: all; may be repeated")
    parser.add_argument("--nodes", type=int, choices=[1, 3], help=f"of suites that share brokers; default: {NODES}")
    parser.add_argument("--short", action="store_true", help=f"on one Duramen the short tests of {', '.join(SHORT)}")
    parser.add_argument("--secured", action="store_true", help=f"over TLS, as users with few rights: {', '.join(secured.RIGHTS)}")
    parser.add_argument("--kill9-seconds", type=int, help=f"default: {KILL9_SECONDS}")
    options = parser.parse_args()
    if options.secured and (options.short or not set(options.suite or []) <= set(secured.RIGHTS)):
        parser.error(f"the suites that come as a user are {', '.join(secured.RIGHTS)}, and none of them is short")
    kinds = [options.broker] if options.broker else ["duramen", "kafka"]
    # Most suites wait most of the time, so two go side by side, about as long in each lane. Three make the cores so busy that
    # what is killed every few seconds comes to no end.
    lanes = [
        lambda: run_clients(1, kinds, options) + run_clients(3, kinds, options),
        lambda: run_own_brokers(kinds, options),
    ]
    if options.secured:
        lanes = lanes[:1]
    if options.short:
        lanes = [lambda: run_short(options)]
    slowness = measure_slowness()
    print(f"this machine takes {slowness:.1f} times as long as a quiet one: so do the bounds that end a test", flush=True)
    os.environ["SLOWNESS"] = f"{slowness:.2f}"
    with ThreadPoolExecutor() as threads:
        results = [threads.submit(lane) for lane in lanes]
        counts = [count for result in results for count in result.result()]
    passed, failed = (sum(column) for column in zip(*counts)) if counts else (0, 0)
    if not FAILED:
        RESULTS.rmdir()
    print(f"compat: {passed} passed, {failed} failed{''.join(f'; {line}' for line in FAILED)}", flush=True)
    sys.exit(1 if failed or not passed else 0)


def chosen(suites, kind, options):
    served = secured.RIGHTS if options.secured else suites
    return [suite for suite in suites if suite in (options.suite or suites) and suite in served and ONLY.get(suite, kind) == kind]


def run_clients(nodes, kinds, options):
    counts = []
    for kind in kinds:
        suites = [suite for suite in chosen(CLIENTS, kind, options) if nodes == 1 or suite not in ONE_NODE_ONLY]
        if suites and nodes in ([options.nodes] if options.nodes else NODES[kind]):
            counts += run_clients_against(kind, nodes, suites, options.secured)
    return counts


def run_short(options):
    os.environ["SHORT"] = "1"
    return run_clients_against("duramen", 1, [suite for suite in SHORT if suite in (options.suite or SHORT)])


def run_own_brokers(kinds, options):
    counts = []
    for kind in kinds:
        for suite in chosen(OWN_BROKERS, kind, options):
            seconds = [str(options.kill9_seconds or KILL9_SECONDS[kind])] if suite == "kill9" else []
            counts.append(run_suite(kind, suite, [kind, *seconds], os.environ))
    return counts


def run_clients_against(kind, nodes, suites, is_secured=False):
    directory = Path(tempfile.mkdtemp(prefix=f"duramen-compat-{kind}-"))
    failures = 0
    name = (kind if nodes == 1 else f"{kind} x{nodes}") + (" secured" if is_secured else "")
    authority = secured.certificates(directory / "authority") if is_secured else None
    kinds = secured.kinds(authority) if is_secured else None
    try:
        with (
            start_shared(kind, nodes, directory / "defaults", kinds) as shared,
            start(kind, free_port(), directory / "strict", STRICT_SETTINGS, kinds=kinds) as strict,
        ):
            environment = {
                **os.environ,
                "BROKER_KIND": kind,
                "BOOTSTRAP": shared.bootstrap,
                "STRICT_BOOTSTRAP": strict.bootstrap,
                "DATA_DIR": str(shared.brokers[0].data_dir),
                "NATIVE": ",".join(each.native for each in shared.brokers),
            }
            for suite in suites:
                login = secured.admit(suite, shared, strict, authority) if is_secured else {}
                reached = {**environment, **login}
                counts = run_suite(name, suite, [reached["BOOTSTRAP"]], reached)
                failures += counts[1]
                yield counts
            for each in (*shared.brokers, strict):
                if each.process.poll() is not None:
                    failures += 1
                    yield 0, 1
                    print(f"the broker ended during the suites\n{each.log_tail()}")
    except BrokerFailed as failure:
        failures += 1
        yield 0, 1
        print(f"{name}: {failure}")
    if failures:
        print(f"{name}: the data and the brokers' logs are kept in {directory}")
    else:
        shutil.rmtree(directory)


def start_shared(kind, nodes, directory, kinds):
    return start(kind, free_port(), directory, kinds=kinds) if nodes == 1 else start_cluster(kind, directory, kinds=kinds)


def measure_slowness():
    """Returns how many times as long as a quiet machine this one takes, by work on two threads; at least 1."""
    block = bytes(1 << 20)

    def work(_):
        for _ in range(64):
            hashlib.sha256(block).digest()

    began = time.monotonic()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, range(2)))
    return max(1.0, (time.monotonic() - began) / QUIET_S)


def run_suite(name, suite, arguments, environment):
    """Runs one suite, prints what its JUnit XML tells, and returns (passed, failed)."""
    started = time.monotonic()
    directory = RESULTS / f"{name.replace(' ', '-')}-{suite}"
    directory.mkdir()
    command = [str(COMPAT / suite / "run.sh"), *arguments]
    with open(directory / "output.txt", "w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**environment, "JUNIT_DIR": str(directory)}, start_new_session=True
        )
    limit_s = LONGER_S.get(suite, SUITE_TIMEOUT_S) * float(os.environ["SLOWNESS"])
    ending = ""
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        code, ending = 1, f"no end within {limit_s:.0f} s\n"
    passed, failures, skips = read_results(directory)
    # A suite without results has failed, and so has one that ran no test or ended badly for another reason.
    if not failures and (code != 0 or not passed):
        text = (directory / "output.txt").read_text(errors="replace") + ending
        failures.append("\n".join([f"FAIL {suite}: {passed} tests passed, and it ended with {code}", *last_lines(text)]))
    said = [*failures, *skips]
    if failures:
        FAILED.append(f"{name} {suite}")
        said.append(f"the results and the output are kept in {directory}")
    else:
        shutil.rmtree(directory)
    also = f", {len(skips)} skipped" if skips else ""
    said.append(f"{name:10} {suite:16} {passed} passed, {len(failures)} failed{also}  ({time.monotonic() - started:.0f} s)")
    print("\n".join(said) + "\n", end="", flush=True)  # one write: another suite may end at the same time
    return passed, len(failures)


def read_results(directory):
    """Returns how many tests passed, and what is to be printed of those that failed and of those that were skipped."""
    passed, failures, skips = 0, [], []
    for path in sorted(directory.rglob("*.xml")):
        try:
            cases = list(ElementTree.parse(path).iter("testcase"))
        except ElementTree.ParseError as failure:
            failures.append(f"FAIL {path.name}: {failure}")
            continue
        for case in cases:
            name = case.get("name")
            wrong = [*case.iter("failure"), *case.iter("error")]
            skipped = case.find("skipped")
            if wrong:
                texts = [*(each.text or each.get("message") or "" for each in wrong), *(each.text or "" for each in case.iter("system-out"))]
                failures.append("\n".join([f"FAIL {name}", *(line for text in texts for line in last_lines(text))]))
            elif skipped is not None:
                reason = (skipped.get("message") or skipped.text or "no reason").strip().splitlines()[0]
                skips.append(f"SKIP ({reason}) {name}")
            else:
                passed += 1
    return passed, failures, skips


def last_lines(text):
    return text.strip().splitlines()[-OUTPUT_LINES_ON_FAILURE:]


main()
