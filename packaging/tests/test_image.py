"""The image in a container: another user than root, a root that cannot be written, no capabilities, a network of its own."""

import tarfile
import uuid

import pytest

from common import OUT, USER, VERSION, podman, read, round_trip, ulimits, until

IMAGE = f"localhost/duramen:{VERSION}-amd64"
CLOSED = ("--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges")


class Container:
    """A container without any network but its loopback interface."""

    def __init__(self, *arguments, volume):
        self.name = f"duramen-test-{uuid.uuid4().hex[:8]}"
        podman("run", "--detach", "--name", self.name, "--network=none", *CLOSED, *ulimits(),
               "--volume", f"{volume}:/var/lib/duramen", IMAGE, *arguments)

    def duramen(self, *arguments, **options):
        return podman("exec", "--interactive", self.name, "/usr/bin/duramen", *arguments, **options)

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

    def begin(*arguments):
        containers.append(Container(*arguments, volume=volume))
        return containers[-1]

    yield begin
    for it in containers:
        print(it.logs())
        it.remove()


@pytest.fixture(scope="module", autouse=True)
def image():
    """The image of the archive, and not what an earlier build left in the machine's store."""
    podman("load", "--input", OUT / f"duramen-{VERSION}-amd64.image.tar")


def test_a_node_in_a_container_keeps_its_records(start):
    serve = ("serve", "--open", "--listen=0.0.0.0:9092", "--advertise=localhost:9092")
    node = start(*serve)
    round_trip(node.duramen)
    assert node.stop() == 0
    again = start(*serve)
    until("the record is read again", lambda: read(again.duramen) == ["hello, package"])
    assert again.stop() == 0


def test_a_node_is_not_open_unless_it_is_asked_to_be(start):
    node = start()
    until("the node ends", lambda: podman("inspect", "--format={{.State.Status}}", node.name).stdout.strip() == "exited")
    assert podman("inspect", "--format={{.State.ExitCode}}", node.name).stdout.strip() == "1"
    assert "--open" in node.logs()


def test_the_image_serves_as_a_user_without_rights():
    configured = podman("inspect", "--type=image", "--format={{.Config.User}} {{.Config.Entrypoint}} {{.Config.Cmd}}", IMAGE)
    assert configured.stdout.strip() == f"{USER}:{USER} [/usr/bin/duramen] [serve --listen=0.0.0.0:9092 --http=0.0.0.0:9644]"


@pytest.mark.parametrize(("architecture", "name"), [("amd64", "x86_64"), ("arm64", "aarch64")])
def test_each_image_says_its_architecture_and_has_its_binary(architecture, name, tmp_path):
    tag = f"localhost/duramen:{VERSION}-{architecture}"
    podman("load", "--input", OUT / f"duramen-{VERSION}-{architecture}.image.tar")
    assert podman("inspect", "--type=image", "--format={{.Architecture}} {{.Os}}", tag).stdout.strip() == f"{architecture} linux"
    container = podman("create", "--arch", architecture, *ulimits(), tag).stdout.strip()
    try:
        podman("cp", f"{container}:/usr/bin/duramen", tmp_path / "duramen")
        podman("export", "--output", tmp_path / "all.tar", container)
    finally:
        podman("rm", container)
    assert (tmp_path / "duramen").read_bytes() == (OUT / name / "duramen").read_bytes()
    files = {it.name for it in tarfile.open(tmp_path / "all.tar") if it.isfile() and it.size}
    assert files == {"usr/bin/duramen", "usr/share/doc/duramen/LICENSE"}
