#!/usr/bin/env bash
# What must survive a kill and a stop: run.sh KIND
set -euo pipefail
exec python3 "$(dirname "${BASH_SOURCE[0]}")/suite.py" "$@"
