"""What a fault needs of the machine: a broker that is traced and has /healthz, and a small file system of its own."""

import os
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker import HOST, Duramen, free_port

EXIT_DISK = 74


class Broker(Duramen):
    """Duramen as `broker.start` starts it, with /healthz, and with wrappers that change from start to start."""

    def __init__(self, data_dir, log=None):
        super().__init__(free_port(), data_dir, {}, [], [])
        self.log_path = log or self.log_path
        self.http = f"{HOST}:{free_port()}"

    def command(self):
        return [*super().command(), "--http", self.http]

    def start(self, wrapper=()):
        self.wrapper = list(wrapper)
        self.restart()
        return self

    def health(self):
        """Returns (status, text)."""
        try:
            with urllib.request.urlopen(f"http://{self.http}/healthz", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def is_alive(self):
        return self.process.poll() is None

    def removed_files_open(self):
        """Files that were removed and whose space is not free, because the broker has them open."""
        links = [os.readlink(entry) for entry in Path(f"/proc/{self.pid}/fd").iterdir() if entry.is_symlink()]
        return [link for link in links if link.startswith(str(self.data_dir)) and link.endswith("(deleted)")]

    def log(self):
        return self.log_path.read_text(errors="replace")

    def errors(self):
        return [line for line in self.log().splitlines() if " ERROR " in line]

    def __exit__(self, *_):
        """A test that ends with the broker running has no further use for it."""
        if self.process is not None and self.is_alive():
            self.kill9()


def failing(call, path, trace, when, error="EIO"):
    """A wrapper that lets `call` on `path` fail, each thread's `when`-th time, and notes every such call in `trace`."""
    return _injecting(call, path, trace, f"error={error}:when={when}")


def slow(call, path, trace, milliseconds):
    """A wrapper that lets every `call` on `path` take so much longer."""
    return _injecting(call, path, trace, f"delay_exit={milliseconds}ms")


def _injecting(call, path, trace, what):
    return ["strace", "-D", "-f", "-y", "-o", str(trace), "-P", str(path), "-e", f"trace={call}", "-e", f"inject={call}:{what}"]


def traced_results(trace, call):
    """What each `call` in a trace answered, in order: "0", "-1 EIO", ..."""
    results = re.findall(rf"{call}(?:\(| resumed).*?\) = (-?\d+(?: E[A-Z]+)?)", trace.read_text(errors="replace"))
    assert results, f"no {call} in {trace}"
    return results


@contextmanager
def workspace():
    """A directory that stays when the test fails."""
    directory = Path(tempfile.mkdtemp(prefix="duramen-faults-"))
    try:
        yield directory
    except BaseException as failure:
        if isinstance(failure, pytest.skip.Exception):
            shutil.rmtree(directory)
        else:
            print(f"kept: {directory}")
        raise
    shutil.rmtree(directory)


@contextmanager
def small_disk(directory, megabytes):
    """Mounts a new file system of this size and yields its root: ext4 in a file, else tmpfs."""
    root = directory / "disk"
    root.mkdir()
    if not (_mount_ext4(directory / "image", root, megabytes) or _mount("-t", "tmpfs", "-o", f"size={megabytes}m", "none", root)):
        pytest.skip("a small disk cannot be mounted here: it takes root, or user namespaces")
    try:
        yield root
    finally:
        # Lazily: a test that failed may have left a file open.
        subprocess.run(["umount", "--lazy", str(root)], check=True)


def _mount_ext4(image, root, megabytes):
    with open(image, "wb") as file:
        file.truncate(megabytes << 20)
    # Nothing kept back for root, so that full means full; a small journal, so that little is lost to it.
    formatted = subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", "-J", "size=4", str(image)], capture_output=True)
    return formatted.returncode == 0 and _mount("-o", "loop", image, root)


def _mount(*arguments):
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True).returncode == 0


def free_bytes(root):
    stat = os.statvfs(root)
    return stat.f_bavail * stat.f_frsize


class OtherFile:
    """Somebody else's file, that takes the disk's space until the block ends."""

    def __init__(self, root):
        self.path = root / "somebody-else"
        self.size = 0

    def __enter__(self):
        self.file = open(self.path, "wb")
        return self

    def take(self, size):
        os.posix_fallocate(self.file.fileno(), self.size, size)
        self.size += size

    def take_all(self):
        """Grows until not a block is free."""
        step = max(free_bytes(self.path.parent), 4096)
        while step >= 4096:
            try:
                self.take(step)
            except OSError:
                step = step // 2 // 4096 * 4096

    def __exit__(self, *_):
        self.file.close()
        self.path.unlink()
