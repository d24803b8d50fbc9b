#!/usr/bin/env bash
# Transactional loops while brokers and they themselves are killed: run.sh KIND [PART OF A TEST'S NAME]... The judge shows first
# that it can find fault.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BROKER_KIND=$1 exec "$here/../pytest.sh" "$here" "${@:2}"
