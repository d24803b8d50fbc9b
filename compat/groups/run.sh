#!/usr/bin/env bash
# Consumer groups of every client under churn and a kill of the broker: run.sh KIND [CLIENT]... The judge shows first that it
# can find fault.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BROKER_KIND=$1 exec "$here/../pytest.sh" "$here" "${@:2}"
