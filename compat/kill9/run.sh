#!/usr/bin/env bash
# Kill -9 in a loop under real producers: run.sh KIND [SECONDS] [SEED]. The judge shows first that it can find fault.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python3 "$here/test_judge.py" itself
exec "${DURAMEN_CACHE:-$HOME/.cache/duramen}/venv/bin/python" "$here/loop.py" "$@"
