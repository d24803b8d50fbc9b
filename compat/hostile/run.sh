#!/usr/bin/env bash
# Clients that mean harm, against Duramen: run.sh KIND [PART OF A TEST'S NAME]...  KIND is duramen.
set -euo pipefail
exec python3 "$(dirname "${BASH_SOURCE[0]}")/suite.py" "$@"
