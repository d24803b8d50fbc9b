#!/usr/bin/env bash
# Consumer groups of every client under churn and a kill of the broker: run.sh KIND [CLIENT]... The judge shows first that it
# can find fault.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python3 "$here/test_judge.py" itself
exec "${DURAMEN_CACHE:-$HOME/.cache/duramen}/venv/bin/python" "$here/churn.py" "$@"
