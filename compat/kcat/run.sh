#!/usr/bin/env bash
# kcat against one broker: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
set -euo pipefail
exec python3 "$(dirname "${BASH_SOURCE[0]}")/suite.py" "$@"
