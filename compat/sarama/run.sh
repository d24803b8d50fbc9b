#!/usr/bin/env bash
# Sarama against one broker: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
set -euo pipefail
binaries=$("$(dirname "${BASH_SOURCE[0]}")/build.sh")
exec "$binaries/sarama" "$@"
