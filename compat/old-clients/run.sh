#!/usr/bin/env bash
# Clients between the oldest and the newest against one broker: run.sh BOOTSTRAP [PART OF A CLIENT'S NAME]...
# OLD_CLIENTS=all for every version that is installed.
set -euo pipefail
exec python3 "$(dirname "${BASH_SOURCE[0]}")/suite.py" "$@"
