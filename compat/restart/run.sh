#!/usr/bin/env bash
# What must survive a kill and a stop: run.sh KIND
set -euo pipefail
exec "${DURAMEN_CACHE:-$HOME/.cache/duramen}/venv/bin/python" "$(dirname "${BASH_SOURCE[0]}")/suite.py" "$@"
