#!/usr/bin/env bash
# Writes SHA256SUMS of the artifacts in a folder, and its signature: sums.sh [FOLDER], of target/packages by default.
# DURAMEN_SIGNING_KEY names the private key, as ssh-keygen knows keys; with the public one, an agent signs.
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/../target/packages}"
rm -f SHA256SUMS SHA256SUMS.sig
sums=$(find . -maxdepth 1 -type f -printf '%P\n' | LC_ALL=C sort | xargs -r -d '\n' sha256sum)
[ -n "$sums" ] || { echo "sums: there is no artifact in $PWD" >&2 && exit 1; }
echo "$sums" >SHA256SUMS
if [ -z "${DURAMEN_SIGNING_KEY:-}" ]; then
    echo "sums: SHA256SUMS is not signed, because DURAMEN_SIGNING_KEY names no key" >&2
    exit
fi
ssh-keygen -q -Y sign -f "$DURAMEN_SIGNING_KEY" -n duramen SHA256SUMS
echo "sums: SHA256SUMS.sig is by $(ssh-keygen -lf "$DURAMEN_SIGNING_KEY")" >&2
