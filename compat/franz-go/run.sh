#!/usr/bin/env bash
# franz-go against one broker: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
binary=${DURAMEN_CACHE:-$HOME/.cache/duramen}/franz-go
(cd "$here" && go build -o "$binary" .)
exec "$binary" "$@"
