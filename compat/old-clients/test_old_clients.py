"""Every program here against one broker, several at a time. A program goes through the steps of one client.

Of kafka-clients these versions are tried, or with OLD_CLIENTS=all every one that is installed.
"""

import os
import subprocess
from functools import cache, partial
from pathlib import Path

import pytest

import checks
import reach

HERE = Path(__file__).resolve().parent
# The oldest, and of each age one; 3.3 to 3.7 are the ones that read ApiVersions as no others do.
KAFKA_CLIENTS = ["2.1.1", "2.8.2", "3.3.2", "3.7.2", "3.9.1"]
LIMIT_S = 300 * checks.SLOWNESS


@cache
def place():
    return Path(subprocess.check_output([HERE / "install.sh"], text=True).strip())


def java():
    classes = Path(subprocess.check_output([HERE / "java/build.sh"], text=True).strip())
    libs = Path(subprocess.check_output([HERE.parent / "kafka/fetch.sh"], text=True).strip())
    shared = [next(libs.glob(f"{name}-*.jar")) for name in ("slf4j-api", "snappy-java", "lz4-java", "zstd-jni")]
    class_path = ":".join(map(str, [classes / "launcher", *shared]))
    options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    versions = [] if os.environ.get("OLD_CLIENTS") == "all" else KAFKA_CLIENTS
    return ["java", *options, "-cp", class_path, "OldClients", checks.bootstrap(), classes / "jars", classes / "scenario", *versions], client_properties()


def client_properties():
    """With certificates in a form that clients before 2.7 read, too."""
    login = reach.client_properties()
    if not login:
        return {}
    store = Path(os.environ["CLIENT_PROPERTIES"]).with_name("old-clients.p12")
    secret = ["-storetype", "PKCS12", "-storepass", "of-nothing-secret"]
    subprocess.run(["keytool", "-importcert", "-noprompt", "-file", os.environ["SSL_CA"], "-keystore", store, *secret], check=True, capture_output=True)
    login |= {"ssl.truststore.type": "PKCS12", "ssl.truststore.location": store, "ssl.truststore.password": secret[-1]}
    path = store.with_suffix(".properties")
    path.write_text("".join(f"{name}={value}\n" for name, value in login.items()))
    return {"CLIENT_PROPERTIES": str(path)}


def python(version):
    program = HERE / "python" / ("confluent.py" if version.startswith("confluent") else "kafka_python.py")
    return [place().parent / "venv/bin/python", program, checks.bootstrap()], {"PYTHONPATH": f"{place() / version}:{HERE.parent}"}


def node(version):
    return ["node", HERE / "kafkajs/client.js", checks.bootstrap()], {"NODE_PATH": str(place() / version / "node_modules")}


def go(name):
    return [place() / name, checks.bootstrap()], {}


# What gives the command of each program, and its environment.
PROGRAMS = {
    "kafka-clients": java,
    **{version: partial(python if "==" in version else node, version) for version in (HERE / "versions.txt").read_text().split()},
    **{name: partial(go, name) for name in (f"{module.parent.name}-{module.stem}" for module in sorted(HERE.glob("*/[0-9]*.mod")))},
}


@pytest.mark.waits
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_old_client_goes_through_its_steps(program):
    command, environment = PROGRAMS[program]()
    ended = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout
    assert "ok   " in ended.stdout, "it went through no step"
