#!/usr/bin/env bash
# Installs kafkajs into the cache and prints the directory of its modules.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=${DURAMEN_CACHE:-$HOME/.cache/duramen}/kafkajs
if ! cmp -s "$here/package.json" "$place/package.json" || [ ! -d "$place/node_modules/kafkajs" ]; then
    mkdir -p "$place"
    (cd "$place" && rm -rf node_modules && cp "$here/package.json" . && npm install --silent --no-audit --no-fund >&2)
fi
echo "$place/node_modules"
