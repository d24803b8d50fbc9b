#!/usr/bin/env bash
# Kafka's tools for clusters against three brokers that are one: run.sh KIND [PART OF A TEST'S NAME]...
set -euo pipefail
exec python3 "$(dirname "${BASH_SOURCE[0]}")/suite.py" "$@"
