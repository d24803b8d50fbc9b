#!/usr/bin/env bash
# Kafka's tools for clusters against three brokers that are one: run.sh KIND [PART OF A TEST'S NAME]...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BROKER_KIND=$1 exec "$here/../pytest.sh" "$here" "${@:2}"
