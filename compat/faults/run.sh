#!/usr/bin/env bash
# What breaks outside the broker: run.sh KIND [PART OF A TEST'S NAME]...  KIND is duramen.
# In a mount namespace of its own where that is possible: the small disks it mounts go away with it, however it ends.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export BROKER_KIND=$1
for flags in --mount "--mount --map-root-user"; do
    if unshare $flags true 2>/dev/null; then
        exec unshare $flags "$here/../pytest.sh" "$here" "${@:2}"
    fi
done
exec "$here/../pytest.sh" "$here" "${@:2}"
