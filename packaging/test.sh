#!/usr/bin/env bash
# Tests the packages in target/packages: test.sh [PART]..., after packaging/build.sh; README.md says what each part sees.
#   files     what lies here: scripts, Dockerfile, unit, manifests, release notes; needs no build
#   static    both static binaries, alone in a root
#   archive   the archives, licenses of others in all packages, sums
#   deb       the package, on a fresh Debian with a systemd of its own
#   image     the image, in a container
#   pods      the pods of the StatefulSet, in containers with networks of their own
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(files static archive deb image pods)

# Debian's packages, as command:package.
declare -A needs=(
    [files]="systemd-analyze:systemd ssh-keygen:openssh-client"
    [static]="qemu-aarch64-static:qemu-user-static readelf:binutils"
    [archive]=""
    [deb]="debootstrap:debootstrap systemd-nspawn:systemd-container lintian:lintian zsh:zsh fish:fish mandoc:mandoc
        qemu-aarch64-static:qemu-user-static"
    [image]="podman:podman runc:runc qemu-aarch64-static:qemu-user-static"
    [pods]="podman:podman runc:runc ip:iproute2 openssl:openssl curl:curl"
)
missing=()
for part in "${parts[@]}"; do
    [ -n "${needs[$part]+set}" ] || { echo "test: there is no part '$part'; the parts are ${!needs[*]}" >&2 && exit 2; }
    for pair in ${needs[$part]}; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
    done
done
if [ "$(id -u)" -ne 0 ]; then
    [ "${parts[*]}" = files ] && [ ${#missing[@]} -eq 0 ] || { echo "test: containers and chroot need root" >&2 && exit 1; }
elif [ ${#missing[@]} -gt 0 ]; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
tools=$(./setup.sh check)
export PATH=$tools:$PATH PYTHONDONTWRITEBYTECODE=1
files=("${parts[@]/#/tests/test_}")
exec "$tools/python" -m pytest -c tests/pytest.ini "${files[@]/%/.py}"
