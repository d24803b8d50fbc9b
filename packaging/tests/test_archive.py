"""The archives, what each package has of other people's licenses, and the sums over all artifacts."""

import tarfile

import pytest

from common import DEBIAN, OUT, ROOT, VERSION, run

THIRD_PARTY = OUT / "assets" / "THIRD-PARTY.txt"


@pytest.mark.parametrize("architecture", DEBIAN)
def test_the_archive_has_all_its_files(architecture):
    name = f"duramen-{VERSION}-{architecture}-linux"
    with tarfile.open(OUT / f"{name}.tar.gz") as archive:
        members = {it.name.removeprefix(f"{name}/"): it for it in archive if it.isfile()}
        assert archive.extractfile(members["duramen"]).read() == (OUT / architecture / "duramen").read_bytes()
        assert archive.extractfile(members["THIRD-PARTY.txt"]).read() == THIRD_PARTY.read_bytes()
        assert archive.extractfile(members["LICENSE"]).read() == (ROOT / "LICENSE").read_bytes()
    wanted = {"README.md", "CHANGELOG.md", "duramen.toml", "systemd/duramen.service", "man/duramen.1", "man/duramen-serve.1",
              "completions/duramen.bash", "completions/_duramen", "completions/duramen.fish"}
    assert wanted <= set(members)
    assert {(it.uid, it.gid) for it in members.values()} == {(0, 0)}
    assert {it.mode for path, it in members.items()} == {0o644, 0o755} and members["duramen"].mode == 0o755


@pytest.mark.parametrize("architecture", DEBIAN)
def test_each_crate_of_the_binary_is_among_the_licenses(architecture):
    tree = run("cargo", "tree", "--locked", "--offline", "--package=duramen", "--edges=normal", "--prefix=none", "--format={p}",
               f"--target={architecture}-unknown-linux-musl", cwd=ROOT).stdout
    crates = {tuple(line.split()[:2]) for line in tree.splitlines() if line.strip()}
    of_others = {f"  {name} {version.removeprefix('v')}" for name, version in crates if not name.startswith("duramen")}
    assert len(of_others) > 100
    assert of_others - set(THIRD_PARTY.read_text().splitlines()) == set()


def test_the_licenses_are_texts_and_name_what_is_no_crate():
    text = THIRD_PARTY.read_text()
    for part in ("Redistribution and use in source and binary forms", "Permission is hereby granted, free of charge",
                 "Apache License\n", "Rust's standard library\n", "musl, the C library\n", "Rich Felker", "rustc-demangle", "libunwind"):
        assert part in text, part
    assert "<" + "p>" not in text


def test_the_sums_are_of_all_artifacts():
    run("sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS", cwd=OUT)
    summed = {line.split()[1] for line in (OUT / "SHA256SUMS").read_text().splitlines()}
    assert summed == {it.name for it in OUT.iterdir() if it.is_file() and not it.name.startswith("SHA256SUMS")}
    of_each = {f"duramen-{VERSION}-{name}-linux.tar.gz" for name in DEBIAN} | {f"duramen_{VERSION}_{it}.deb" for it in DEBIAN.values()}
    assert of_each | {f"duramen-{VERSION}-{it}.image.tar" for it in DEBIAN.values()} | {"release-notes.md"} == summed
