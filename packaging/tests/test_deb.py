"""The package: what is in it, and its life on a fresh Debian that a systemd of its own has started. Only loopback is there."""

import contextlib
import fcntl
import gzip
import os
import shutil
import subprocess

import pytest

from common import CACHE, DEBIAN, OUT, VERSION, read, round_trip, run, until

DEB, DEB_ARM = (OUT / f"duramen_{VERSION}_{it}.deb" for it in DEBIAN.values())
EMULATOR = "/usr/bin/qemu-aarch64-static"
SUITE = "bookworm"
CONFIGURATION = "/etc/duramen/duramen.toml"


def fresh_debian():
    """The folder of a minimal Debian with systemd, made once, from the mirror that this machine's apt uses."""
    root = CACHE / f"packaging-{SUITE}"
    with open(f"{root}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / ".complete").exists():
            shutil.rmtree(root, ignore_errors=True)
            targets = run("apt-get", "indextargets", "--format=$(SITE)", f"Release: {SUITE}", "Created-By: Packages")
            include = "--include=systemd,systemd-sysv,adduser,man-db"
            run("debootstrap", "--variant=minbase", include, SUITE, root, targets.stdout.split()[0])
            # Debian's minimal systems leave manuals out; this one keeps them, to find them by `man`.
            (root / ".complete").touch()
    return root


class Machine:
    """A container with systemd as its first process; all that is done to its files goes away with it."""

    def __init__(self, log):
        self.log = log
        # Without D-Bus and machined, on machines that systemd has not started.
        self.nspawn = subprocess.Popen(
            ["setpriv", "--pdeathsig=TERM", "systemd-nspawn", "--quiet", f"--directory={fresh_debian()}", "--ephemeral", "--boot", "--private-network",
             "--register=no", "--keep-unit", "--console=pipe", f"--bind-ro={OUT}:/packages", f"--bind-ro={shutil.which('qemu-aarch64-static')}:{EMULATOR}",
             "--hostname=packaged"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.init = until("systemd is started", self._init)
        until("the machine is up", lambda: self.sh("systemctl is-active multi-user.target"))

    def _init(self):
        for pid in (int(it) for it in os.listdir("/proc") if it.isdigit()):
            try:
                status = open(f"/proc/{pid}/status").read()
            except OSError:
                continue
            fields = dict(line.split(":", 1) for line in status.splitlines())
            if fields["NSpid"].split()[1:] == ["1"] and self._descends(pid):
                return pid
        return None

    def _descends(self, pid):
        while pid > 1:
            pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
            if pid == self.nspawn.pid:
                return True
        return False

    def exec(self, *command, **options):
        inside = ("nsenter", f"--target={self.init}", "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wdns=/")
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}
        return run(*inside, *command, env=environment, **options)

    def sh(self, script):
        return self.exec("/bin/sh", "-ec", script).stdout.strip()

    def duramen(self, *arguments, **options):
        return self.exec("/usr/bin/duramen", *arguments, **options)

    def show(self, property_):
        return self.sh(f"systemctl show --value --property={property_} duramen")

    def journal(self):
        return self.sh("journalctl --no-pager --unit=duramen")

    def end(self):
        # SIGTERM asks systemd to power the machine off.
        self.nspawn.terminate()
        try:
            self.nspawn.wait(60)
        except subprocess.TimeoutExpired:
            self.nspawn.kill()
            self.nspawn.wait()


@contextlib.contextmanager
def booted(directory):
    path = directory / "console"
    with open(path, "w") as log:
        it = Machine(log)
        try:
            yield it
        finally:
            it.end()
            print(path.read_text())


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    with booted(tmp_path_factory.mktemp("machine")) as it:
        it.sh(f"dpkg --install /packages/{DEB.name}")
        yield it


@pytest.fixture
def serving(machine):
    """The machine with a node that serves with the package's own configuration."""
    machine.sh("systemctl reset-failed duramen; systemctl start duramen")
    until("the node serves", lambda: machine.duramen("cluster", "status"))
    return machine


@pytest.mark.parametrize("architecture", DEBIAN)
def test_the_package_has_all_its_files(architecture, tmp_path):
    deb = OUT / f"duramen_{VERSION}_{DEBIAN[architecture]}.deb"
    assert run("dpkg-deb", "--field", deb, "Architecture").stdout.strip() == DEBIAN[architecture]
    run("dpkg-deb", "--extract", deb, tmp_path)
    assert (tmp_path / "usr/bin/duramen").read_bytes() == (OUT / architecture / "duramen").read_bytes()
    assert (tmp_path / "usr/share/doc/duramen/THIRD-PARTY.txt").read_bytes() == (OUT / "assets" / "THIRD-PARTY.txt").read_bytes()
    for path in ("usr/lib/systemd/system/duramen.service", "etc/duramen/duramen.toml", "etc/default/duramen",
                 "usr/share/doc/duramen/copyright", "usr/share/doc/duramen/changelog.gz"):
        assert (tmp_path / path).stat().st_size, path
    commands = {path.name for path in (tmp_path / "usr/share/man/man1").iterdir()}
    assert {"duramen.1.gz", "duramen-serve.1.gz", "duramen-topic-create.1.gz"} <= commands
    assert run("dpkg-deb", "--info", deb, "conffiles").stdout.split() == ["/etc/duramen/duramen.toml", "/etc/default/duramen"]


@pytest.mark.parametrize("architecture", DEBIAN)
def test_lintian_finds_no_error(architecture):
    found = run("lintian", "--fail-on=error,warning", "--tag-display-limit=0", "--allow-root",
                OUT / f"duramen_{VERSION}_{DEBIAN[architecture]}.deb")
    assert found.stdout == ""


def test_manuals_and_completions_are_well_formed(tmp_path):
    run("dpkg-deb", "--extract", DEB, tmp_path)
    share = tmp_path / "usr/share"
    for page in sorted((share / "man/man1").iterdir()):
        (tmp_path / "page").write_bytes(gzip.decompress(page.read_bytes()))
        run("mandoc", "-T", "lint", "-W", "error", tmp_path / "page")
    run("bash", "-n", share / "bash-completion/completions/duramen")
    run("zsh", "-n", share / "zsh/vendor-completions/_duramen")
    run("fish", "--no-execute", share / "fish/vendor_completions.d/duramen.fish")
    script = f"source {share}/bash-completion/completions/duramen; COMP_WORDS=(duramen top) COMP_CWORD=1; _duramen duramen top duramen"
    assert run("bash", "-c", f'{script}; echo "${{COMPREPLY[*]}}"').stdout.split() == ["topic"]
    assert "topic" in run("fish", "--command", f"source {share}/fish/vendor_completions.d/duramen.fish; complete -C 'duramen top'",
                          env={**os.environ, "HOME": str(tmp_path)}).stdout


def test_after_its_installation_a_node_serves(machine):
    until("the node serves", lambda: machine.duramen("cluster", "status"))
    round_trip(machine.duramen)
    assert machine.show("ActiveState") == "active"
    assert machine.sh("systemctl is-enabled duramen") == "enabled"
    assert machine.sh("stat -c %U:%G:%a /var/lib/duramen /etc/duramen").split() == ["duramen:duramen:700", "root:duramen:750"]
    assert machine.sh("man --where duramen-serve || ls /usr/share/man/man1/duramen-serve.1.gz")


def test_the_node_has_no_rights(serving):
    pid = serving.show("MainPID")
    status = dict(line.split(":\t", 1) for line in serving.sh(f"cat /proc/{pid}/status").splitlines() if ":\t" in line)
    user = serving.sh("id --user duramen")
    assert status["Uid"].split() == [user] * 4
    assert [int(value, 16) for key, value in status.items() if key.startswith("Cap")] == [0] * 5
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    mounts = {line.split()[4]: line.split()[5].split(",") for line in serving.sh(f"cat /proc/{pid}/mountinfo").splitlines()}
    assert "ro" in mounts["/"] and "rw" in mounts["/var/lib/duramen"] and "/tmp" in mounts


def test_a_reload_reads_the_configuration_again(serving):
    pid = serving.show("MainPID")
    serving.sh(f"sed -i 's/^log = .*/log = \"debug\"/' {CONFIGURATION} && systemctl reload duramen")
    try:
        until("the log names the change", lambda: "debug" in serving.journal())
        assert serving.show("MainPID") == pid
    finally:
        serving.sh(f"sed -i 's/^log = .*/log = \"info\"/' {CONFIGURATION} && systemctl reload duramen")


def test_a_killed_node_is_started_again_and_has_its_records(serving):
    round_trip(serving.duramen, "killed")
    pid = serving.show("MainPID")
    serving.sh(f"kill -KILL {pid}")
    until("another process runs", lambda: serving.show("MainPID") not in ("0", pid))
    until("the record is read again", lambda: read(serving.duramen, "killed") == ["hello, package"])


def test_a_stopped_node_ends_with_success(serving):
    serving.sh("systemctl stop duramen")
    assert [serving.show(it) for it in ("ActiveState", "Result", "ExecMainStatus")] == ["inactive", "success", "0"]


def test_a_mistake_in_the_configuration_is_not_tried_again(machine):
    machine.sh(f"systemctl stop duramen; systemctl reset-failed duramen; cp -p {CONFIGURATION} /root/kept")
    machine.sh(f"echo '\"num.partitons\" = 3' >>{CONFIGURATION}; systemctl start duramen")
    try:
        until("the node ends", lambda: machine.show("ActiveState") == "failed")
        assert [machine.show(it) for it in ("ExecMainStatus", "NRestarts")] == ["2", "0"]
        assert "num.partitons" in machine.journal()
    finally:
        machine.sh(f"cp -p /root/kept {CONFIGURATION}")


@pytest.mark.parametrize("status", [70, 74])
def test_a_node_that_fails_at_every_start_is_tried_five_times(machine, status):
    """A stand-in ends as a node does whose disk fails, without the five seconds between."""
    machine.sh("systemctl stop duramen; systemctl reset-failed duramen; mkdir -p /run/systemd/system/duramen.service.d")
    drop_in = "/run/systemd/system/duramen.service.d/fails.conf"
    machine.sh(f"printf '[Service]\\nRestartSec=0\\nExecStart=\\nExecStart=/bin/sh -c \"exit {status}\"\\n' >{drop_in}")
    machine.sh("systemctl daemon-reload; systemctl start duramen || true")
    try:
        until("systemd gives up", lambda: machine.show("ActiveState") == "failed" and machine.show("NRestarts") == "5")
        assert machine.show("ExecMainStatus") == str(status)
    finally:
        machine.sh(f"rm {drop_in}; systemctl daemon-reload; systemctl reset-failed duramen")


def test_an_upgrade_leaves_the_node_running(serving):
    round_trip(serving.duramen, "upgraded")
    pid = serving.show("MainPID")
    serving.sh(f"dpkg --install /packages/{DEB.name}")
    assert serving.show("MainPID") == pid
    assert read(serving.duramen, "upgraded") == ["hello, package"]


def test_a_purge_keeps_the_records(serving):
    round_trip(serving.duramen, "purged")
    serving.sh("dpkg --purge duramen")
    assert serving.sh("ls /usr/bin/duramen /etc/duramen 2>&1 || true").count("No such file") == 2
    assert serving.sh("systemctl is-active duramen || true") == "inactive"
    serving.sh(f"dpkg --install /packages/{DEB.name}")
    until("the record is read again", lambda: read(serving.duramen, "purged") == ["hello, package"])


def test_the_package_of_arm64_is_installed_and_its_node_serves_under_an_emulator(tmp_path):
    """The kernel here runs no binary of arm64 by itself, and an emulator writes the code that it executes."""
    with booted(tmp_path) as machine:
        drop_in = "/etc/systemd/system/duramen.service.d/emulated.conf"
        start = f"{EMULATOR} /usr/bin/duramen serve --config {CONFIGURATION}"
        machine.sh(f"mkdir -p $(dirname {drop_in}); printf '[Service]\\nMemoryDenyWriteExecute=no\\nExecStart=\\nExecStart={start}\\n' >{drop_in}")
        machine.sh(f"dpkg --add-architecture arm64; dpkg --install /packages/{DEB_ARM.name}")
        round_trip(lambda *arguments, **options: machine.exec(EMULATOR, "/usr/bin/duramen", *arguments, **options))
        machine.sh("systemctl stop duramen")
        assert [machine.show(it) for it in ("Result", "ExecMainStatus")] == ["success", "0"], machine.journal()
        machine.sh("dpkg --purge duramen:arm64")
