#!/usr/bin/env bash
# Real clients against Duramen and against Apache Kafka: run.sh [--short] [--broker duramen|kafka] [--suite NAME]...; see README.md.
# DURAMEN_BIN is the binary under test, target/release/duramen by default.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
case " $* " in
*" --short "*) "$here/setup.sh" java franz-go kafkajs ;;
*) "$here/setup.sh" ;;
esac
exec python3 "$here/run.py" "$@"
