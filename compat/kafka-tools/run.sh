#!/usr/bin/env bash
# Kafka's own command-line tools against one broker, or three that are one cluster: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
# DATA_DIR is the (first) broker's data directory, for the tool that reads segment files.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BOOTSTRAP=$1 exec "$here/../pytest.sh" "$here" "${@:2}"
