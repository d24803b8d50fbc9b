"""Every program here against one broker, several at a time: suite.py BOOTSTRAP [PART OF A CLIENT'S NAME]...

Of kafka-clients these versions are tried, or with OLD_CLIENTS=all every one that is installed.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The oldest, and of each age one; 3.3 to 3.7 are the ones that read ApiVersions as no others do.
KAFKA_CLIENTS = ["2.1.1", "2.8.2", "3.3.2", "3.7.2", "3.9.1"]
AT_A_TIME = 3
LIMIT_S = 300
COUNTS = re.compile(r"^(\d+) passed, (\d+) failed$", re.MULTILINE)


def java(place, bootstrap):
    classes = Path(subprocess.check_output([HERE / "java/build.sh"], text=True).strip())
    libs = Path(subprocess.check_output([HERE.parent / "kafka/fetch.sh"], text=True).strip())
    shared = [next(libs.glob(f"{name}-*.jar")) for name in ("slf4j-api", "snappy-java", "lz4-java", "zstd-jni")]
    class_path = ":".join(map(str, [classes / "launcher", *shared]))
    options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    versions = [] if os.environ.get("OLD_CLIENTS") == "all" else KAFKA_CLIENTS
    return ["java", *options, "-cp", class_path, "OldClients", bootstrap, classes / "jars", classes / "scenario", *versions], {}


def programs(place, bootstrap):
    """Name: command and more environment."""
    found = {"kafka-clients": java(place, bootstrap)}
    for version in (HERE / "versions.txt").read_text().split():
        if "==" in version:
            program = HERE / "python" / ("confluent.py" if version.startswith("confluent") else "kafka_python.py")
            python = place.parent / "venv/bin/python"
            found[version] = [python, program, bootstrap], {"PYTHONPATH": str(place / version)}
        else:
            found[version] = ["node", HERE / "kafkajs/client.js", bootstrap], {"NODE_PATH": str(place / version / "node_modules")}
    for module in sorted(HERE.glob("*/[0-9]*.mod")):
        name = f"{module.parent.name}-{module.stem}"
        found[name] = [place / name, bootstrap], {}
    return found


def run(command, environment):
    try:
        ended = subprocess.run(
            command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S
        )
        text = ended.stdout
    except subprocess.TimeoutExpired as late:
        text = (late.stdout or b"").decode()
    counts = [tuple(map(int, found)) for found in COUNTS.findall(text)]
    # What says nothing at its end has failed.
    return text, counts[-1] if counts else (0, 1)


def main():
    bootstrap, *wanted = sys.argv[1:]
    place = Path(subprocess.check_output([HERE / "install.sh"], text=True).strip())
    chosen = {name: it for name, it in programs(place, bootstrap).items() if not wanted or any(part in name for part in wanted)}
    passed = failed = 0
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        for name, (text, counts) in zip(chosen, threads.map(lambda it: run(*it), chosen.values())):
            passed, failed = passed + counts[0], failed + counts[1]
            said = COUNTS.sub("", text).rstrip()
            print(said if counts != (0, 1) else f"{said}\nFAIL {name}", flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


main()
