#!/usr/bin/env bash
# rust-rdkafka against one broker: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
set -euo pipefail
BOOTSTRAP=$1 exec "$(dirname "${BASH_SOURCE[0]}")/../rust-clients/run.sh" rust-rdkafka "${@:2}"
