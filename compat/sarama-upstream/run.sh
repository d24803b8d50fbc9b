#!/usr/bin/env bash
# Sarama's own functional tests, over TLS with a password: run.sh KIND [PART OF A TEST'S NAME]...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PYTHONPATH=$here/.. PYTHONDONTWRITEBYTECODE=1
exec python3 "$here/run.py" "$@"
