#!/usr/bin/env bash
# Clients that come by TLS: run.sh KIND [PART OF A TEST'S NAME]...  KIND is duramen.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BROKER_KIND=$1 exec "$here/../pytest.sh" "$here" "${@:2}"
