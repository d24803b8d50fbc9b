#!/usr/bin/env bash
# Many partitions on one node, and topics that come and go: run.sh KIND
set -euo pipefail
exec "${DURAMEN_CACHE:-$HOME/.cache/duramen}/venv/bin/python" "$(dirname "${BASH_SOURCE[0]}")/suite.py" "$@"
