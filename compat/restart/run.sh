#!/usr/bin/env bash
# What must survive a kill and a stop: run.sh KIND
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BROKER_KIND=$1 exec "$here/../pytest.sh" "$here" "${@:2}"
