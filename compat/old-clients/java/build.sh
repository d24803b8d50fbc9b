#!/usr/bin/env bash
# Puts the jars of kafka-clients into the cache, compiles against the oldest of them, and prints where all of that is. Quick when done.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$(cat "$here"/*.java "$here"/pom.xml | sha256sum | cut -c1-16)
place=${DURAMEN_CACHE:-$HOME/.cache/duramen}/old-clients/java-$version
if [ ! -e "$place/.complete" ]; then
    mvn -q -B -f "$here/pom.xml" dependency:copy -DoutputDirectory="$place/jars" >&2
    oldest=$(ls "$place/jars" | sort -V | head -1)
    javac -Xlint:all,-processing,-classfile -Werror -d "$place/scenario" -cp "$place/jars/$oldest" "$here/Scenario.java" >&2
    javac -Xlint:all,-processing -Werror -d "$place/launcher" "$here/OldClients.java" >&2
    touch "$place/.complete"
fi
echo "$place"
