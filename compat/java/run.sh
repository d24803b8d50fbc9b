#!/usr/bin/env bash
# The Java client (of the version in ../kafka/pom.xml) against one broker: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BOOTSTRAP=$1 exec "$here/junit.sh" Log,AdminCalls,Groups,ConsumerGroups,Transactions "${@:2}"
