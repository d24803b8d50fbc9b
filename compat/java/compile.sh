#!/usr/bin/env bash
# Compiles the Java sources here and in ../{kafka-tools,streams,shares,queues,work-queues} into the cache when they have changed;
# prints where the classes are.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
libs=$("$here/../kafka/fetch.sh")
junit=$("$here/fetch.sh")
sources=("$here"/*.java "$here"/../{kafka-tools,streams,shares,queues,work-queues}/*.java)
version=$(cat "${sources[@]}" "$here/../kafka/pom.xml" "$here/pom.xml" | sha256sum | cut -c1-16)
classes=${DURAMEN_CACHE:-$HOME/.cache/duramen}/java-$version
if [ ! -e "$classes/.complete" ]; then
    javac -Xlint:all,-processing,-classfile -Werror -d "$classes" -cp "$libs/*:$junit/*" "${sources[@]}" >&2
    touch "$classes/.complete"
fi
echo "$classes"
