#!/usr/bin/env bash
# Builds the two programs here into the cache and prints where they are.
set -euo pipefail
binaries=${DURAMEN_CACHE:-$HOME/.cache/duramen}/kafka-go/
mkdir -p "$binaries"
cd "$(dirname "${BASH_SOURCE[0]}")"
go build -o "$binaries" ./...
echo "$binaries"
