#!/usr/bin/env bash
# Builds the load generator for peers of Duramen's queues, and the NATS server, into the cache; finds a Redis server, or installs
# Debian's. Prints the directory with `peers`, `nats-server` and `redis-server`. Whatever cannot be had is not there, and stderr
# says why.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=${DURAMEN_CACHE:-$HOME/.cache/duramen}/peers
mkdir -p "$place"
echo "$place"

if command -v go >/dev/null; then
    (cd "$here" && go build -o "$place/peers" . && go build -o "$place/nats-server" github.com/nats-io/nats-server/v2) >&2 ||
        echo "peers: go build failed: no NATS, and no load for any peer" >&2
else
    echo "peers: there is no go: no NATS, and no load for any peer" >&2
fi

# Debian's redis-tools has the server's binary under another name. Its redis-server would start one.
if [ ! -x "$place/redis-server" ]; then
    if server=$(command -v redis-server); then
        ln -sf "$server" "$place/redis-server"
    else
        if ! command -v redis-check-rdb >/dev/null && [ "$(id -u)" -eq 0 ]; then
            { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq redis-tools; } >&2 ||
                echo "peers: apt-get install redis-tools failed" >&2
        fi
        if server=$(command -v redis-check-rdb); then
            ln -sf "$server" "$place/redis-server"
        else
            echo "peers: no redis-server, and no redis-check-rdb of Debian's redis-tools: no Redis" >&2
        fi
    fi
fi
exit 0
