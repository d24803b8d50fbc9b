#!/usr/bin/env bash
# Programs that bring old kafka-clients against one broker: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
set -euo pipefail
exec "${DURAMEN_CACHE:-$HOME/.cache/duramen}/venv/bin/python" "$(dirname "${BASH_SOURCE[0]}")/suite.py" "$@"
