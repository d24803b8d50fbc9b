#!/usr/bin/env bash
# kafka-python's own tests over TLS and with passwords: run.sh KIND [PART OF A TEST'S NAME]...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tests=$("$here/build.sh")
export BROKER_KIND=$1 KAFKA_VERSION=4.0.0 KAFKA_ROOT=/ PYTHONPATH=$tests:$here:$here/.. PYTHONDONTWRITEBYTECODE=1
shift
options=()
[ -z "${JUNIT_DIR:-}" ] || options+=(--junitxml "$JUNIT_DIR/kafka-python-upstream.xml")
if [ $# -gt 0 ]; then
    parts=$(printf ' or %s' "$@")
    options+=(-k "${parts# or }")
fi
PYTEST_TIMEOUT=$(awk -v slowness="${SLOWNESS:-1}" 'BEGIN { print 120 * slowness }')
export PYTEST_TIMEOUT
cd "$tests"
exec "${DURAMEN_CACHE:-$HOME/.cache/duramen}/venv/bin/python" -m pytest -p brokers -p no:cacheprovider -rs --tb=short --no-header \
    --disable-warnings "${options[@]}" test/integration/test_sasl_integration.py test/integration/test_ssl_integration.py
