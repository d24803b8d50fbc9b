#!/usr/bin/env bash
# Share groups: run.sh KIND [PART OF A TEST'S NAME]... The judge shows first that it can find fault.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python3 "$here/test_judge.py" itself
exec "${DURAMEN_CACHE:-$HOME/.cache/duramen}/venv/bin/python" "$here/suite.py" "$@"
