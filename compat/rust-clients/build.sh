#!/usr/bin/env bash
# Builds the Rust clients' programs and tests into the cache and prints where the programs are.
set -euo pipefail
target=${DURAMEN_CACHE:-$HOME/.cache/duramen}/rust-clients
cd "$(dirname "${BASH_SOURCE[0]}")"
cargo build --quiet --locked --workspace --target-dir "$target" >&2
cargo test --quiet --locked --workspace --lib --no-run --target-dir "$target" >&2
echo "$target/debug"
