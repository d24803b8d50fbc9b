#!/usr/bin/env bash
# The sync audit: run.sh KIND. It shows first that it finds servers that lie.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python3 "$here/test_audit.py" itself
exec "${DURAMEN_CACHE:-$HOME/.cache/duramen}/venv/bin/python" "$here/run_broker.py" "$@"
