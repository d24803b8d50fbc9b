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
    """What a process used between two moments."""

    def __init__(self, pid):
        self.pid = pid
        self.cpu = cpu_seconds(pid)
        self.written = written_bytes(pid)

    def since(self):
        return {
            "broker_cpu_seconds": round(cpu_seconds(self.pid) - self.cpu, 2),
            "device_bytes": written_bytes(self.pid) - self.written,
        }


def cpu_seconds(pid):
    """User and system time of all threads, from /proc/PID/stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def written_bytes(pid):
    """Bytes that the process caused to be sent to a device."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    return 0


def memory_mib(pid):
    """Resident memory that is the process's own share (PSS), and its peak."""
    pss = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            pss = int(line.split()[1])
    return round(pss / 1024, 1)
