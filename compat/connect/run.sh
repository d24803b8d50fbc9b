#!/usr/bin/env bash
# Kafka Connect against one broker: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
set -euo pipefail
exec "${DURAMEN_CACHE:-$HOME/.cache/duramen}/venv/bin/python" "$(dirname "${BASH_SOURCE[0]}")/suite.py" "$@"
