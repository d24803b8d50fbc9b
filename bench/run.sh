#!/usr/bin/env bash
# Measures Duramen side by side with Apache Kafka and with what this machine's disk and sockets give, in one run.
#
#   bench/run.sh                     everything; the log's scenarios take about 40 minutes, the whole was not timed yet
#   bench/run.sh --quick             the same scenarios, smaller
#   bench/run.sh --only group_commit --only reads
#   bench/run.sh --quick --only cluster_failover    three brokers that are one cluster; so do all that begin with cluster_
#   bench/run.sh --quick --only queues              all scenarios of queues, beside NATS JetStream and Redis, too;
#                                                   without --quick they take more than an hour, as their bounds of time add up
#   bench/run.sh --fast                             the same as --only fast: appends in one round trip, on nodes that are far apart;
#                                                   about 45 minutes, or 7 with --quick
#   bench/run.sh --only small_requests              requests of one append, beside a bare server that does as little as it can
#   bench/run.sh --only tls                         reads with TLS, a burst of connections, many rules of access; beside Kafka
#   bench/run.sh --only work_queues                 workers that share queues, beside a share group of Kafka and Redis; 20 minutes
#
# Needs what compat/ needs (compat/setup.sh: Java for Kafka, Python for groups), and as much free disk as the sizes below say: 25 GiB, or 4 GiB with --quick.
# The scenarios of queues need Go for NATS, for the load on both peers, and for paced reads and edits of Duramen; kcat for erasures;
# and redis-server, which root gets from Debian. The scenarios of fast appends need Go for the relay that delays connections, and
# make a build of their own, or use that of DURAMEN_SLOW_SYNCS_BIN. Their data is in /dev/shm, 4 GiB, unless --directory is given.
# A run goes on without a peer or a tool that is not there, and says so.
# Writes a table to stdout and the figures to bench/results/.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -z "${DURAMEN_BIN:-}" ]; then
    cargo build --release --quiet --manifest-path "$here/../Cargo.toml" -p duramen
    export DURAMEN_BIN=$here/../target/release/duramen
fi
exec python3 "$here/run.py" "$@"
