"""What this machine gives without a broker: the disk under the journal's write pattern, files read, bytes sent."""

import mmap
import os
import random
import select
import socket
import subprocess
import time
from pathlib import Path

ROUND_ALIGN = 4096
EXTENT_BYTES = 64 << 20
PIECE_BYTES = 1 << 20
# For TCP, this flag makes the kernel drop the bytes instead of copying them.
MSG_TRUNC = 0x20


def disk_probe(directory, round_bytes, seconds):
    """The journal's own pattern: one round after another into a file that was written before, a sync after each.

    Returns syncs per second, MB per second, and the quantiles of one round in microseconds.
    """
    round_bytes = -(-round_bytes // ROUND_ALIGN) * ROUND_ALIGN
    path = Path(directory) / "disk-probe"
    block = os.urandom(round_bytes)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        zeros = bytes(PIECE_BYTES)
        for at in range(0, EXTENT_BYTES, PIECE_BYTES):
            os.pwrite(fd, zeros, at)
        os.fsync(fd)
        position, took = 0, []
        end = time.monotonic() + seconds
        while (begun := time.monotonic()) < end:
            os.pwrite(fd, block, position)
            os.fdatasync(fd)
            took.append(time.monotonic() - begun)
            position += round_bytes
            if position + round_bytes > EXTENT_BYTES:
                position = 0
    finally:
        os.close(fd)
        path.unlink()
    took.sort()
    total = sum(took)
    return {
        "round_bytes": round_bytes,
        "syncs_per_second": round(len(took) / total, 1),
        "megabytes_per_second": round(len(took) * round_bytes / total / 1e6, 1),
        "p50_us": round(took[len(took) // 2] * 1e6, 1),
        "p99_us": round(took[len(took) * 99 // 100] * 1e6, 1),
        "p999_us": round(took[len(took) * 999 // 1000] * 1e6, 1),
    }


def read_probe(files, seconds):
    """Reads of 4 KiB at random places of files, past the page cache; quantiles of one in microseconds."""
    files = [path for path in files if os.path.getsize(path) >= ROUND_ALIGN]
    if not files:
        raise RuntimeError("there is no file to read from")
    buffer = mmap.mmap(-1, ROUND_ALIGN)  # aligned, as O_DIRECT needs it
    opened = [(os.open(path, os.O_RDONLY | os.O_DIRECT), os.path.getsize(path) // ROUND_ALIGN) for path in files]
    chance, took = random.Random(1), []
    try:
        end = time.monotonic() + seconds
        while (begun := time.monotonic()) < end:
            fd, blocks = chance.choices(opened, [blocks for _, blocks in opened])[0] if len(opened) < 100 else chance.choice(opened)
            at = chance.randrange(blocks) * ROUND_ALIGN
            begun = time.monotonic()
            os.preadv(fd, [buffer], at)
            took.append(time.monotonic() - begun)
    finally:
        for fd, _ in opened:
            os.close(fd)
    took.sort()
    at = lambda of: round(took[min(len(took) - 1, len(took) * of // 1000)] * 1e6, 1)  # noqa: E731
    return {"reads_per_second": round(len(took) / sum(took), 1), "p50_us": at(500), "p99_us": at(990), "p999_us": at(999)}


def drop_pages(files):
    """Takes our own files out of the page cache. Dirty pages stay, so they are synced first."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def cat(files):
    """Reads files with cat; answers MB per second."""
    size = sum(os.path.getsize(path) for path in files)
    begun = time.monotonic()
    with open("/dev/null", "wb") as sink:
        subprocess.run(["cat", *map(str, files)], stdout=sink, check=True)
    return round(size / (time.monotonic() - begun) / 1e6, 1)


def sendfile(files, discard=True):
    """A bare sendfile server and a reader on one connection; answers MB per second.

    A reader that discards lets the kernel drop the bytes; one that does not copies them into one buffer.
    """
    size = sum(os.path.getsize(path) for path in files)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # A process of its own: threads of one interpreter would wait for each other.
        server = os.fork()
        if server == 0:
            _serve(listener, files)
            os._exit(0)
        begun = time.monotonic()
        with socket.create_connection(listener.getsockname()) as reader:
            buffer = memoryview(bytearray(PIECE_BYTES))
            received = 0
            while received < size:
                read = reader.recv_into(buffer, PIECE_BYTES, MSG_TRUNC if discard else 0)
                if read == 0:
                    raise ConnectionError("the sendfile server ended early")
                received += read
        seconds = time.monotonic() - begun
        os.waitpid(server, 0)
    return round(size / seconds / 1e6, 1)


def _serve(listener, files):
    connection, _ = listener.accept()
    with connection:
        connection.setblocking(False)
        writable = select.poll()
        writable.register(connection, select.POLLOUT)
        for path in files:
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
                position, left = 0, os.fstat(fd).st_size
                while left:
                    try:
                        sent = os.sendfile(connection.fileno(), fd, position, min(left, 8 * PIECE_BYTES))
                    except BlockingIOError:
                        writable.poll()
                        continue
                    position += sent
                    left -= sent
            finally:
                os.close(fd)
