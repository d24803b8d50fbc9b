#!/usr/bin/env bash
# Builds the tests and the programs here into the cache and prints where they are.
set -euo pipefail
binaries=${DURAMEN_CACHE:-$HOME/.cache/duramen}/franz-go/
mkdir -p "$binaries"
cd "$(dirname "${BASH_SOURCE[0]}")"
go build -o "$binaries" ./...
go test -c -o "$binaries/franz-go.test" .
echo "$binaries"
