#!/usr/bin/env bash
# Builds gotestsum, which writes JUnit XML of Go tests, into the cache and prints where it is.
set -euo pipefail
binary=${DURAMEN_CACHE:-$HOME/.cache/duramen}/gotestsum
cd "$(dirname "${BASH_SOURCE[0]}")"
go build -o "$binary" gotest.tools/gotestsum
echo "$binary"
