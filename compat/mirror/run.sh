#!/usr/bin/env bash
# MirrorMaker 2 between the two brokers, and from Apache Kafka: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
# STRICT_BOOTSTRAP is the broker that is copied from.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BOOTSTRAP=$1 exec "$here/../pytest.sh" "$here" "${@:2}"
