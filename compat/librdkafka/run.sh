#!/usr/bin/env bash
# librdkafka's own tests of security: run.sh KIND [PART OF A TEST'S NAME]...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
RUNNER=$("$here/build.sh")
export RUNNER
# Each of pytest's processes has a cluster of its own: three more JVMs would make the machine slow.
[ "$1" = kafka ] || export WORKERS=2
BROKER_KIND=$1 exec "$here/../pytest.sh" "$here" "${@:2}"
