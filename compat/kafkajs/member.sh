#!/usr/bin/env bash
# A member of ../groups: member.sh BOOTSTRAP TOPIC GROUP
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
NODE_PATH=$("$here/install.sh") exec node "$here/member.js" "$@"
