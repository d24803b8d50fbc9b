#!/usr/bin/env bash
# Builds Sarama's own functional tests into the cache and prints the program. They come in as secured.go.txt says: theirs know no
# login, and their brokers lie behind proxies of docker compose.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DURAMEN_CACHE:-$HOME/.cache/duramen}/sarama-upstream
source=$(cd "$here/../sarama" && go mod download github.com/IBM/sarama && go list -m -f '{{.Dir}}' github.com/IBM/sarama)
wanted=$(cat "$here/build.sh" "$here/secured.go.txt" && echo "$source")
if [ "$(cat "$cache/.complete" 2>/dev/null)" != "$wanted" ]; then
    rm -rf "$cache" && mkdir -p "$cache"
    cp -r --no-preserve=mode "$source" "$cache/source"
    cd "$cache/source"
    cp "$here/secured.go.txt" secured_test.go
    sed -i -e 's/i <= 5; i++/i <= 3; i++/' -e 's/fmt.Sprintf("127.0.0.1:%d", 29090+i)/addressOf(i)/' \
        -e '/^func NewFunctionalTestConfig/,/^}/s/return config/return secured(config)/' functional_test.go
    [ "$(grep -c 'addressOf(i)\|return secured(config)' functional_test.go)" -eq 2 ]
    go test -tags functional -c -o "$cache/sarama-upstream.test" .
    echo "$wanted" >"$cache/.complete"
fi
echo "$cache/sarama-upstream.test"
