#!/usr/bin/env bash
# Runs the suite of one Rust client: run.sh PACKAGE [PART OF A TEST'S NAME]...
# BOOTSTRAP names the broker. SLOWNESS scales the bounds, and JUNIT_DIR gets the results.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
package=$1
shift
target=${DURAMEN_CACHE:-$HOME/.cache/duramen}/rust-clients
# All packages, as build.sh builds them: with other features the dependencies would be compiled again.
built=$(cargo test --quiet --locked --workspace --lib --no-run --message-format json --target-dir "$target")
tests=$(sed -n "s/.*\"name\":\"${package//-/_}\".*\"executable\":\"\([^\"]*\)\".*/\1/p" <<<"$built")
limit=$(awk -v slowness="${SLOWNESS:-1}" 'BEGIN { print 400 * slowness }')
# The tests mostly wait.
options=(--test-threads 4)
if [ -n "${JUNIT_DIR:-}" ]; then
    # The stable libtest writes JUnit XML, too, where it takes itself for an unstable one.
    options+=(-Z unstable-options --format junit)
    exec >"$JUNIT_DIR/$package.xml"
fi
RUSTC_BOOTSTRAP=1 exec timeout --signal=KILL "$limit" "$tests" "${options[@]}" "$@"
