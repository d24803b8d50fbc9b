"""The drivers: programs that carry out steps with one client each, and what the steps' answers have to be."""

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import checks

HERE = Path(__file__).resolve().parent
# Seconds after which a driver gives a call up.
DEADLINE_S = 60
PROBLEMS = {
    "bad-request": (400, 3), "unknown-topic": (404, 5), "unsupported": (404, 12), "topic-exists": (409, 6), "last-mismatch": (412, 10), "fenced": (412, 9),
    "sequence-gap": (409, 11), "session-expired": (410, 9), "session-fenced": (410, 9), "trimmed": (410, 11), "position-diverged": (409, 15), "filter-invalid": (400, 3), "filter-failed": (422, 3),
    "too-large": (413, 3), "unknown-element": (404, 5), "version-mismatch": (412, 10), "not-a-queue-topic": (409, 9), "lease-lost": (410, 9),
}  # fmt: skip
NAMES = ["grpcurl", "curl", "go", "java", "python", "node", "rust"]


def built():
    return Path(subprocess.check_output([str(HERE / "build.sh")], text=True).strip())


def command(name, place):
    return {
        "grpcurl": [sys.executable, str(HERE / "grpcurl_driver.py"), str(place / "grpcurl")],
        "curl": [sys.executable, str(HERE / "curl_driver.py")],
        "go": [str(place / "go/bin/driver")],
        "java": ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m", "-cp", f"{place}/java/classes:{place}/java/libs/*", "Driver"],
        "python": [sys.executable, str(HERE / "python/driver.py")],
        "node": ["node", str(place / "node/driver.js")],
        "rust": [str(place / "rust/debug/native-driver")],
    }[name]  # fmt: skip


class Driver:
    def __init__(self, name, place):
        self.name = name
        environment = {**os.environ, "PYTHONPATH": f"{place / 'python'}:{HERE.parent}"}
        self.process = subprocess.Popen(command(name, place), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def begin(self, address, method, request, take=0):
        step = {"address": address, "method": method, "request": request, "take": take, "deadline_s": int(DEADLINE_S * checks.SLOWNESS)}
        self.process.stdin.write(json.dumps(step) + "\n")
        self.process.stdin.flush()

    def told(self):
        line = self.process.stdout.readline()
        assert line, f"the driver of {self.name} ended with {self.process.wait()}"
        return json.loads(line)

    def call(self, address, method, request, take=0):
        self.begin(address, method, request, take)
        return self.told()

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def filled(value, saved):
    """Puts what was saved into a request, or into what is expected."""
    if isinstance(value, dict):
        return {name: filled(each, saved) for name, each in value.items()}
    if isinstance(value, list):
        return [filled(each, saved) for each in value]
    if not isinstance(value, str):
        return value
    if whole := re.fullmatch(r"\$\{([\w.]+)\}", value):
        return looked_up(whole[1], saved)
    if text := re.fullmatch(r"\$\{(text|bytes) ([\w.]+)\}", value):
        position = looked_up(text[2], saved)
        made = ".".join(str(position.get(part, 0)) for part in ("term", "entry", "offset"))
        return made if text[1] == "text" else base64.b64encode(made.encode()).decode()
    return re.sub(r"\$\{([\w.]+)\}", lambda found: str(looked_up(found[1], saved)), value)


def looked_up(name, saved):
    value = saved
    for part in name.split("."):
        value = value.get(part, 0)
    return value


def without_zeros(value):
    """The form in which messages are compared: numbers as numbers, and nothing that is zero, as proto3 has it.

    Absent and empty bytes differ where the protocol says so: a record's key and value, and a header's.
    """
    if isinstance(value, dict):
        made = {name: without_zeros(each) for name, each in value.items()}
        return {name: each for name, each in made.items() if each not in (0, False, None, {}, []) and (each != "" or name in ("key", "value"))}
    if isinstance(value, list):
        return [without_zeros(each) for each in value]
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value):
        return int(value)
    return value


def matches(expected, actual):
    if expected == "*":
        return actual is not None
    if isinstance(expected, dict) and isinstance(actual, dict):
        wildcards = {name for name, each in expected.items() if each == "*"}
        # Zero may hide behind a wildcard.
        return set(actual) <= set(expected) and all(name in wildcards or matches(each, actual.get(name)) for name, each in expected.items())
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(map(matches, expected, actual))
    return expected == actual


EVENTS = ["trimmed", "element", "caughtUp"]


def events(answers):
    """The events of a subscription with their kinds, in the order of queues. What is of one queue keeps its order but for `caughtUp`."""
    made = []
    for event in answers:
        [kind] = set(event) - {"queue", "next"}
        made.append({**event, "event": kind})
    for queue in {event["queue"] for event in made}:
        offsets = [int(event["element"]["position"].get("offset", 0)) for event in made if event["queue"] == queue and event["event"] == "element"]
        assert offsets == sorted(offsets), f"the elements of {queue} are not in their order: {answers}"
    return sorted(made, key=lambda event: (event["queue"], EVENTS.index(event["event"])))


def one_page(answers):
    """All pages of a read as one."""
    whole = {"records": [], "next": 0, "end": 0}
    for page in answers:
        whole["records"] += page.get("records", [])
        whole |= {name: page[name] for name in ("next", "end", "skipped", "batches") if page.get(name)}
    return whole


def check_problem(driver, told, expected, members, what):
    problem = told.get("problem")
    assert problem and problem["slug"] == expected, f"{what}: expected the problem {expected}, got {told}"
    http, grpc = PROBLEMS[expected]
    code = problem["code"]
    if not (driver == "grpcurl" and isinstance(code, str)):
        checks.equal(code, http if driver == "curl" else grpc, what)
    found = {name: value if driver == "curl" else as_json(value) for name, value in (problem["metadata"] or {}).items()}
    assert matches(without_zeros(members), without_zeros(found)), f"{what}: expected the members {members}, got {found}"
    assert problem["detail"], f"{what}: there is no text"


def as_json(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def check(driver, step, told, expected, what):
    if hasattr(step, "slug"):
        return check_problem(driver, told, step.slug, expected, what)
    assert "problem" not in told, f"{what}: {told}"
    answers = told["answers"]
    if isinstance(expected, list):
        found = without_zeros(events(answers) if any("event" in it for it in expected) else answers)
        # The queues of what is expected are in the order of their names' base64.
        wanted = without_zeros(expected)
        assert matches(wanted, found), f"{what}: expected\n{wanted}\ngot\n{found}"
        return answers
    is_read = isinstance(expected, dict) and "next" in expected and "elements" not in expected
    answer = one_page(answers) if is_read else answers[0]
    wanted, found = without_zeros(expected), without_zeros(answer)
    assert is_read or len(answers) == 1, f"{what}: {told}"
    assert matches(wanted, found), f"{what}: expected\n{wanted}\ngot\n{found}"
    return answer
