#!/usr/bin/env bash
# Duramen's command line against one broker of either kind: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
set -euo pipefail
exec python3 "$(dirname "${BASH_SOURCE[0]}")/suite.py" "$@"
