#!/usr/bin/env bash
# Prints the section of a version out of CHANGELOG.md, without its heading: release-notes.sh [VERSION] [FILE].
# Without a version: that of the workspace, or "Unreleased" while the version has no section.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
version=${1:-} file=${2:-$root/CHANGELOG.md}

# Headings are "## 1.2.3", or "## 1.2.3 (2026-01-31)".
section() {
    awk -v version="$1" '
        /^## / { inside = ($2 == version); next }
        inside { lines[++count] = $0; if (NF) last = count }
        END { for (i = 1; i <= last; i++) if (i > 1 || lines[i] != "") print lines[i] }' "$file"
}

if [ -n "$version" ]; then
    notes=$(section "$version")
else
    version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml")
    notes=$(section "$version")
    [ -n "$notes" ] || { version=Unreleased && notes=$(section Unreleased); }
fi
[ -n "$notes" ] || { echo "release-notes: $file has no section '## $version', or an empty one" >&2 && exit 1; }
printf '%s\n' "$notes"
