#!/usr/bin/env bash
# Schemathesis against the native API of one broker: run.sh KIND [PART OF A TEST'S NAME]...
# NATIVE=HOST:PORT names a broker's native API that is there; without it a broker is started for the suite.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -z "${NATIVE:-}" ]; then
    directory=$(mktemp -d --tmpdir duramen-openapi-XXXXXX)
    trap 'rm -rf "$directory"' EXIT
    DATA="$directory/data" python3 "$here/../broker.py" --kind "$1" --data-dir "$directory/data" -- bash -c '
        export NATIVE=$(grep -oE "serving the native API.*" "$DATA.log" | grep -oE "127\.0\.0\.1:[0-9]+" | head -1)
        exec "$@"' bash "$0" "$@"
    exit
fi
BROKER_KIND=$1 "$here/../pytest.sh" "$here" "${@:2}"
