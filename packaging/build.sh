#!/usr/bin/env bash
# Builds the packages into target/packages, on x86-64. README.md has the table of what they are.
#   build.sh                      everything, for both architectures
#   build.sh x86_64 [PART]...     one architecture; parts: static, archive, deb, image, notes
# A part uses what the parts before it have built. SOURCE_DATE_EPOCH gives the time of files; the last commit's otherwise.
# DURAMEN_SIGNING_KEY signs the sums of all, see sums.sh.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
readonly out=$root/target/packages
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)

architectures=(x86_64 aarch64) parts=(static archive deb image notes)
case "${1:-}" in
"") ;;
x86_64 | aarch64)
    architectures=("$1") && shift
    [ $# -eq 0 ] || parts=("$@")
    ;;
*) echo "build: no architecture '$1'; there are x86_64 and aarch64" >&2 && exit 2 ;;
esac
tools=$(packaging/setup.sh)

# Debian's name, and Docker's.
debian() { case $1 in x86_64) echo amd64 ;; aarch64) echo arm64 ;; esac; }

# A binary without dynamic dependencies; zig compiles the C of zstd and ring, and links. zig's linker strips all names or none, so
# that Rust's objcopy takes the debug information away: the names of functions stay for the backtrace of a panic.
static() {
    local sysroot target=$1-unknown-linux-musl
    sysroot=$(rustc --print sysroot)
    PATH=$tools:$PATH CARGO_ZIGBUILD_ZIG_PATH=$tools/python-zig \
        cargo-zigbuild rustc --quiet --locked --release --package duramen --bin duramen --target "$target" -- -C strip=none
    mkdir -p "$out/$1"
    LD_LIBRARY_PATH=$sysroot/lib "$sysroot/lib/rustlib/x86_64-unknown-linux-gnu/bin/rust-objcopy" --strip-debug \
        "$CARGO_TARGET_DIR/$target/release/duramen" "$out/$1/duramen"
}

# Files that the binary itself writes, the same for both architectures, and so those of the machine that builds.
assets() {
    local assets=$out/assets native=$out/x86_64/duramen
    [ -x "$native" ] || static x86_64
    rm -rf "$assets" && mkdir -p "$assets/man"
    "$native" man --dir "$assets/man"
    "$native" completion bash >"$assets/duramen.bash"
    "$native" completion zsh >"$assets/_duramen"
    "$native" completion fish >"$assets/duramen.fish"
    "$native" config example | sed -e 's|^data-dir = .*|data-dir = "/var/lib/duramen"|' \
        -e 's|^# \(http = "127.0.0.1:9644"\)|\1|' >"$assets/duramen.toml"
    printf 'duramen (%s) stable; urgency=medium\n\n  * See changelog.gz beside this file.\n\n -- %s  %s\n' "$version" \
        "$(sed -n 's/^maintainer = "\(.*\)"/\1/p' crates/duramen/Cargo.toml)" "$(date -uRd "@$epoch")" >"$assets/changelog.Debian"
    gzip -9n <CHANGELOG.md >"$assets/changelog.gz"
    notices && cp "$out/third-party/$notices_key.txt" "$assets/THIRD-PARTY.txt"
}

# Licenses of others. cargo-about looks for minutes at each crate, so what it found stays for the same crates and tools.
notices() {
    local file
    notices_key=$(cat Cargo.lock deny.toml packaging/requirements.txt packaging/setup.sh packaging/third-party/* <(rustc -vV) | sha256sum | cut -c1-16)
    file=$out/third-party/$notices_key.txt
    [ ! -s "$file" ] || return 0
    rm -rf "$out/third-party" && mkdir -p "$out/third-party"
    PATH=$tools:$PATH python packaging/third-party/notices.py >"$file.part"
    mv "$file.part" "$file"
}

archive() {
    local name=duramen-$version-$1-linux stage
    stage=$(mktemp -d)
    mkdir "$stage/$name"
    cp -r "$out/$1/duramen" "$out/assets/man" LICENSE README.md CHANGELOG.md "$stage/$name"
    mkdir "$stage/$name/completions" "$stage/$name/systemd"
    cp "$out/assets/"{duramen.bash,_duramen,duramen.fish} "$stage/$name/completions"
    cp packaging/systemd/duramen.service "$stage/$name/systemd"
    cp "$out/assets/"{duramen.toml,THIRD-PARTY.txt} "$stage/$name"
    chmod -R u=rwX,go=rX "$stage"
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -C "$stage" -c "$name" | gzip -9n >"$out/$name.tar.gz"
    rm -r "$stage"
}

deb() {
    cp "$out/$1/duramen" "$out/assets/duramen"
    SOURCE_DATE_EPOCH=$epoch "$tools/cargo-deb" --quiet --no-build --no-strip --locked --package duramen \
        --target "$1-unknown-linux-musl" --output "$out/duramen_${version}_$(debian "$1").deb"
}

# The context of the image, and the image, if podman or a Docker daemon is here. DURAMEN_BUILDER names the command.
image() {
    local context=$out/image builder=${DURAMEN_BUILDER:-} arch
    arch=$(debian "$1")
    mkdir -p "$context/$arch" "$context/data"
    cp packaging/docker/Dockerfile LICENSE "$out/assets/THIRD-PARTY.txt" "$context"
    cp "$out/$1/duramen" "$context/$arch/duramen"
    if [ -z "$builder" ]; then
        if command -v podman >/dev/null; then builder=podman; elif docker info >/dev/null 2>&1; then builder=docker; fi
    fi
    [ -n "$builder" ] || { echo "build: no podman and no Docker daemon: only the context, $context" >&2 && return; }
    "$builder" build --quiet --platform "linux/$arch" --build-arg "TARGETARCH=$arch" --build-arg "VERSION=$version" \
        --tag "duramen:$version-$arch" "$context" >/dev/null
    rm -f "$out/duramen-$version-$arch.image.tar"
    "$builder" save --output "$out/duramen-$version-$arch.image.tar" "duramen:$version-$arch" 2>/dev/null
}

notes() { packaging/release-notes.sh >"$out/release-notes.md"; }

assets_laid=
for architecture in "${architectures[@]}"; do
    for part in "${parts[@]}"; do
        case "$part" in
        static | notes) ;;
        archive | deb | image) [ -n "$assets_laid" ] || { assets && assets_laid=yes; } ;;
        *) echo "build: there is no part '$part'" >&2 && exit 2 ;;
        esac
        echo "$architecture $part"
        "$part" "$architecture"
    done
done
packaging/sums.sh "$out"
