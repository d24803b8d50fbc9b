#!/usr/bin/env bash
# Builds the tests and the programs here into the cache and prints where they are.
set -euo pipefail
binaries=${DURAMEN_CACHE:-$HOME/.cache/duramen}/sarama/
mkdir -p "$binaries"
cd "$(dirname "${BASH_SOURCE[0]}")"
go build -o "$binaries" ./...
go test -c -o "$binaries/sarama.test" .
echo "$binaries"
