"""The pods of the StatefulSet, as a kubelet would run them, without Kubernetes: each container has the image, arguments, variables,
user, volumes and closed root that the rendered manifests say, and a network namespace with an address of its own.

What stands in for Kubernetes: a file of hosts for its DNS, folders for its volumes. Nothing here stands in for its scheduler, its
network policies and its storage.
"""

import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest
import yaml

from common import OUT, PACKAGING, USER, VERSION, podman, read, round_trip, run, ulimits, until

IMAGE = f"localhost/duramen:{VERSION}-amd64"
SPACE = "shop"


def expand(text, variables):
    """Replaces $(NAME), as the kubelet does."""
    return re.sub(r"\$\((\w+)\)", lambda it: variables.get(it[1], it[0]), text)


class Cluster:
    """The objects of an overlay; a bridge in a network namespace, from which clients come; the pods.

    `secrets` has a folder of files for each Secret, by its name.
    """

    def __init__(self, overlay, directory, secrets=None):
        self.directory, self.secrets = Path(directory), secrets or {}
        self.id = uuid.uuid4().hex[:6]
        self.pods, self.addresses, self.hosts = {}, itertools.count(11), self.directory / "hosts"
        text = run("kustomize", "build", PACKAGING / "kubernetes" / overlay).stdout
        self.objects = {(it["kind"], it["metadata"]["name"]): it for it in yaml.safe_load_all(text)}
        self.stateful = self.objects["StatefulSet", "duramen"]["spec"]
        (self.directory / "resolv.conf").write_text(f"search {SPACE}.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n")
        self.hub = f"dur{self.id}hub"
        run("ip", "netns", "add", self.hub)
        self.ip(self.hub, "link", "set", "lo", "up")
        self.ip(self.hub, "link", "add", "bridge", "type", "bridge")
        self.ip(self.hub, "address", "add", "10.123.0.1/24", "dev", "bridge")
        self.ip(self.hub, "link", "set", "bridge", "up")

    def ip(self, space, *arguments):
        run("ip", "-netns", space, *arguments)

    def numbers(self):
        start = self.stateful["ordinals"]["start"]
        return range(start, start + self.stateful["replicas"])

    def start(self, number, *further):
        """Runs a pod, with an address that none had before, and its volume if there was one; `further` arguments come last."""
        name = f"duramen-{number}"
        space, address = f"dur{self.id}p{number}", f"10.123.0.{next(self.addresses)}"
        run("ip", "netns", "add", space)
        self.ip(self.hub, "link", "add", f"p{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
        self.ip(self.hub, "link", "set", f"p{number}", "master", "bridge", "up")
        for arguments in (("link", "set", "lo", "up"), ("address", "add", f"{address}/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
            self.ip(space, *arguments)
        self.pods[number] = (name, space, address)
        self.write_hosts()
        template = self.stateful["template"]
        container = template["spec"]["containers"][0]
        podman("run", "--detach", "--name", f"{name}-{self.id}", f"--network=ns:/run/netns/{space}", *ulimits(),
               *self.security(template["spec"], container), *self.volumes(template["spec"], container, name), *self.environment(container, name, number)[0],
               f"--hostname={name}", IMAGE, *(expand(it, self.environment(container, name, number)[1]) for it in container["args"]), *further)

    def write_hosts(self):
        """What Kubernetes' DNS says of pods of a headless service that publishes addresses that are not ready, in place."""
        service, lines = self.stateful["serviceName"], ["127.0.0.1 localhost"]
        assert self.objects["Service", service]["spec"]["publishNotReadyAddresses"]
        for name, _, address in self.pods.values():
            full = f"{name}.{service}.{SPACE}.svc"
            lines.append(f"{address} {full}.cluster.local {full} {name}.{service}")
        with open(self.hosts, "r+" if self.hosts.exists() else "w") as file:
            file.write("\n".join(lines) + "\n")
            file.truncate()

    @staticmethod
    def environment(container, name, number):
        """Options of podman, and the variables themselves."""
        fields = {"metadata.name": name, "metadata.namespace": SPACE, "metadata.labels['apps.kubernetes.io/pod-index']": str(number)}
        variables = {it["name"]: it["value"] if "value" in it else fields[it["valueFrom"]["fieldRef"]["fieldPath"]] for it in container["env"]}
        return [f"--env={key}={value}" for key, value in variables.items()], variables

    @staticmethod
    def security(pod, container):
        of_pod, own = pod["securityContext"], container["securityContext"]
        assert of_pod["runAsNonRoot"] and own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"]
        return ["--read-only", "--read-only-tmpfs=false", f"--user={of_pod['runAsUser']}:{of_pod['runAsGroup']}",
                *(f"--cap-drop={it}" for it in own["capabilities"]["drop"]), "--security-opt=no-new-privileges",
                f"--memory={container['resources']['limits']['memory'].removesuffix('i').lower()}",
                f"--group-add={of_pod['fsGroup']}"]

    def volumes(self, pod, container, name):
        """Folders as a kubelet fills them: with fsGroup as their group, files of configuration of root."""
        places, group = {}, pod["securityContext"]["fsGroup"]
        for volume in pod["volumes"]:
            place = places[volume["name"]] = self.directory / f"{name}-{volume['name']}"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            if "configMap" in volume:
                for key, text in self.objects["ConfigMap", volume["configMap"]["name"]]["data"].items():
                    (place / key).write_text(text)
                    (place / key).chmod(0o644)
            else:
                for file in self.secrets[volume["secret"]["secretName"]].iterdir():
                    copy = place / file.name
                    shutil.copy(file, copy)
                    os.chown(copy, 0, group)
                    copy.chmod(volume["secret"]["defaultMode"])
        for claim in self.stateful["volumeClaimTemplates"]:
            place = places[claim["metadata"]["name"]] = self.directory / f"{name}-{claim['metadata']['name']}"
            place.mkdir(exist_ok=True)
            os.chown(place, 0, group)
            place.chmod(0o2775)
        mounts = [f"--volume={places[it['name']]}:{it['mountPath']}{':ro' if it.get('readOnly') else ''}" for it in container["volumeMounts"]]
        return [*mounts, f"--volume={self.hosts}:/etc/hosts:ro", f"--volume={self.directory / 'resolv.conf'}:/etc/resolv.conf:ro"]

    def probe(self, number, which):
        """Answers as the kubelet sees a probe: whether it succeeds."""
        container = self.stateful["template"]["spec"]["containers"][0]
        get = container[f"{which}Probe"]["httpGet"]
        port = next(it["containerPort"] for it in container["ports"] if it["name"] == get["port"])
        done = in_network(self.hub, "curl", "--silent", "--max-time", "5", "--output", "/dev/null", "--write-out", "%{http_code}",
                           f"http://{self.pods[number][2]}:{port}{get['path']}")
        return done.stdout == "200"

    def stop(self, number):
        """Ends a pod with SIGTERM, takes its network away, and returns the exit code."""
        name, space, _ = self.pods.pop(number)
        grace = self.stateful["template"]["spec"]["terminationGracePeriodSeconds"]
        podman("stop", f"--time={grace}", f"{name}-{self.id}")
        code = int(podman("inspect", "--format={{.State.ExitCode}}", f"{name}-{self.id}").stdout)
        podman("rm", f"{name}-{self.id}")
        run("ip", "netns", "delete", space)
        return code

    def duramen(self, *arguments, **options):
        """A client's command, outside of the pods, that begins at one of them."""
        service = self.stateful["serviceName"]
        hosts = ("unshare", "--mount", "sh", "-ec", 'mount --bind "$1" /etc/hosts; shift; exec "$@"', "client", self.hosts)
        bootstrap = ",".join(f"{it[0]}.{service}.{SPACE}.svc:9092" for it in self.pods.values())
        environment = {**os.environ, "DURAMEN_BOOTSTRAP": bootstrap, **options.pop("variables", {})}
        return run("ip", "netns", "exec", self.hub, *hosts, OUT / "x86_64" / "duramen", *arguments, env=environment, **options)

    def logs(self, number):
        done = podman("logs", f"{self.pods[number][0]}-{self.id}")
        return done.stdout + done.stderr

    def status(self):
        return json.loads(self.duramen("cluster", "status", "--output", "json").stdout)

    def healthy(self):
        return len(self.pods) == self.stateful["replicas"] and all(self.probe(it, "readiness") for it in self.pods) and self.status()["healthy"]

    def end(self):
        for number, (name, space, _) in self.pods.items():
            print(f"--- {name}\n{self.logs(number)}"[-8000:])
            podman("rm", "--force", "--time=0", f"{name}-{self.id}")
            run("ip", "netns", "delete", space)
        run("ip", "netns", "delete", self.hub)


def in_network(space, *command, **options):
    """Runs a command in a network namespace; a probe that finds nobody is no error of the test."""
    return run("ip", "netns", "exec", space, "sh", "-c", '"$@" || true', "probe", *command, **options)


@pytest.fixture(scope="module", autouse=True)
def image():
    podman("load", "--input", OUT / f"duramen-{VERSION}-amd64.image.tar")


@pytest.fixture
def cluster(tmp_path):
    it = Cluster("base", tmp_path)
    yield it
    it.end()


def test_three_pods_form_a_cluster_and_a_rolling_restart_with_new_addresses_keeps_its_records(cluster):
    first, *others = cluster.numbers()
    cluster.start(first)
    until("the first pod lives", lambda: cluster.probe(first, "startup") and cluster.probe(first, "liveness"))
    assert not cluster.probe(first, "readiness"), "a pod alone is no cluster yet"
    for number in others:
        cluster.start(number)
    until("three pods are one cluster", cluster.healthy)
    round_trip(cluster.duramen)
    described = cluster.duramen("topic", "describe", "packaged").stdout
    assert "3" in described
    for number in cluster.numbers():
        assert cluster.stop(number) == 0
        until("the others serve", lambda: read(cluster.duramen) == ["hello, package"])
        cluster.start(number)
        until("the pod is a part of the cluster again", cluster.healthy)
    assert read(cluster.duramen) == ["hello, package"]
    for number in cluster.numbers():
        data = cluster.directory / f"duramen-{number}-data" / "data"
        assert data.stat().st_uid == USER and any(data.iterdir())


KUBECTL = """
duramen() { "$DURAMEN" "$@"; }
kubectl() {
    [ "$1" != apply ] || return 0
    [ "$1 $2 $3" = "create secret generic" ]
    local secret=secrets/$4 file
    mkdir -p "$secret"
    shift 4
    for file in "${@#--from-file=}"; do
        case $file in
        *=*) cp "${file#*=}" "$secret/${file%%=*}" ;;
        *) cp "$file" "$secret" ;;
        esac
    done
}
"""


@pytest.fixture
def sasl(tmp_path):
    """The overlay `sasl`, with the certificates, the user and the Secrets that README.md's commands make; runs no pod."""
    block = re.search(r"\n\n((?:    .*\n)*    kubectl apply -k packaging/kubernetes/sasl\n)", (PACKAGING / "README.md").read_text())[1]
    run("bash", "-euc", KUBECTL + block.replace("NAMESPACE", SPACE), cwd=tmp_path, env={**os.environ, "DURAMEN": str(OUT / "x86_64" / "duramen")})
    it = Cluster("sasl", tmp_path, {path.name: path for path in (tmp_path / "secrets").iterdir()})
    yield it
    it.end()


def as_admin(cluster, *arguments, **options):
    """Runs a command as the first user."""
    password = cluster.directory / "password"
    password.write_text((cluster.directory / "users").read_text().split(":")[2])
    own = {"DURAMEN_TLS_CA": str(cluster.directory / "certs" / "ca.pem"), "DURAMEN_USER": "admin", "DURAMEN_PASSWORD_FILE": str(password)}
    return cluster.duramen(*arguments, **{**options, "variables": {**own, **options.get("variables", {})}})


def all_ready(cluster):
    return len(cluster.pods) == len(cluster.numbers()) and all(cluster.probe(number, "readiness") for number in cluster.numbers())


def test_pods_of_the_overlay_sasl_serve_only_who_has_a_password(sasl):
    for number in sasl.numbers():
        sasl.start(number)
    until("three pods are ready", lambda: all_ready(sasl))
    round_trip(functools.partial(as_admin, sasl))
    for variables in ({"DURAMEN_USER": ""}, {"DURAMEN_USER": "mallory"}, {"DURAMEN_TLS_CA": ""}):
        with pytest.raises(AssertionError, match="ended with"):
            as_admin(sasl, "topic", "list", variables=variables, timeout=60)


def handshake(cluster, number, *options):
    """What openssl says of the port for nodes of a pod, as another pod dials it."""
    name = f"{cluster.pods[number][0]}.{cluster.stateful['serviceName']}"
    done = in_network(cluster.hub, "openssl", "s_client", "-connect", f"{cluster.pods[number][2]}:19092", "-servername", name,
                      "-verify_hostname", name, "-verify_return_error", "-CAfile", cluster.directory / "nodes" / "ca.pem", *options,
                      stdin=subprocess.DEVNULL)
    return done.stdout + done.stderr


def test_pods_of_the_overlay_sasl_speak_tls_and_keep_out_a_pod_that_does_not(sasl):
    first, second, last = sasl.numbers()
    plain = ("--set=node.security=plain", "--open")
    for number in (first, second):
        sasl.start(number)
    # It has the place, the voters and the data of a node, and is none.
    sasl.start(last, *plain)
    reason = "it does not speak TLS, and node.security is tls here"
    until("the others refuse it", lambda: any(reason in sasl.logs(number) for number in (first, second)))
    assert not any(sasl.probe(number, "readiness") for number in sasl.numbers()), "an empty cluster forms of all three alone"
    assert sasl.stop(last) == 0
    sasl.start(last)
    until("three pods are ready", lambda: all_ready(sasl))
    round_trip(functools.partial(as_admin, sasl))
    status = as_admin(sasl, "cluster", "status").stdout
    assert "TLS" not in status, status
    for number in sasl.numbers():
        own = sasl.directory / "nodes" / f"{sasl.pods[number][0]}.pem"
        assert "Verification: OK" in handshake(sasl, number, "-cert", own, "-key", own)
    # A member comes back without TLS: the others go on, and it does not serve.
    assert sasl.stop(last) == 0
    sasl.start(last, *plain)
    until("the others refuse it", lambda: any(reason in sasl.logs(number) for number in (first, second)))
    until("the others serve", lambda: read(functools.partial(as_admin, sasl)) == ["hello, package"])
    assert not sasl.probe(last, "readiness")
