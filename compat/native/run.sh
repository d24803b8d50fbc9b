#!/usr/bin/env bash
# Clients of the native API against one broker, or three of one cluster: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BOOTSTRAP=$1 exec "$here/../pytest.sh" "$here" "${@:2}"
