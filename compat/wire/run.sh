#!/usr/bin/env bash
# The wire suite against one broker: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
# STRICT_BOOTSTRAP is the second broker (see ../README.md), BROKER_KIND says whose answers are expected.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BOOTSTRAP=$1 exec "$here/../pytest.sh" "$here" "${@:2}"
