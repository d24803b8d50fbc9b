"""Reads a trace of `strace -f -yy -xx` into events, with the order in which the calls began and ended.

strace is one process that sees every call twice, on entry and on exit. A line that stands whole saw nothing in between;
a call during which something else happened is cut into `<unfinished ...>` and `<... resumed>`. So the number of the line
where a call's text begins, and of the line where it ends, give one order over all threads.
"""

import re
import time
from dataclasses import dataclass

CALLS = (
    "open,openat,creat,read,readv,recvfrom,recvmsg,write,writev,pwrite64,pwritev,pwritev2,sendto,sendmsg,sendfile,"
    "fsync,fdatasync,syncfs,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat"
)


def strace(output, syncs_taken_away=False):
    """The command to put in front of the broker's; it keeps the broker's pid.

    With its syncs taken away a broker is told that they succeeded, and none happens.
    """
    options = ["-D", "-f", "--seccomp-bpf", "-yy", "-xx", "-s", "100000000", "-e", f"trace={CALLS}", "-e", "signal=none"]
    if syncs_taken_away:
        options += ["-e", "inject=fsync,fdatasync,syncfs:retval=0"]
    return ["strace", *options, "-o", str(output)]


def wait_for_end(output, timeout_s=60):
    """strace runs beside the broker (-D) and writes its last lines after the broker has ended; then the file rests."""
    deadline = time.monotonic() + timeout_s
    size = -1
    while size != output.stat().st_size:
        assert time.monotonic() < deadline, "strace does not end"
        size = output.stat().st_size
        time.sleep(0.3)


@dataclass
class Event:
    call: str
    began: int
    ended: int
    result: int
    # The target: a file's path, or a connection as "local->remote".
    path: str = ""
    connection: str = ""
    data: bytes = b""
    flags: str = ""
    # The second name of a rename.
    new_path: str = ""


LINE = re.compile(r"(\d+) +(.*)", re.DOTALL)
RESULT = re.compile(r"\)\s+= (-?\d+|\?)[^=]*$")
TARGET = re.compile(r"(?:\w+\()?\d+<(?:TCP(?:v6)?:\[(?P<connection>\S+?)\]|(?P<path>(?:\\x[0-9a-f]{2})+))>")
DIRECTORY_FD = re.compile(r"(?:AT_FDCWD|\d+)<((?:\\x[0-9a-f]{2})+)>, (\"(?:\\x[0-9a-f]{2})*\")")

WRITES = {"write", "writev", "pwrite64", "pwritev", "pwritev2"}
SENDS = {"sendto", "sendmsg"}
READS = {"read", "readv", "recvfrom", "recvmsg"}
SYNCS = {"fsync", "fdatasync", "syncfs"}


def events(lines):
    """Yields the calls that ended, in the order in which they ended."""
    begun = {}
    for number, line in enumerate(lines):
        pid, text = LINE.match(line).groups()
        text = text.rstrip("\n")
        began = number
        if text.startswith("<... "):
            began, first = begun.pop(pid)
            text = first + text[text.index("resumed>") + len("resumed>") :]
        if text.endswith("<unfinished ...>"):
            begun[pid] = (began, text.removesuffix("<unfinished ...>"))
            continue
        call = text.partition("(")[0]
        result = RESULT.search(text)
        if result is None or result[1] == "?" or text.endswith("(INJECTED)"):
            continue  # a signal, an exit, a call that never came back, or one that was taken away
        event = _event(call, began, number, int(result[1]), text)
        if event:
            yield event


def _event(call, began, ended, result, text):
    if result < 0:
        return None  # nothing happened; a failed sync covers nothing
    if call in READS | WRITES | SENDS | SYNCS | {"sendfile"}:
        target = TARGET.match(text)
        if target is None:
            return None  # a pipe, a terminal, an event counter
        path = _text(target["path"]) if target["path"] else ""
        connection = target["connection"] or ""
        if call in READS and not connection:
            return None
        data = b""
        if call == "sendfile":
            data = bytes(result)
        elif call not in SYNCS:
            data = b"".join(map(_bytes, _strings(text)))[:result]
        return Event(call, began, ended, result, path, connection, data, flags=text[-60:] if call == "pwritev2" else "")
    if call in ("open", "openat", "creat"):
        path = _named(text)[0]
        return Event(call, began, ended, result, path, flags="O_CREAT" if call == "creat" else text[text.rindex('"') :])
    if call in ("rename", "renameat", "renameat2"):
        old, new = _named(text)
        return Event("rename", began, ended, result, old, new_path=new)
    if call in ("unlink", "unlinkat"):
        return Event("unlink", began, ended, result, _named(text)[0])
    if call in ("mkdir", "mkdirat"):
        return Event("mkdir", began, ended, result, _named(text)[0])
    return None


def _named(text):
    """The paths that a call names, absolute: relative ones begin at the directory that is given with them."""
    arguments = text[: text.rindex(")")]
    names = []
    for directory, name in DIRECTORY_FD.findall(arguments):
        path = _bytes(name.strip('"')).decode()
        names.append(path if path.startswith("/") else f"{_text(directory)}/{path}")
    return names or [_bytes(name).decode() for name in _strings(arguments)]


def _strings(text):
    """The strings that were passed. In others, such as an address, not every byte is escaped."""
    return [string for string in text.split('"')[1::2] if string.startswith("\\x")]


def _bytes(escaped):
    return bytes.fromhex(escaped.replace("\\x", ""))


def _text(escaped):
    return _bytes(escaped).decode()
