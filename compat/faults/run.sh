#!/usr/bin/env bash
# What breaks outside the broker: run.sh KIND [PART OF A TEST'S NAME]...  KIND is duramen.
# In a mount namespace of its own where that is possible: the small disks it mounts go away with it, however it ends.
set -euo pipefail
python=${DURAMEN_CACHE:-$HOME/.cache/duramen}/venv/bin/python
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
for flags in --mount "--mount --map-root-user"; do
    if unshare $flags true 2>/dev/null; then
        exec unshare $flags "$python" "$here/suite.py" "$@"
    fi
done
exec "$python" "$here/suite.py" "$@"
