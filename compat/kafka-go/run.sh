#!/usr/bin/env bash
# kafka-go against one broker: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BOOTSTRAP=$1 exec "$here/../gosuite/run.sh" "$here" "${@:2}"
