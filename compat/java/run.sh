#!/usr/bin/env bash
# The Java client (of the version in ../kafka/pom.xml) against one broker: run.sh BOOTSTRAP [PART OF A TEST'S NAME]...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
libs=$("$here/../kafka/fetch.sh")
classes=$("$here/compile.sh")
exec java -Xmx1g -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile="$here/log4j2.properties" \
    -cp "$classes:$libs/*" Suite "$@"
