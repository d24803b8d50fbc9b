"""Files of packaging/ as they lie there; no build is needed."""

import os
import re
import subprocess

import pytest
import yaml

from common import PACKAGING, VERSION, run

OVERLAYS = ("base", "sasl")
# The oldest Kubernetes that the StatefulSet needs, and the newest that the validator knows.
KUBERNETES = ("1.31", "1.37")


def rendered(overlay):
    """The objects of an overlay, as `kubectl apply -k` would send them."""
    return run("kustomize", "build", PACKAGING / "kubernetes" / overlay).stdout


def objects(overlay):
    return {(it["kind"], it["metadata"]["name"]): it for it in yaml.safe_load_all(rendered(overlay))}


def test_scripts_pass_shellcheck():
    scripts = [*PACKAGING.glob("*.sh"), *(PACKAGING / "deb" / name for name in ("postinst", "prerm", "postrm"))]
    assert len(scripts) == 8
    run("shellcheck", *scripts)


def test_the_dockerfile_passes_hadolint():
    run("hadolint", PACKAGING / "docker" / "Dockerfile")


def test_systemd_takes_every_line_of_the_unit(tmp_path):
    unit = (PACKAGING / "systemd" / "duramen.service").read_text()
    # Neither the binary nor its manual is installed here.
    unit = re.sub("^Documentation=.*$", "", unit.replace("/usr/bin/duramen ", "/bin/true "), flags=re.MULTILINE)
    (tmp_path / "duramen.service").write_text(unit)
    verdict = run("systemd-analyze", "verify", tmp_path / "duramen.service")
    assert [line for line in verdict.stderr.splitlines() if "duramen.service" in line] == []


def test_the_unit_stays_as_closed_as_it_is():
    run("systemd-analyze", "security", "--offline=true", "--threshold=15", PACKAGING / "systemd" / "duramen.service")


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("version", KUBERNETES)
def test_manifests_fit_the_schemas_of_kubernetes(overlay, version, tmp_path):
    (tmp_path / "all.yaml").write_text(rendered(overlay))
    answer = run("kubernetes-validate", "--strict", "-k", version, tmp_path / "all.yaml")
    assert (answer.stdout + answer.stderr).count("passed") == 7


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_manifests_name_each_other_rightly(overlay):
    all_of_it = objects(overlay)
    kinds = [kind for kind, _ in all_of_it]
    stateful = all_of_it["StatefulSet", "duramen"]["spec"]
    pod = stateful["template"]
    labels, container = pod["metadata"]["labels"], pod["spec"]["containers"][0]
    ports = {it["name"]: it["containerPort"] for it in container["ports"]}
    headless = all_of_it["Service", stateful["serviceName"]]["spec"]
    assert headless["clusterIP"] == "None" and headless["publishNotReadyAddresses"]
    for (kind, _), it in all_of_it.items():
        spec = it.get("spec", {})
        if kind == "Service":
            assert spec["selector"].items() <= labels.items()
            assert all(ports[port["targetPort"]] == port["port"] for port in spec["ports"])
        if kind == "PodDisruptionBudget":
            assert spec["selector"]["matchLabels"].items() <= labels.items() and spec["maxUnavailable"] == 1
        if kind == "NetworkPolicy":
            assert spec["podSelector"]["matchLabels"].items() <= labels.items()
            assert {port["port"] for rule in spec["ingress"] for port in rule["ports"]} == set(ports)
    assert stateful["selector"]["matchLabels"].items() <= labels.items()
    assert all(container[probe]["httpGet"]["port"] in ports for probe in ("startupProbe", "livenessProbe", "readinessProbe"))
    assert ("ServiceAccount", pod["spec"]["serviceAccountName"]) in all_of_it
    claims = {it["metadata"]["name"] for it in stateful["volumeClaimTemplates"]}
    volumes = {it["name"]: it for it in pod["spec"]["volumes"]}
    assert {it["name"] for it in container["volumeMounts"]} == claims | set(volumes)
    config = all_of_it["ConfigMap", volumes["config"]["configMap"]["name"]]
    voters = re.search(r'"controller.quorum.voters" = "(.*)"', config["data"]["duramen.toml"])[1]
    first = stateful["ordinals"]["start"]
    assert voters.split(",") == [
        f"{node}@duramen-{node}.{stateful['serviceName']}:{ports['nodes']}" for node in range(first, first + stateful["replicas"])
    ]
    assert kinds.count("StatefulSet") == 1


def test_the_image_of_the_manifests_is_of_this_version():
    container = objects("base")["StatefulSet", "duramen"]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == f"duramen:{VERSION}"


CHANGELOG = """# Changelog

## Unreleased

- Not yet.

## 0.2.0 (2026-01-31)

### Safety

- Two.

## 0.1.0

- One.
"""


@pytest.mark.parametrize(
    ("version", "notes"), [("0.2.0", "### Safety\n\n- Two.\n"), ("0.1.0", "- One.\n"), ("Unreleased", "- Not yet.\n")]
)
def test_release_notes_are_one_section_of_the_changelog(version, notes, tmp_path):
    file = tmp_path / "CHANGELOG.md"
    file.write_text(CHANGELOG)
    assert run(PACKAGING / "release-notes.sh", version, file).stdout == notes


@pytest.mark.parametrize("version", ["0.1", "0.3.0", "2.0"])
def test_release_notes_of_a_version_without_a_section_are_an_error(version, tmp_path):
    file = tmp_path / "CHANGELOG.md"
    file.write_text(CHANGELOG)
    answer = subprocess.run([PACKAGING / "release-notes.sh", version, file], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (1, "")


def test_release_notes_of_this_tree_are_there():
    assert run(PACKAGING / "release-notes.sh").stdout.strip()


def signed(folder, key):
    """Sums a folder with a key, or with none, and returns what is said about it."""
    environment = {"PATH": os.environ["PATH"], **({"DURAMEN_SIGNING_KEY": str(key)} if key else {})}
    return run(PACKAGING / "sums.sh", folder, env=environment).stderr


def verified(folder):
    """Whether a user's commands, those of README.md, find the artifacts as they were signed."""
    block = re.search(r"\n\n((?:    .*\n)*    sha256sum --check .*\n)", (PACKAGING / "README.md").read_text())[1]
    return subprocess.run(["bash", "-ec", block], cwd=folder, env={"PATH": os.environ["PATH"]}, capture_output=True, check=False).returncode == 0


def test_a_users_commands_verify_what_was_signed_and_nothing_else(tmp_path):
    key, other, folder = tmp_path / "key", tmp_path / "other", tmp_path / "release"
    for it in (key, other):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", it)
    folder.mkdir()
    for name in ("duramen.deb", "duramen.tar.gz"):
        (folder / name).write_text(name)
    (folder / "signers").write_text(f"duramen {key.with_suffix('.pub').read_text()}")
    assert "SHA256SUMS.sig is by" in signed(folder, key)
    assert verified(folder)
    (folder / "duramen.tar.gz").unlink()
    assert verified(folder), "one artifact alone can be verified"
    (folder / "duramen.deb").write_text("another one")
    assert not verified(folder)
    (folder / "duramen.deb").write_text("duramen.deb")
    assert verified(folder)
    (folder / "SHA256SUMS").write_text((folder / "SHA256SUMS").read_text().replace("a", "b"))
    assert not verified(folder)
    signed(folder, other)
    assert not verified(folder)


def test_without_a_key_the_sums_say_that_they_are_not_signed(tmp_path):
    (tmp_path / "duramen.deb").write_text("deb")
    (tmp_path / "SHA256SUMS.sig").write_text("of an earlier build")
    assert "not signed" in signed(tmp_path, None)
    assert not (tmp_path / "SHA256SUMS.sig").exists() and "duramen.deb" in (tmp_path / "SHA256SUMS").read_text()


def test_a_key_that_is_not_there_ends_the_build(tmp_path):
    (tmp_path / "duramen.deb").write_text("deb")
    with pytest.raises(AssertionError, match="nowhere"):
        signed(tmp_path, tmp_path / "nowhere")
    with pytest.raises(AssertionError, match="no artifact"):
        (tmp_path / "empty").mkdir()
        signed(tmp_path / "empty", None)
