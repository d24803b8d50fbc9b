#!/usr/bin/env bash
# What is built on Kafka, against three brokers that are killed and started again in turn: run.sh KIND [PART OF A SUITE'S NAME]...
set -euo pipefail
exec "${DURAMEN_CACHE:-$HOME/.cache/duramen}/venv/bin/python" "$(dirname "${BASH_SOURCE[0]}")/suite.py" "$@"
