#!/usr/bin/env bash
# Puts the old clients into the cache, each version beside the others, and prints the directory. Quick when done.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=${DURAMEN_CACHE:-$HOME/.cache/duramen}/old-clients
"$here/java/build.sh" >/dev/null
while read -r version; do
    [ ! -e "$place/$version/.complete" ] || continue
    rm -rf "${place:?}/$version" && mkdir -p "$place/$version"
    case "$version" in
    *==*) "$place/../venv/bin/pip" install -q --disable-pip-version-check --no-deps --target "$place/$version" "$version" >&2 ;;
    *@*) (cd "$place/$version" && npm install --silent --no-audit --no-fund "$version" >&2) ;;
    esac
    touch "$place/$version/.complete"
done <"$here/versions.txt"
shopt -s nullglob
for module in "$here"/*/[0-9]*.mod; do
    client=$(basename "$(dirname "$module")")
    (cd "$(dirname "$module")" && go build -modfile "$(basename "$module")" -o "$place/$client-$(basename "$module" .mod)" .)
done
echo "$place"
