#!/usr/bin/env bash
# The sync audit: run.sh KIND. It shows first that it finds servers that lie.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BROKER_KIND=$1 exec "$here/../pytest.sh" "$here" "${@:2}"
