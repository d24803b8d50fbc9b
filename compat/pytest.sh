#!/usr/bin/env bash
# Runs one Python suite: pytest.sh DIRECTORY [PART OF A TEST'S NAME]...
# BOOTSTRAP or BROKER_KIND names the brokers. SLOWNESS scales a test's two minutes, WORKERS tests that wait run at the same
# time, SHORT selects the gate's tests, and JUNIT_DIR gets the results.
set -euo pipefail
compat=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
directory=$1 suite=$(basename "$1")
shift
options=()
[ -z "${WORKERS:-}" ] || options+=(-n "$WORKERS" --dist loadgroup)
[ -z "${SHORT:-}" ] || options+=(-m short)
[ -z "${JUNIT_DIR:-}" ] || options+=(--junitxml "$JUNIT_DIR/$suite.xml" -o "junit_suite_name=$suite")
if [ $# -gt 0 ]; then
    parts=$(printf ' or %s' "$@")
    options+=(-k "${parts# or }")
fi
export PYTEST_TIMEOUT
PYTEST_TIMEOUT=$(awk -v slowness="${SLOWNESS:-1}" 'BEGIN { print 120 * slowness }')
exec "${DURAMEN_CACHE:-$HOME/.cache/duramen}/venv/bin/python" -m pytest -c "$compat/pytest.ini" --rootdir "$compat" "${options[@]}" "$directory"
