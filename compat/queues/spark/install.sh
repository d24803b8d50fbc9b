#!/usr/bin/env bash
# Puts Spark's jars into the cache, compiles what it is to do, and prints the class path. Quick when done.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=${DURAMEN_CACHE:-$HOME/.cache/duramen}/queues-spark
if ! cmp -s "$here/pom.xml" "$place/.complete"; then
    rm -rf "$place"
    mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$place/jars" >&2
    cp "$here/pom.xml" "$place/.complete"
fi
classes=$place/classes-$(sha256sum <"$here/SparkReads.java" | cut -c1-16)
if [ ! -e "$classes/.complete" ]; then
    javac -Xlint:all,-processing,-classfile,-path -Werror -d "$classes" -cp "$place/jars/*" "$here/SparkReads.java" >&2
    touch "$classes/.complete"
fi
echo "$classes:$place/jars/*"
