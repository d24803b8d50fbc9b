#!/usr/bin/env bash
# Checks dashboards and rules: DURAMEN_BIN=target/release/duramen monitoring/test.sh
#   rules       promtool accepts them, and each alert fires in rules_test.yml
#   dashboards  they are as dashboards.py says, and promtool reads each query
#   live        Prometheus' own parser reads the metrics of a running node, and those that dashboards and rules name are there
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
bin=$(realpath "${DURAMEN_BIN:-../target/release/duramen}")
# The node refuses variables that it does not know.
unset DURAMEN_BIN
PATH=$(./setup.sh):$PATH
export PYTHONDONTWRITEBYTECODE=1

promtool check rules --lint-fatal rules.yml
promtool test rules rules_test.yml

python3 dashboards.py --check
count=0
while read -r query; do
    promtool --experimental promql format "$query" >/dev/null || { echo "monitoring: no query: $query" >&2 && exit 1; }
    count=$((count + 1))
done < <(python3 queries.py)
echo "$count queries are valid"
[ "$count" -gt 50 ]

python3 live.py "$bin"
