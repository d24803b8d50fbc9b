#!/usr/bin/env bash
# Compacted topics on one broker, and on three while one of them is away: run.sh KIND [PART OF A TEST'S NAME]...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BROKER_KIND=$1 exec "$here/../pytest.sh" "$here" "${@:2}"
