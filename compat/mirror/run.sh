#!/usr/bin/env bash
# MirrorMaker 2 between the two brokers, and from Apache Kafka: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
# STRICT_BOOTSTRAP is the broker that is copied from.
set -euo pipefail
exec "${DURAMEN_CACHE:-$HOME/.cache/duramen}/venv/bin/python" "$(dirname "${BASH_SOURCE[0]}")/suite.py" "$@"
