#!/usr/bin/env bash
# rskafka against one broker: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
set -euo pipefail
binaries=$("$(dirname "${BASH_SOURCE[0]}")/../rust-clients/build.sh")
exec "$binaries/rskafka-suite" "$@"
