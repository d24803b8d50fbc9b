#!/usr/bin/env bash
# Kafka's own command-line tools against one broker: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
# DATA_DIR is the broker's data directory, for the tool that reads segment files.
set -euo pipefail
exec python3 "$(dirname "${BASH_SOURCE[0]}")/suite.py" "$@"
