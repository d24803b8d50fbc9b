#!/usr/bin/env bash
# Clients that come by TLS or with a password: run.sh KIND [PART OF A TEST'S NAME]...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BROKER_KIND=$1 exec "$here/../pytest.sh" "$here" "${@:2}"
