#!/usr/bin/env bash
# kafkajs against one broker: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export KAFKAJS_NO_PARTITIONER_WARNING=1
reporters=(--test-reporter spec --test-reporter-destination stdout)
[ -z "${JUNIT_DIR:-}" ] || reporters+=(--test-reporter junit --test-reporter-destination "$JUNIT_DIR/kafkajs.xml")
patterns=()
for part in "${@:2}"; do
    patterns+=(--test-name-pattern "$part")
done
NODE_PATH=$("$here/install.sh") BOOTSTRAP=$1 exec node --test "${reporters[@]}" "${patterns[@]}" "$here/kafkajs.test.js"
