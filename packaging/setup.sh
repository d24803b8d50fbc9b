#!/usr/bin/env bash
# Installs what packages are built and checked with into the cache, outside the clone: the wheels of requirements.txt, cargo-deb,
# cargo-about, and kustomize. Adds Rust's standard library for the two targets. Quick when done. Prints the folder of the programs.
#   setup.sh          everything
#   setup.sh check    only what the checks of files need: no Rust, no cargo-deb, no cargo-about
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DURAMEN_CACHE:-$HOME/.cache/duramen}
tools=$cache/packaging
readonly cargo_deb=3.8.0 cargo_about=0.9.3

mkdir -p "$cache"
if ! cmp -s "$here/requirements.txt" "$tools/.installed"; then
    python3 -m venv --clear "$tools" >&2
    "$tools/bin/pip" install --quiet --disable-pip-version-check --retries 2 \
        --require-hashes --only-binary :all: --requirement "$here/requirements.txt" >&2
    cp "$here/requirements.txt" "$tools/.installed"
fi
(cd "$here/kustomize" && go build -o "$tools/bin/kustomize" sigs.k8s.io/kustomize/kustomize/v5)
if [ "${1:-}" != check ]; then
    built=$cache/packaging-cargo
    install() {
        local name=$1 version=$2
        if [ "$("$built/bin/$name" --version 2>/dev/null)" != "$name $version" ]; then
            (cd "$cache" && env -u CARGO_TARGET_DIR cargo install --quiet --locked --version "=$version" --root "$built" "$name" "${@:3}") >&2
        fi
        ln -sf "$built/bin/$name" "$tools/bin/$name"
    }
    install cargo-deb "$cargo_deb"
    install cargo-about "$cargo_about" --features cli
    for target in x86_64-unknown-linux-musl aarch64-unknown-linux-musl; do
        [ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || rustup target add "$target" >&2
    done
fi
echo "$tools/bin"
