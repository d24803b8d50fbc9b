"""Runs the suites against one kind of broker or both; see README.md.  run.py [--short] [--broker KIND] [--suite NAME]... """

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from broker import COMPAT, BrokerFailed, free_port, start, start_cluster

# Suites that run against a pair of brokers that are there: Kafka's defaults, and a stricter one.
CLIENTS = [
    "wire", "kcat", "confluent-kafka", "java", "kafka-tools", "connect", "mirror", "streams", "franz-go", "sarama", "kafka-go", "rust-rdkafka",
    "rskafka", "kafka-python", "aiokafka", "kafkajs", "old-clients", "programs", "cli",
]  # fmt: skip
# The tests of the gate, by suite: a record's way there and back, topics, groups and transactions of five clients. Each name is
# one test's. None of them ends a session by silence or bounds a time: a busy machine cannot fail them.
SHORT = {
    "kcat": [
        "lines_come_back_as_they_went_with_every_codec", "keys_headers_and_timestamps_are_shown", "null_keys_and_values_stay_null",
        "every_acks_setting_and_an_idempotent_producer_deliver", "reading_starts_where_it_is_told", "an_oversize_message_is_refused",
        "many_partitions_are_read_at_once", "deleted_records_are_out_of_range_and_the_reset_goes_to_the_beginning",
        "a_group_goes_on_where_it_left_off",
    ],
    "confluent-kafka": [
        "keys_values_headers_and_timestamps_come_back_as_they_went_with_every_codec", "every_acks_setting_delivers",
        "an_idempotent_producer_delivers_in_order", "an_oversize_message_is_refused_and_the_next_one_is_not",
        "offsets_are_found_by_timestamp", "topics_are_created_described_deleted_and_recreated_with_a_new_id_and_no_old_data",
        "deleted_records_are_out_of_range", "members_that_join_and_leave_share_partitions_anew",
        "members_of_the_newer_protocol_share_partitions_anew", "automatic_commits_let_the_next_member_go_on",
        "what_is_committed_is_seen_and_what_is_aborted_is_not", "a_second_producer_of_the_same_id_fences_the_first",
        "records_are_read_processed_and_written_once_through_aborts",
    ],
    "java": [
        "keysValuesHeadersAndTimestampsComeBackAsTheyWentWithEveryCodec", "everyAcksSettingDelivers",
        "theDefaultProducerIsIdempotentAndKeepsOrder", "anOversizeRecordIsRefusedAndTheNextOneIsNot", "offsetsAreFoundByTimestamp",
        "topicsAreDeletedAndRecreatedWithANewIdAndNoOldData", "deletedRecordsAreOutOfRange",
        "partitionsAreSharedAnewWhenMembersJoinAndLeave", "membersOfTheNewProtocolShareAnewWhenTheyJoinAndLeave",
        "commitsKeepOffsetMetadataAndLeaderEpoch", "whatIsCommittedIsSeenAndWhatIsAbortedIsNot",
        "aSecondProducerOfTheSameIdFencesTheFirst",
    ],
    "franz-go": [
        "keys_values_headers_and_timestamps_come_back_as_they_went_with_every_codec", "every_acks_setting_delivers",
        "the_default_producer_is_idempotent_and_keeps_order", "an_oversize_record_is_refused_and_the_next_one_is_not",
        "offsets_are_found_by_timestamp", "topics_are_deleted_and_recreated_with_a_new_id_and_no_old_data",
        "deleted_records_are_out_of_range", "committed_offsets_are_found_by_the_next_member",
        "members_share_partitions_as_they_join_and_leave_with_every_balancer",
        "members_of_the_newer_protocol_share_partitions_as_the_broker_decides",
        "what_is_committed_is_seen_and_what_is_aborted_is_not_in_both_versions_of_the_protocol",
        "a_second_producer_of_the_same_id_fences_the_first",
    ],
    "kafkajs": [
        "values_arrive_in_order_with_every_acks_setting", "gzip_and_an_idempotent_producer_deliver", "offsets_are_found_by_timestamp",
        "topics_are_described_and_deleted_and_records_too", "refusals_arrive_as_their_errors",
        "members_share_partitions_as_they_join_and_leave", "committed_offsets_are_found_by_the_next_member",
        "what_is_committed_is_seen_and_what_is_aborted_is_not", "offsets_are_committed_with_the_records",
    ],
}  # fmt: skip
# How many nodes those brokers are. What Kafka's answers are to be compared with shows on one.
NODES = {"duramen": [1, 3], "kafka": [1]}
# A suite that goes through single connections, and those that `three` has, with kills.
ONE_NODE_ONLY = {"wire", "connect", "mirror", "streams"}
# Suites that start and kill brokers of their own.
OWN_BROKERS = ["restart", "compaction", "three", "cluster-tools", "groups", "transactions", "shares", "kill9", "sync_audit", "scale", "faults", "hostile"]
# What only one of the brokers promises, or shows well enough on one node.
ONLY = {"three": "duramen", "scale": "duramen", "faults": "duramen", "hostile": "duramen"}
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
OUTPUT_LINES_ON_FAILURE = 300
# What `measure_slowness` takes on two quiet cores.
QUIET_S = 0.05

# The suites that failed, for the last line: what they said is far above it.
FAILED = []

COUNTS = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.MULTILINE)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", choices=["duramen", "kafka"], help="default: both in turn")
    parser.add_argument("--suite", choices=CLIENTS + OWN_BROKERS, action="append", help="default: all; may be repeated")
    parser.add_argument("--nodes", type=int, choices=[1, 3], help=f"of suites that share brokers; default: {NODES}")
    parser.add_argument("--short", action="store_true", help=f"on one Duramen the gate's tests of {', '.join(SHORT)}")
    parser.add_argument("--kill9-seconds", type=int, help=f"default: {KILL9_SECONDS}")
    options = parser.parse_args()
    kinds = [options.broker] if options.broker else ["duramen", "kafka"]
    # Most suites wait most of the time, so two go side by side, about as long in each lane. Three make the cores so busy that
    # what is killed every few seconds comes to no end.
    lanes = [
        lambda: run_clients(1, kinds, options) + run_clients(3, kinds, options),
        lambda: run_own_brokers(kinds, options),
    ]
    if options.short:
        lanes = [lambda: run_short(options)]
    slowness = measure_slowness()
    print(f"this machine takes {slowness:.1f} times as long as a quiet one: so do the bounds that end a test", flush=True)
    os.environ["SLOWNESS"] = f"{slowness:.2f}"
    with ThreadPoolExecutor() as threads:
        results = [threads.submit(lane) for lane in lanes]
        counts = [count for result in results for count in result.result()]
    passed, failed = (sum(column) for column in zip(*counts)) if counts else (0, 0)
    print(f"compat: {passed} passed, {failed} failed{''.join(f'; {line}' for line in FAILED)}", flush=True)
    sys.exit(1 if failed or not passed else 0)


def chosen(suites, kind, options):
    return [suite for suite in suites if suite in (options.suite or suites) and ONLY.get(suite, kind) == kind]


def run_clients(nodes, kinds, options):
    counts = []
    for kind in kinds:
        suites = [suite for suite in chosen(CLIENTS, kind, options) if nodes == 1 or suite not in ONE_NODE_ONLY]
        if suites and nodes in ([options.nodes] if options.nodes else NODES[kind]):
            counts += run_clients_against(kind, nodes, suites)
    return counts


def run_short(options):
    """Runs the gate's tests; a name that selects no test, or several, is a failure."""
    suites = {suite: names for suite, names in SHORT.items() if suite in (options.suite or SHORT)}
    for names, (passed, failed) in zip(suites.values(), run_clients_against("duramen", 1, suites)):
        if passed + failed != len(names):
            FAILED.append(f"{passed + failed} tests for {len(names)} names")
            failed += 1
        yield passed, failed


def run_own_brokers(kinds, options):
    counts = []
    for kind in kinds:
        for suite in chosen(OWN_BROKERS, kind, options):
            seconds = [str(options.kill9_seconds or KILL9_SECONDS[kind])] if suite == "kill9" else []
            counts.append(run_suite(kind, suite, [kind, *seconds], os.environ))
    return counts


def run_clients_against(kind, nodes, suites):
    directory = Path(tempfile.mkdtemp(prefix=f"duramen-compat-{kind}-"))
    failures = 0
    name = kind if nodes == 1 else f"{kind} x{nodes}"
    try:
        with (
            start_shared(kind, nodes, directory / "defaults") as shared,
            start(kind, free_port(), directory / "strict", STRICT_SETTINGS) as strict,
        ):
            environment = {
                **os.environ,
                "BROKER_KIND": kind,
                "STRICT_BOOTSTRAP": strict.bootstrap,
                "DATA_DIR": str(shared.brokers[0].data_dir),
            }
            for suite in suites:
                # Of a table, the names of tests; of a list, none.
                names = suites[suite] if isinstance(suites, dict) else []
                counts = run_suite(name, suite, [shared.bootstrap, *names], environment)
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


def start_shared(kind, nodes, directory):
    return start(kind, free_port(), directory) if nodes == 1 else start_cluster(kind, directory)


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
    """Returns (passed, failed); a suite that says nothing has failed once."""
    started = time.monotonic()
    command = [str(COMPAT / suite / "run.sh"), *arguments]
    output = tempfile.TemporaryFile("w+", errors="replace")
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
    limit_s = SUITE_TIMEOUT_S * float(os.environ["SLOWNESS"])
    ending = ""
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        code, ending = 1, f"no end within {limit_s:.0f} s\n"
    output.seek(0)
    text = output.read() + ending
    counts = [[int(count or 0) for count in line] for line in COUNTS.findall(text)]
    passed, failed, skipped = (sum(column) for column in zip(*counts)) if counts else (0, 0, 0)
    if code != 0 and not failed:
        failed = 1
    said = []
    if failed:
        FAILED.append(f"{name} {suite}")
        said = text.splitlines()[-OUTPUT_LINES_ON_FAILURE:]
    elif skipped:
        said = [line for line in text.splitlines() if line.startswith("SKIP")]
    also = f", {skipped} skipped" if skipped else ""
    said.append(f"{name:10} {suite:16} {passed} passed, {failed} failed{also}  ({time.monotonic() - started:.0f} s)")
    print("\n".join(said) + "\n", end="", flush=True)  # one write: another suite may end at the same time
    return passed, failed


main()
