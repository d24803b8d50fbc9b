#!/usr/bin/env bash
# Runs the suite of one Go client: run.sh DIRECTORY [PART OF A TEST'S NAME]...
# BOOTSTRAP names the broker. SLOWNESS scales the bounds, SHORT selects the gate's tests, and JUNIT_DIR gets the results.
set -euo pipefail
compat=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
directory=$1 suite=$(basename "$1")
shift
gotestsum=$("$compat/gotestsum/build.sh")
binaries=$("$directory/build.sh")
report=()
[ -z "${JUNIT_DIR:-}" ] || report=(--junitfile "$JUNIT_DIR/$suite.xml")
flags=(-test.v=test2json -test.timeout "$(awk -v slowness="${SLOWNESS:-1}" 'BEGIN { print 400 * slowness }')s")
if [ -n "${SHORT:-}" ]; then
    flags+=(-test.short)
    report+=(--junitfile-hide-skipped-tests)
fi
if [ $# -gt 0 ]; then
    parts=$(IFS='|' && echo "$*")
    flags+=(-test.run "$parts")
fi
exec "$gotestsum" --format testname "${report[@]}" --raw-command -- \
    go tool test2json -t -p "$suite" "$binaries/$suite.test" "${flags[@]}"
