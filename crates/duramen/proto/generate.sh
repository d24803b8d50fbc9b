#!/usr/bin/env bash
# Writes src/proto/ from duramen/v1/duramen.proto. With --check it changes nothing, and fails if that would.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
target=${CARGO_TARGET_DIR:-$PWD/../../../target}/generate
before=$(mktemp -d)
trap 'rm -r "$before"' EXIT
cp ../src/proto/* "$before/" 2>/dev/null || true
cargo run --quiet --manifest-path generate/Cargo.toml --target-dir "$target"
if [ "${1:-}" = --check ] && ! diff -r "$before" ../src/proto >&2; then
    echo "proto: src/proto is not that of duramen.proto; run crates/duramen/proto/generate.sh" >&2
    cp "$before"/* ../src/proto/
    exit 1
fi
