#!/usr/bin/env bash
# Kafka Connect against one broker: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BOOTSTRAP=$1 exec "$here/../pytest.sh" "$here" "${@:2}"
