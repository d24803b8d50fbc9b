#!/usr/bin/env bash
# rust-rdkafka against one broker: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
set -euo pipefail
binaries=$("$(dirname "${BASH_SOURCE[0]}")/../rust-clients/build.sh")
exec "$binaries/rust-rdkafka" "$@"
