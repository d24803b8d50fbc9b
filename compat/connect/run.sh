#!/usr/bin/env bash
# Kafka Connect, one worker on its own, against one broker: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
set -euo pipefail
exec python3 "$(dirname "${BASH_SOURCE[0]}")/suite.py" "$@"
