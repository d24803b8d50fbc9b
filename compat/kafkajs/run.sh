#!/usr/bin/env bash
# kafkajs against one broker: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export KAFKAJS_NO_PARTITIONER_WARNING=1
NODE_PATH=$("$here/install.sh") exec node "$here/suite.js" "$@"
