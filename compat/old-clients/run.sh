#!/usr/bin/env bash
# Clients between the oldest and the newest against one broker: run.sh BOOTSTRAP [PART OF A CLIENT'S NAME]...
# OLD_CLIENTS=all for every version that is installed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BOOTSTRAP=$1 WORKERS=3 exec "$here/../pytest.sh" "$here" "${@:2}"
