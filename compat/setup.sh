#!/usr/bin/env bash
# Installs what compat/ needs beyond the toolchains (Rust, Go, Java with Maven, Node, Python): two Debian packages, a Python
# environment, Kafka's jars, and what the clients need. All of it goes into the cache, outside the clone. Quick when done.
# setup.sh [CLIENT]...: only those clients; default: all.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DURAMEN_CACHE:-$HOME/.cache/duramen}
mkdir -p "$cache"

missing=()
for tool in kcat strace; do
    command -v "$tool" >/dev/null || missing+=("$tool")
done
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" -ne 0 ]; then
        echo "compat needs ${missing[*]}; as root: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null
fi

# One environment for pytest and the Python clients, made anew when a pinned version changes.
wanted=$(cat "$here"/requirements.txt "$here"/*/requirements.txt)
if [ "$(cat "$cache/venv/.installed" 2>/dev/null)" != "$wanted" ]; then
    python3 -m venv --clear "$cache/venv"
    "$cache/venv/bin/pip" install -q --disable-pip-version-check $wanted
    echo "$wanted" >"$cache/venv/.installed"
fi

# Sequential on purpose: each of these may have to download.
clients=("$@")
[ ${#clients[@]} -gt 0 ] || clients=(java franz-go sarama kafka-go rust-clients kafkajs old-clients native librdkafka kafka-python-upstream sarama-upstream)
for client in "${clients[@]}"; do
    case "$client" in
    python) ;; # the environment above, which every client's suite has
    java) "$here/kafka/fetch.sh" >/dev/null && "$here/java/compile.sh" >/dev/null ;;
    kafkajs | old-clients) "$here/$client/install.sh" >/dev/null ;;
    franz-go | sarama | kafka-go) "$here/gotestsum/build.sh" >/dev/null && "$here/$client/build.sh" >/dev/null ;;
    *) "$here/$client/build.sh" >/dev/null ;;
    esac
done
