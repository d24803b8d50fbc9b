#!/usr/bin/env bash
# Runs the tests of Java classes: junit.sh CLASS[,CLASS]... [PART OF A TEST'S NAME]...
# BOOTSTRAP names the broker. SLOWNESS scales a test's two minutes, SHORT selects the gate's tests, and JUNIT_DIR gets the
# results.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
libs=$("$here/../kafka/fetch.sh")
junit=$("$here/fetch.sh")
classes=$("$here/compile.sh")
timeout=$(awk -v slowness="${SLOWNESS:-1}" 'BEGIN { printf "%d", 120 * slowness }')
options=(--disable-banner --disable-ansi-colors --details=tree --fail-if-no-tests)
for class in ${1//,/ }; do
    options+=(--select-class "$class")
done
if [ $# -gt 1 ]; then
    options+=(--include-methodname ".*#.*($(IFS='|' && echo "${*:2}")).*")
fi
[ -z "${SHORT:-}" ] || options+=(--include-tag short)
[ -z "${JUNIT_DIR:-}" ] || options+=(--reports-dir "$JUNIT_DIR")
# Tests that mostly wait are marked as concurrent, and then run all at once. Logins cost: each stretches a password.
parallel=junit.jupiter.execution.parallel parallelism=64
[ -z "${CLIENT_PROPERTIES:-}" ] || parallelism=8
for setting in "$parallel.enabled=true" "$parallel.config.strategy=fixed" "$parallel.config.fixed.parallelism=$parallelism" \
    "junit.jupiter.execution.timeout.testable.method.default=$timeout s" \
    junit.jupiter.execution.timeout.thread.mode.default=separate_thread junit.platform.output.capture.stdout=true; do
    options+=(--config "$setting")
done
exec java -Xmx1g -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile="$here/log4j2.properties" \
    -cp "$classes:$libs/*:$junit/*" org.junit.platform.console.ConsoleLauncher execute "${options[@]}"
