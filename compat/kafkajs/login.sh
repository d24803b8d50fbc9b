#!/usr/bin/env bash
# A client of ../security: login.sh BOOTSTRAP CA USER PASSWORD TOPIC VALUE
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
NODE_PATH=$("$here/install.sh") exec node "$here/login.js" "$@"
