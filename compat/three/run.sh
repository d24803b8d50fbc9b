#!/usr/bin/env bash
# What is built on Kafka, against three brokers that are killed and started again in turn: run.sh KIND [PART OF A SUITE'S NAME]...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BROKER_KIND=$1 exec "$here/../pytest.sh" "$here" "${@:2}"
