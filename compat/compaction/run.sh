#!/usr/bin/env bash
# Compacted topics on one broker, and on three while one of them is away: run.sh KIND [PART OF A TEST'S NAME]...
set -euo pipefail
exec "${DURAMEN_CACHE:-$HOME/.cache/duramen}/venv/bin/python" "$(dirname "${BASH_SOURCE[0]}")/suite.py" "$@"
