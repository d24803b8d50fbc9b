#!/usr/bin/env bash
# Builds the Rust clients' programs into the cache and prints where they are.
set -euo pipefail
target=${DURAMEN_CACHE:-$HOME/.cache/duramen}/rust-clients
cd "$(dirname "${BASH_SOURCE[0]}")"
cargo build --quiet --locked --workspace --target-dir "$target" >&2
echo "$target/debug"
