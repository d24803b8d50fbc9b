#!/usr/bin/env python3
"""Prints the licenses of all that a static binary has from others: crates, Rust's standard library, musl, and zig's support code.

Crates come from cargo-about, under the licenses that deny.toml allows. The rest comes from the toolchain that builds.
"""

import html.parser
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import ziglang

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGETS = ["x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"]
ZIG = Path(ziglang.__file__).parent
RULE = "=" * 80


def main():
    sysroot = Path(subprocess.check_output(["rustc", "--print", "sysroot"], text=True).strip())
    sections = {
        "Crates": crates(),
        "Rust's standard library": as_text((sysroot / "share/doc/rust/COPYRIGHT-library.html").read_text()),
        "musl, the C library": (ZIG / "lib/libc/musl/COPYRIGHT").read_text(),
        "zig: its part of the C library, and what compilers call": (ZIG / "LICENSE").read_text(),
        "libunwind, of LLVM": (ZIG / "lib/libunwind/LICENSE.TXT").read_text(),
    }
    print("Programs and libraries of others that are part of the duramen binary, and their licenses.")
    for number, (title, text) in enumerate(sections.items(), 1):
        print(f"\n{RULE}\n{number}. {title}\n\n{text.strip()}")


def crates():
    """The text of each license, and the crates that it covers; fails for a crate whose license nobody allowed."""
    allowed = tomllib.loads((ROOT / "deny.toml").read_text())["licenses"]["allow"]
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "about.toml"
        config.write_text(f"accepted = {allowed}\ntargets = {TARGETS}\n{(HERE / 'about.toml').read_text()}")
        command = ["cargo-about", "generate", "--offline", "--locked", "--fail", "--config", config]
        manifest = ROOT / "crates/duramen/Cargo.toml"
        done = subprocess.run([*command, "--manifest-path", manifest, HERE / "about.hbs"], capture_output=True, text=True)
    sys.stderr.write(done.stderr)
    if done.returncode:
        sys.exit("notices: cargo-about failed")
    return done.stdout


class Text(html.parser.HTMLParser):
    """Words of a page, a line a block."""

    BLOCKS = {"p", "li", "div", "pre", "h1", "h2", "h3", "h4", "summary"}

    def __init__(self):
        super().__init__()
        self.parts, self.is_verbatim = [], False

    def handle_starttag(self, tag, _):
        self.is_verbatim = self.is_verbatim or tag == "pre"
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag):
        if tag == "pre":
            self.is_verbatim = False
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data):
        self.parts.append(data if self.is_verbatim else " ".join(data.split()) + " " if data.strip() else "")


def as_text(page):
    parser = Text()
    parser.feed(page.partition("<body>")[2])
    lines = [line.rstrip() for line in "".join(parser.parts).splitlines()]
    # Nested blocks leave rows of empty lines.
    return "\n".join(line for line, before in zip(lines, ["", *lines]) if line or before)


main()
