#!/usr/bin/env bash
# Kill -9 in a loop under real producers: run.sh KIND [SECONDS] [SEED]. The judge shows that it can find fault.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BROKER_KIND=$1 KILL9_SECONDS=${2:-60} SEED=${3:-} exec "$here/../pytest.sh" "$here"
