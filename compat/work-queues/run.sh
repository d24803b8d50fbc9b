#!/usr/bin/env bash
# Workers of queue topics, native ones and Kafka's share consumers: run.sh KIND [PART OF A TEST'S NAME]...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BROKER_KIND=$1 WORKERS=2 exec "$here/../pytest.sh" "$here" "${@:2}"
