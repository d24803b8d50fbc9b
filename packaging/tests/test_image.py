"""The image in a container: another user than root, a root that cannot be written, no capabilities, a network of its own."""

import shutil
import tarfile
import uuid

import pytest

from common import OUT, ROOT, USER, VERSION, podman, read, round_trip, ulimits, until

# Of the architectures' images, what runs their binaries.
EMULATORS = {"amd64": None, "arm64": "qemu-aarch64-static"}
CLOSED = ("--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges")


def tag(architecture):
    return f"localhost/duramen:{VERSION}-{architecture}"


class Container:
    """A container without any network but its loopback interface. An image of another architecture has an emulator put into it."""

    def __init__(self, *arguments, volume, architecture="amd64"):
        self.name = f"duramen-test-{uuid.uuid4().hex[:8]}"
        self.command, emulated = ["/usr/bin/duramen"], ()
        if emulator := EMULATORS[architecture]:
            emulated = (f"--volume={shutil.which(emulator)}:/emulator:ro", "--entrypoint=/emulator")
            self.command, arguments = ["/emulator", "/usr/bin/duramen"], ("/usr/bin/duramen", *arguments)
        podman("run", "--detach", "--name", self.name, "--network=none", *CLOSED, *ulimits(), *emulated,
               "--volume", f"{volume}:/var/lib/duramen", tag(architecture), *arguments)

    def duramen(self, *arguments, **options):
        return podman("exec", "--interactive", self.name, *self.command, *arguments, **options)

    def stop(self):
        """Ends it with SIGTERM and returns the exit code."""
        podman("stop", "--time=30", self.name)
        return int(podman("inspect", "--format={{.State.ExitCode}}", self.name).stdout)

    def logs(self):
        done = podman("logs", self.name)
        return done.stdout + done.stderr

    def remove(self):
        podman("rm", "--force", "--time=0", self.name)


@pytest.fixture
def volume():
    name = f"duramen-test-{uuid.uuid4().hex[:8]}"
    podman("volume", "create", name)
    yield name
    podman("volume", "rm", "--force", name)


@pytest.fixture
def start(volume):
    containers = []

    def begin(*arguments, **options):
        containers.append(Container(*arguments, volume=volume, **options))
        return containers[-1]

    yield begin
    for it in containers:
        print(it.logs())
        it.remove()


@pytest.fixture(scope="module", autouse=True)
def images():
    """Those of the build, and not what an earlier one left in the machine's store."""
    for architecture in EMULATORS:
        podman("load", "--input", OUT / f"duramen-{VERSION}-{architecture}.image.tar")


@pytest.mark.parametrize("architecture", EMULATORS)
def test_a_node_in_a_container_keeps_its_records(architecture, start):
    serve = ("serve", "--open", "--listen=0.0.0.0:9092", "--advertise=localhost:9092")
    node = start(*serve, architecture=architecture)
    round_trip(node.duramen)
    assert node.stop() == 0
    again = start(*serve, architecture=architecture)
    until("the record is read again", lambda: read(again.duramen) == ["hello, package"])
    assert again.stop() == 0


def test_a_node_is_not_open_unless_it_is_asked_to_be(start):
    node = start()
    until("the node ends", lambda: podman("inspect", "--format={{.State.Status}}", node.name).stdout.strip() == "exited")
    assert podman("inspect", "--format={{.State.ExitCode}}", node.name).stdout.strip() == "1"
    assert "--open" in node.logs()


@pytest.mark.parametrize("architecture", EMULATORS)
def test_the_image_serves_as_a_user_without_rights(architecture):
    form = "--format={{.Config.User}} {{.Config.Entrypoint}} {{.Config.Cmd}}"
    configured = podman("inspect", "--type=image", form, tag(architecture)).stdout
    assert configured.strip() == f"{USER}:{USER} [/usr/bin/duramen] [serve --listen=0.0.0.0:9092 --http=0.0.0.0:9644]"


@pytest.mark.parametrize(("architecture", "name"), [("amd64", "x86_64"), ("arm64", "aarch64")])
def test_each_image_says_its_architecture_and_has_its_files(architecture, name, tmp_path):
    kind = podman("inspect", "--type=image", "--format={{.Architecture}} {{.Os}}", tag(architecture)).stdout
    assert kind.strip() == f"{architecture} linux"
    container = podman("create", "--arch", architecture, *ulimits(), tag(architecture)).stdout.strip()
    try:
        podman("export", "--output", tmp_path / "all.tar", container)
    finally:
        podman("rm", container)
    with tarfile.open(tmp_path / "all.tar") as archive:
        files = {it.name: archive.extractfile(it).read() for it in archive if it.isfile() and it.size}
    share = "usr/share/doc/duramen"
    assert files == {
        "usr/bin/duramen": (OUT / name / "duramen").read_bytes(), f"{share}/LICENSE": (ROOT / "LICENSE").read_bytes(),
        f"{share}/THIRD-PARTY.txt": (OUT / "assets" / "THIRD-PARTY.txt").read_bytes(),
    }
