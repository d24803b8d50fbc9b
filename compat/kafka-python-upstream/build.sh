#!/usr/bin/env bash
# Puts kafka-python's own tests into the cache, out of its source distribution on PyPI, and prints their folder.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DURAMEN_CACHE:-$HOME/.cache/duramen}
wanted=$(grep '^kafka-python==' "$here/../kafka-python/requirements.txt")
tests=$cache/kafka-python-upstream/${wanted#*==}
if ! cmp -s "$here/build.sh" "$tests/.complete"; then
    rm -rf "$tests" && mkdir -p "$tests"
    "$cache/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest "$tests" "$wanted" >&2
    tar -xzf "$tests"/kafka*.tar.gz -C "$tests" --strip-components=1 --wildcards '*/test/*'
    # Two files that the distribution leaves out; brokers.py stands in for what the second one starts.
    touch "$tests/test/__init__.py"
    printf 'class ExternalService:\n    pass\n\n\nclass SpawnedService:\n    pass\n' >"$tests/test/service.py"
    cp "$here/build.sh" "$tests/.complete"
fi
echo "$tests"
