"""What the machine is, and what a process on it has used."""

import datetime
import os
import platform
import subprocess
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def describe(directory):
    """The facts that figures depend on."""
    cpus = Path("/proc/cpuinfo").read_text()
    model = next((line.split(":", 1)[1].strip() for line in cpus.splitlines() if line.startswith("model name")), "?")
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    mount = subprocess.run(["df", "--output=fstype,source", str(directory)], capture_output=True, text=True).stdout
    commit = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory_kib / 2**20, 1),
        "kernel": platform.release(),
        "file_system": " on ".join(mount.splitlines()[-1].split()) if mount else "?",
        "commit": commit,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "load_before": os.getloadavg()[0],
    }


class Usage:
    """What a process, and the disk under its directory, used between two moments."""

    def __init__(self, pid, directory):
        self.pid = pid
        self.directory = directory
        self.written = written_bytes(directory)
        self.cpu = cpu_seconds(pid)

    def since(self):
        cpu = cpu_seconds(self.pid) - self.cpu
        return {
            "broker_cpu_seconds": round(cpu, 2),
            "device_bytes": written_bytes(self.directory) - self.written,
        }


def cpu_seconds(pid):
    """User and system time of all threads, from /proc/PID/stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def children_cpu_seconds():
    """The same of all children of this process that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def busy_cpu_seconds():
    """Of all processes of the machine, and of its kernel."""
    user, nice, system, _idle, _wait, interrupts, soft, *_ = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:])
    return (user + nice + system + interrupts + soft) / TICKS_PER_SECOND


def written_bytes(directory):
    """Bytes that the device under a directory was sent, after what waits in the page cache was sent too.

    The process's own `write_bytes` is no measure: it counts a folio of up to 2 MiB for each few bytes written into it.
    """
    os.sync()
    return int(_device(directory)[6]) * 512


def device_reads(directory):
    """Reads that the device under a directory has done, and their bytes."""
    fields = _device(directory)
    return {"reads": int(fields[0]), "bytes": int(fields[2]) * 512}


def _device(directory):
    device = os.stat(directory).st_dev
    return Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()


def memory_mib(pid):
    """Resident memory that is the process's own share (PSS), and its peak."""
    pss = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            pss = int(line.split()[1])
    return round(pss / 1024, 1)
