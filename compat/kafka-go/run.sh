#!/usr/bin/env bash
# kafka-go against one broker: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
set -euo pipefail
binaries=$("$(dirname "${BASH_SOURCE[0]}")/build.sh")
exec "$binaries/kafka-go" "$@"
