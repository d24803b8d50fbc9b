#!/usr/bin/env bash
# Puts the jars of the real Apache Kafka into the cache and prints their directory. Quick when they are there.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$(sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' "$here/pom.xml")
libs=${DURAMEN_CACHE:-$HOME/.cache/duramen}/kafka-$version/libs
if ! cmp -s "$here/pom.xml" "$libs/.complete"; then
    mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$libs" >&2
    cp "$here/pom.xml" "$libs/.complete"
fi
echo "$libs"
