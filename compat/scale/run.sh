#!/usr/bin/env bash
# Many partitions on one node, and topics that come and go: run.sh KIND
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BROKER_KIND=$1 exec "$here/../pytest.sh" "$here" "${@:2}"
