#!/usr/bin/env bash
# Puts the programs' jars into the cache, compiles what they are to do, and prints each one's class path. Quick when done.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
for pom in "$here"/*/pom.xml; do
    sources=$(dirname "$pom")
    name=$(basename "$sources")
    place=${DURAMEN_CACHE:-$HOME/.cache/duramen}/programs/$name
    if ! cmp -s "$pom" "$place/.complete"; then
        rm -rf "$place"
        mvn -q -B -f "$pom" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$place/jars" >&2
        cp "$pom" "$place/.complete"
    fi
    classes=$place/classes-$(cat "$sources"/*.java | sha256sum | cut -c1-16)
    if [ ! -e "$classes/.complete" ]; then
        javac -Xlint:all,-processing,-classfile,-path -Werror -d "$classes" -cp "$place/jars/*" "$sources"/*.java >&2
        touch "$classes/.complete"
    fi
    echo "$name $classes:$place/jars/*"
done
