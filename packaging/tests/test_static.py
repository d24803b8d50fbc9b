"""Each static binary, alone in a root of its own: no libraries, no shell, no files of a system. The one for arm64 is emulated."""

import os
import shutil
import signal
import subprocess

import pytest

from common import OUT, USER, round_trip, run, until

EMULATORS = {"x86_64": None, "aarch64": "qemu-aarch64-static"}
PORTS = {"x86_64": 20_192, "aarch64": 20_193}


class Jail:
    """A root with one binary, in which commands run without rights."""

    def __init__(self, root, architecture):
        self.root, self.prefix = root, []
        shutil.copy(OUT / architecture / "duramen", root / "duramen")
        if emulator := EMULATORS[architecture]:
            shutil.copy(shutil.which(emulator), root / "emulator")
            self.prefix = ["/emulator"]
        (root / "data").mkdir()
        os.chown(root / "data", USER, USER)
        root.chmod(0o755)
        self.bootstrap = f"127.0.0.1:{PORTS[architecture]}"

    def command(self, *arguments):
        return [shutil.which("chroot"), f"--userspec={USER}:{USER}", str(self.root), *self.prefix, "/duramen", *arguments]

    def duramen(self, *arguments, **options):
        return run(*self.command(*arguments), env={"DURAMEN_BOOTSTRAP": self.bootstrap}, **options)


@pytest.fixture(params=EMULATORS)
def architecture(request):
    return request.param


def test_it_needs_no_library_and_no_dynamic_linker(architecture):
    binary = OUT / architecture / "duramen"
    assert {"x86_64": "X86-64", "aarch64": "AArch64"}[architecture] in run("readelf", "-hW", binary).stdout
    assert "INTERP" not in run("readelf", "-lW", binary).stdout
    assert "NEEDED" not in run("readelf", "-dW", binary).stdout


def test_it_has_names_of_functions_and_no_debug_information(architecture):
    sections = run("readelf", "-SW", OUT / architecture / "duramen").stdout
    assert ".symtab" in sections and ".debug_" not in sections


def test_a_panic_names_the_functions_that_led_to_it(architecture, tmp_path):
    """A node that may start no thread panics; an emulator has one of its own. The backtrace reads the binary's own names, by way of /proc."""
    jail = Jail(tmp_path, architecture)
    (tmp_path / "proc").mkdir()
    mount = 'mount --bind /proc "$1"; shift; exec "$@"'
    threads = 2 if EMULATORS[architecture] else 1
    command = ["unshare", "--mount", "sh", "-ec", mount, "panic", tmp_path / "proc", "prlimit", f"--nproc={threads}:{threads}"]
    arguments = ("serve", "--data-dir", "/data", "--listen", jail.bootstrap)
    done = subprocess.run([*command, *jail.command(*arguments)], env={"PATH": os.environ["PATH"], "RUST_BACKTRACE": "1"},
                          capture_output=True, text=True, timeout=60, check=False)
    assert "panicked" in done.stderr, done
    assert "duramen::server::" in done.stderr and "duramen::cli::main" in done.stderr, done.stderr


def test_a_node_serves_from_an_empty_root_and_ends_with_0(architecture, tmp_path):
    jail = Jail(tmp_path, architecture)
    with open(tmp_path / "log", "w") as log:
        arguments = ("serve", "--data-dir", "/data", "--listen", jail.bootstrap)
        node = subprocess.Popen(jail.command(*arguments), stderr=log, env={})
    try:
        round_trip(jail.duramen)
        # The name is in no DNS here: the C library reads it from the file of the root.
        (tmp_path / "etc").mkdir(exist_ok=True)
        (tmp_path / "etc" / "hosts").write_text("127.0.0.1 broker.test\n")
        port = jail.bootstrap.rpartition(":")[2]
        assert "packaged" in jail.duramen("topic", "list", "--bootstrap", f"broker.test:{port}").stdout
        node.send_signal(signal.SIGTERM)
        assert node.wait(30) == 0
    finally:
        node.kill()
        node.wait()
        print((tmp_path / "log").read_text())
    assert until("the directory is the node's", lambda: (tmp_path / "data").stat().st_uid == USER)
