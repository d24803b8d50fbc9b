#!/usr/bin/env bash
# Three nodes, real clients and faults on a seeded schedule: run.sh [--seed N] [--minutes N] [--faults NAMES] ...; README.md.
# DURAMEN_BIN is the binary under test, target/release/duramen by default. The checker shows first that it finds fault.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DURAMEN_CACHE:-$HOME/.cache/duramen}
export DURAMEN_BIN=${DURAMEN_BIN:-$here/../target/release/duramen} CHAOS_DIRECTORY=$here
mkdir -p "$cache/chaos"
"$here/../compat/setup.sh" python
if ! command -v nft >/dev/null && [ "$(id -u)" -eq 0 ]; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq nftables >/dev/null
fi
cd "$here"
go test -count=1 ./...
go build -o "$cache/chaos/" .
runner=("$cache/chaos/chaos" --python "$cache/venv/bin/python" "$@")
# Networks, mounts and processes of its own, where that is possible: all of it goes away with the run, however it ends.
for flags in "" --map-root-user; do
    if unshare $flags --net --mount --pid --fork --kill-child ip link set lo up 2>/dev/null; then
        exec unshare $flags --net --mount --pid --fork --kill-child \
            bash -c 'ip link set lo up && CHAOS_OWN_NAMESPACE=yes exec "$@"' chaos "${runner[@]}"
    fi
done
exec "${runner[@]}"
