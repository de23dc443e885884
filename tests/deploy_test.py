"""The manifests in deploy/: what schedulers would say of them, and whether they fit together.

Kubernetes documents are compared with its own schemas, units of systemd by systemd itself, a TFJob
with what its operator demands; and every command in them is parsed by our own command line.
"""

import copy
import json
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys

import kubernetes_validate
import pytest
import typer.main
import yaml

from monolith import errors
from monolith.cli.app import app
from monolith.cluster.discovery import TfConfigServiceDiscovery
from monolith.training.config.job import DistributedCpuTrainingConfig
from monolith.training.distributed import start
from monolith.training.launch import single, targets

DEPLOY = pathlib.Path(__file__).parents[1] / "deploy"
# The oldest that has all fields of the manifests, and the newest that the schemas know.
KUBERNETES_VERSIONS = ("1.30", kubernetes_validate.latest_version())
INDEX_FIELDS = {
    "StatefulSet": "metadata.labels['apps.kubernetes.io/pod-index']",
    "Job": "metadata.annotations['batch.kubernetes.io/job-completion-index']",
}
MEMBERS = ("StatefulSet", "Job")


def read_documents(directory: str) -> dict[str, dict]:
    """Returns the documents of a directory by kind; there is one of each."""
    found: dict[str, dict] = {}
    for path in sorted((DEPLOY / directory).glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            assert document["kind"] not in found
            found[document["kind"]] = document
    return found


KUBERNETES = read_documents("kubernetes")
KUBEFLOW = read_documents("kubeflow")
KUSTOMIZATION = KUBERNETES.pop("Kustomization")
TF_JOB = KUBEFLOW.pop("TFJob")
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def get_pod(document: dict) -> dict:
    return document["spec"]["template"]["spec"]


def get_replicas(tf_job: dict) -> dict[str, dict]:
    return tf_job["spec"]["tfReplicaSpecs"]


def parse_command(words: list[str]) -> dict:
    """Returns the parameters of `monolith train ...` as the command line understands them."""
    program, name, *arguments = words
    assert pathlib.PurePath(program).name == "monolith"
    command = typer.main.get_command(app).commands[name]
    return command.make_context(name, arguments).params


def expand(words: list[str], variables: dict[str, str], pattern: str) -> list[str]:
    """Replaces variables as a scheduler does; one that nobody sets is an error here."""
    return [re.sub(pattern, lambda match: variables[match[1]], word) for word in words]


def check_is_restricted(pod: dict) -> None:
    """Checks what Kubernetes' pod security standard "restricted" demands, and a bit more."""
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
    for volume in pod["volumes"]:
        assert "hostPath" not in volume
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        assert name not in pod


def check_volumes(pod: dict, claims: set[str]) -> None:
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for container in pod["containers"]:
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts.keys() == volumes.keys()
        assert mounts["tmp"] == "/tmp"
    claimed = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in volumes.values()
        if "persistentVolumeClaim" in volume
    }
    assert claimed == claims


def check_policy(policy: dict, pods: list[dict[str, str]]) -> None:
    """Checks that a policy lets members through to members, and nobody else."""
    spec = policy["spec"]
    selected = spec["podSelector"]["matchLabels"]
    assert selected  # An empty one means all pods.
    assert all(selected.items() <= labels.items() for labels in pods)
    assert spec["policyTypes"] == ["Ingress"]
    assert spec["ingress"] == [{"from": [{"podSelector": {"matchLabels": selected}}]}]


class TestKubernetes:
    @pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
    @pytest.mark.parametrize("kind", sorted(KUBERNETES))
    def test_document_follows_the_schema(self, kind, version):
        kubernetes_validate.validate(KUBERNETES[kind], version, strict=True)

    def test_a_misspelt_field_is_found(self):
        wrong = copy.deepcopy(KUBERNETES["StatefulSet"])
        wrong["spec"]["replica"] = wrong["spec"].pop("replicas")
        with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
            kubernetes_validate.validate(wrong, KUBERNETES_VERSIONS[-1], strict=True)

    def test_all_files_are_applied(self):
        files = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")}
        assert {*KUSTOMIZATION["resources"], "kustomization.yaml"} == files

    def test_numbers_of_members_are_those_of_the_job(self):
        data = KUBERNETES["ConfigMap"]["data"]
        assert KUBERNETES["StatefulSet"]["spec"]["replicas"] == int(data["PS"])
        workers = KUBERNETES["Job"]["spec"]
        assert workers["completions"] == workers["parallelism"] == int(data["WORKERS"])

    @pytest.mark.parametrize("kind", MEMBERS)
    def test_pods_are_found_and_named(self, kind):
        spec = KUBERNETES[kind]["spec"]
        labels = spec["template"]["metadata"]["labels"]
        service = KUBERNETES["Service"]
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["selector"].items() <= labels.items()
        name = spec.get("serviceName") or get_pod(KUBERNETES[kind])["subdomain"]
        assert name == service["metadata"]["name"]
        if kind == "StatefulSet":
            assert spec["selector"]["matchLabels"] == labels

    def test_servers_and_workers_are_told_apart(self):
        servers, workers = (KUBERNETES[kind]["spec"]["template"]["metadata"] for kind in MEMBERS)
        assert servers["labels"] != workers["labels"]

    def test_only_members_reach_members(self):
        labels = [KUBERNETES[kind]["spec"]["template"]["metadata"]["labels"] for kind in MEMBERS]
        check_policy(KUBERNETES["NetworkPolicy"], labels)

    @pytest.mark.parametrize("kind", MEMBERS)
    def test_pods_may_do_little(self, kind):
        check_is_restricted(get_pod(KUBERNETES[kind]))

    @pytest.mark.parametrize("kind", MEMBERS)
    def test_model_directory_is_shared(self, kind):
        claim = KUBERNETES["PersistentVolumeClaim"]
        assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
        pod = get_pod(KUBERNETES[kind])
        check_volumes(pod, {claim["metadata"]["name"]})
        mounts = {m["name"]: m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}
        data = KUBERNETES["ConfigMap"]["data"]
        assert data["MODEL_DIR"].startswith(f"{mounts['models']}/")
        assert data["DISCOVERY"].startswith(f"file://{mounts['models']}/")

    @pytest.mark.parametrize("kind", MEMBERS)
    def test_command(self, kind):
        (container,) = get_pod(KUBERNETES[kind])["containers"]
        data = KUBERNETES["ConfigMap"]["data"]
        (env,) = container["env"]
        assert env["valueFrom"]["fieldRef"]["fieldPath"] == INDEX_FIELDS[kind]
        variables = {**data, env["name"]: "1"}
        words = expand([*container["command"], *container["args"]], variables, r"\$\((\w+)\)")
        assert not [word for word in words if "$" in word]
        parsed = parse_command(words)
        role = {"StatefulSet": "ps", "Job": "worker"}[kind]
        check_member(parsed, role, 1, data)

    @pytest.mark.parametrize("kind", MEMBERS)
    def test_liveness_is_that_of_the_members_own_record(self, kind, tmp_path):
        (container,) = get_pod(KUBERNETES[kind])["containers"]
        probe = container["livenessProbe"]["exec"]["command"]
        role = {"StatefulSet": "ps", "Job": "worker"}[kind]
        record = tmp_path / "members" / f"{role}-1.json"
        environment = {"MODEL_DIR": str(tmp_path), "INDEX": "1", "PATH": "/usr/bin:/bin"}

        def is_alive() -> bool:
            return subprocess.run(probe, env=environment, stderr=subprocess.DEVNULL).returncode == 0

        assert not is_alive()
        record.parent.mkdir()
        record.write_text("{}")
        assert is_alive()
        subprocess.run(["touch", "-d", "10 minutes ago", record], check=True)
        assert not is_alive()


def check_member(parsed: dict, role: str, index: int, job: dict[str, str]) -> None:
    """Compares what a member was told with what its job says."""
    assert parsed["role"] == role
    assert parsed["index"] == index
    assert str(parsed["ps"]) == job["PS"]
    assert str(parsed["workers"]) == job["WORKERS"]
    assert parsed["discovery"] == job["DISCOVERY"]
    assert str(parsed["model_dir"]) == job["MODEL_DIR"]


# What the operator's definition of a TFJob has; it takes others and ignores them.
TF_JOB_FIELDS = {"runPolicy", "successPolicy", "enableDynamicWorker", "tfReplicaSpecs"}
RUN_POLICY_FIELDS = {
    "activeDeadlineSeconds": int,
    "backoffLimit": int,
    "cleanPodPolicy": str,
    "managedBy": str,
    "schedulingPolicy": dict,
    "suspend": bool,
    "ttlSecondsAfterFinished": int,
}
REPLICA_TYPES = {"Chief", "Master", "Worker", "PS", "Evaluator"}


def check_tf_job(tf_job: dict) -> None:
    """Checks what the definition of the resource and the webhook of its operator check."""
    assert tf_job["apiVersion"] == "kubeflow.org/v1"
    # Becomes part of the names of services, `NAME-chief-0`, so it follows their rule.
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", tf_job["metadata"]["name"])
    assert len(tf_job["metadata"]["name"]) <= 63 - len("-worker-9999")
    spec = tf_job["spec"]
    assert spec.keys() <= TF_JOB_FIELDS
    for name, value in spec["runPolicy"].items():
        assert type(value) is RUN_POLICY_FIELDS[name]
    assert spec["runPolicy"]["cleanPodPolicy"] in ("Running", "All", "None")
    assert spec.get("successPolicy", "") in ("", "AllWorkers")
    replicas = spec["tfReplicaSpecs"]
    assert replicas.keys() <= REPLICA_TYPES
    assert not {"Chief", "Master"} <= replicas.keys()
    for kind, replica in replicas.items():
        assert replica.keys() == {"replicas", "restartPolicy", "template"}
        assert type(replica["replicas"]) is int
        assert replica["replicas"] == 1 if kind in ("Chief", "Master") else replica["replicas"] > 0
        assert replica["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
        # The operator sets that of the pod itself.
        assert "restartPolicy" not in replica["template"]["spec"]
        template = {"apiVersion": "v1", "kind": "PodTemplate", "template": replica["template"]}
        kubernetes_validate.validate(template, KUBERNETES_VERSIONS[-1], strict=True)
        (container,) = [
            c for c in replica["template"]["spec"]["containers"] if c["name"] == "tensorflow"
        ]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert "tfjob-port" in ports


def make_tf_config(tf_job: dict, kind: str, index: int) -> dict:
    """Returns what the operator writes for one pod."""
    cluster = {}
    for name, replica in get_replicas(tf_job).items():
        (container,) = replica["template"]["spec"]["containers"]
        port = container["ports"][0]["containerPort"]
        host = f"{tf_job['metadata']['name']}-{name.lower()}-{{}}.default.svc"
        cluster[name.lower()] = [f"{host.format(i)}:{port}" for i in range(replica["replicas"])]
    return {
        "cluster": cluster,
        "task": {"type": kind.lower(), "index": index},
        "environment": "cloud",
    }


class TestKubeflow:
    def test_job_is_what_the_operator_demands(self):
        check_tf_job(TF_JOB)

    @pytest.mark.parametrize(
        "breaks",
        [
            lambda job: job["metadata"].update(name="Movies"),
            lambda job: job["spec"].update(replicas=3),
            lambda job: job["spec"]["runPolicy"].update(backoffLimit="20"),
            lambda job: get_replicas(job)["Chief"].update(replicas=2),
            lambda job: get_replicas(job)["PS"].update(restartPolicy="Sometimes"),
            lambda job: get_replicas(job).update(Server=get_replicas(job).pop("PS")),
            lambda job: get_container(job, "Worker").update(name="monolith"),
            lambda job: get_container(job, "Worker").update(ports=[]),
            lambda job: get_container(job, "Worker").update(imagee="x"),
        ],
    )
    def test_what_is_wrong_is_found(self, breaks):
        wrong = json.loads(json.dumps(TF_JOB))  # Templates are one object in the file.
        breaks(wrong)
        with pytest.raises(
            (AssertionError, KeyError, ValueError, kubernetes_validate.ValidationError)
        ):
            check_tf_job(wrong)

    @pytest.mark.parametrize("kind", sorted(KUBEFLOW))
    def test_other_documents_follow_the_schema(self, kind):
        kubernetes_validate.validate(KUBEFLOW[kind], KUBERNETES_VERSIONS[-1], strict=True)

    def test_only_members_reach_members(self):
        # The operator gives this label to all pods of a job.
        labels = {"training.kubeflow.org/job-name": TF_JOB["metadata"]["name"]}
        check_policy(KUBEFLOW["NetworkPolicy"], [labels])

    @pytest.mark.parametrize("kind", sorted(get_replicas(TF_JOB)))
    def test_pods_may_do_little_and_share_the_model_directory(self, kind):
        pod = get_replicas(TF_JOB)[kind]["template"]["spec"]
        check_is_restricted(pod)
        claim = KUBEFLOW["PersistentVolumeClaim"]
        assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
        check_volumes(pod, {claim["metadata"]["name"]})

    def test_every_pod_finds_its_place_in_tf_config(self):
        found = []
        for kind, replica in get_replicas(TF_JOB).items():
            parsed = parse_command(get_words(TF_JOB, kind))
            for index in range(replica["replicas"]):
                discovery = TfConfigServiceDiscovery(make_tf_config(TF_JOB, kind, index))
                config = DistributedCpuTrainingConfig(
                    num_ps=parsed["ps"],
                    num_workers=parsed["workers"],
                    model_dir=str(parsed["model_dir"]),
                )
                start.take_role(config, discovery)
                start.check_config(config)
                found.append((config.server_type, config.index))
        assert sorted(found) == [
            ("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1), ("worker", 2)
        ]  # fmt: skip

    def test_other_numbers_than_those_of_tf_config_are_refused(self):
        discovery = TfConfigServiceDiscovery(make_tf_config(TF_JOB, "Chief", 0))
        with pytest.raises(errors.ConfigError, match="TF_CONFIG lists 2 of the role 'ps'"):
            start.take_role(DistributedCpuTrainingConfig(num_ps=3), discovery)

    @pytest.mark.parametrize("kind", sorted(get_replicas(TF_JOB)))
    def test_command(self, kind):
        parsed = parse_command(get_words(TF_JOB, kind))
        replicas = get_replicas(TF_JOB)
        assert parsed["discovery"] == "tf_config"
        assert parsed["ps"] == replicas["PS"]["replicas"]
        assert parsed["workers"] == replicas["Worker"]["replicas"] + 1
        assert str(parsed["model_dir"]).startswith("/models/")


def get_container(tf_job: dict, kind: str) -> dict:
    return get_replicas(tf_job)[kind]["template"]["spec"]["containers"][0]


def get_words(tf_job: dict, kind: str) -> list[str]:
    container = get_container(tf_job, kind)
    return [*container["command"], *container["args"]]


# What no member needs, and so may not do.
HARDENING = {
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "RestrictNamespaces": "yes",
    "SystemCallFilter": "@system-service",
    "IPAddressDeny": "any",
}


def read_unit(path: pathlib.Path) -> dict[str, dict[str, list[str]]]:
    """Returns the values of each setting by section; a setting may be there several times."""
    sections: dict[str, dict[str, list[str]]] = {}
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            assert re.fullmatch(r"[A-Za-z]+", name), line
            section.setdefault(name, []).append(value)
    return sections


def read_environment(path: pathlib.Path) -> dict[str, str]:
    lines = path.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


class TestSystemd:
    def test_there_is_a_pair(self):
        assert [path.name for path in UNITS] == ["monolith-ps@.service", "monolith-worker@.service"]

    @pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
    def test_systemd_accepts_it(self, unit, tmp_path):
        analyze = shutil.which("systemd-analyze")
        if analyze is None:
            pytest.skip("systemd-analyze is not installed")
        # It wants the program to be there.
        program = pathlib.Path(sys.executable).with_name("monolith")
        copied = tmp_path / unit.name
        copied.write_text(unit.read_text().replace("/opt/monolith/bin/monolith", str(program)))
        result = subprocess.run(
            [analyze, "verify", "--man=no", copied], capture_output=True, text=True, check=False
        )
        assert (result.returncode, result.stderr) == (0, "")

    @pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
    def test_sections_are_those_of_a_service(self, unit):
        assert list(read_unit(unit)) == ["Unit", "Service", "Install"]

    @pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
    def test_it_may_do_little(self, unit):
        service = read_unit(unit)["Service"]
        assert {name: service[name] for name in HARDENING} == {
            name: [value] for name, value in HARDENING.items()
        }
        assert service["User"] == ["monolith"]
        (writable,) = service["ReadWritePaths"]
        job = read_environment(DEPLOY / "systemd" / "job.env")
        assert job["MODEL_DIR"].startswith(f"{writable}/")

    @pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
    def test_one_that_was_killed_comes_back_and_one_that_has_finished_does_not(self, unit):
        assert read_unit(unit)["Service"]["Restart"] == ["on-failure"]

    @pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
    def test_command(self, unit):
        (command,) = read_unit(unit)["Service"]["ExecStart"]
        job = read_environment(DEPLOY / "systemd" / "job.env")
        machine = read_environment(DEPLOY / "systemd" / "machine.env")
        variables = {**job, **machine}
        words = expand(shlex.split(command.replace("%i", "1")), variables, r"\$\{(\w+)\}")
        parsed = parse_command(words)
        check_member(parsed, "ps" if "ps@" in unit.name else "worker", 1, job)
        assert parsed["address"] == machine["ADDRESS"]


def restarts_in_tf_job(kind: str, code: int) -> bool:
    """Returns whether the operator replaces a pod; `ExitCode` is what it calls retryable."""
    policy = get_replicas(TF_JOB)[kind]["restartPolicy"]
    return {"ExitCode": code >= 128, "OnFailure": code != 0, "Always": True, "Never": False}[policy]


def restarts_in_kubernetes(kind: str, code: int) -> bool:
    """Returns whether a pod is replaced."""
    spec = KUBERNETES[kind]["spec"]
    if kind == "StatefulSet":
        return True  # Whatever it says.
    assert get_pod(KUBERNETES[kind])["restartPolicy"] == "Never"  # The Job makes another pod.
    for rule in spec["podFailurePolicy"]["rules"]:
        # The others end the Job; with this one the pod does not even count.
        assert rule["action"] == "Ignore"
    return code != 0


def restarts_in_systemd(unit: pathlib.Path, code: int) -> bool:
    """Returns whether a service that nobody stops is started again."""
    service = read_unit(unit)["Service"]
    assert service["Restart"] == ["on-failure"]
    return code != 0 and str(code) not in service.get("SuccessExitStatus", [""])[0].split()


RESTARTS = {
    **{f"kubeflow {kind}": (restarts_in_tf_job, kind) for kind in get_replicas(TF_JOB)},
    **{f"kubernetes {kind}": (restarts_in_kubernetes, kind) for kind in MEMBERS},
    **{unit.stem: (restarts_in_systemd, unit) for unit in UNITS},
}


def test_worker_whose_chief_was_stopped_does_not_count():
    rules = KUBERNETES["Job"]["spec"]["podFailurePolicy"]["rules"]
    (codes,) = [rule["onExitCodes"] for rule in rules if "onExitCodes" in rule]
    assert codes == {"operator": "In", "values": [single.RETRY_EXIT_CODE]}


@pytest.mark.parametrize("name", sorted(RESTARTS))
def test_member_comes_back_whose_job_is_to_go_on(name):
    restarts, what = RESTARTS[name]
    assert restarts(what, single.RETRY_EXIT_CODE)
    assert restarts(what, 128 + signal.SIGKILL)
    # The servers of Kubernetes are there for a next job.
    assert restarts(what, 0) is (name == "kubernetes StatefulSet")
    # What is wrong with a job stays wrong, and only Kubeflow can be told so.
    assert restarts(what, 1) is not name.startswith("kubeflow")
    # systemd has been told to stop it.
    assert restarts(what, 128 + signal.SIGTERM) is not name.startswith("monolith")


def test_image_is_the_same_everywhere_and_runs_as_the_user_of_the_manifests():
    pods = [get_pod(KUBERNETES[kind]) for kind in MEMBERS]
    pods += [replica["template"]["spec"] for replica in get_replicas(TF_JOB).values()]
    (image,) = {container["image"] for pod in pods for container in pod["containers"]}
    (user,) = {pod["securityContext"]["runAsUser"] for pod in pods}
    text = (DEPLOY / "Dockerfile").read_text()
    assert f"-t {image} " in text
    assert f"\nUSER {user}\n" in text
    assert '\nENTRYPOINT ["monolith"]' in text


def test_what_the_manifests_train_is_there(monkeypatch, tmp_path):
    named = {
        KUBERNETES["ConfigMap"]["data"]["MODEL"],
        read_environment(DEPLOY / "systemd" / "job.env")["MODEL"],
        *(get_words(TF_JOB, kind)[2] for kind in get_replicas(TF_JOB)),
    }
    (name,) = named
    assert (
        f"--build-arg MODEL=deploy/{name.partition(':')[0]}.py"
        in (DEPLOY / "Dockerfile").read_text()
    )
    monkeypatch.syspath_prepend(DEPLOY)
    monkeypatch.delitem(sys.modules, "movies", raising=False)
    try:
        assert targets.find_work(name, model_dir=str(tmp_path)).name
    finally:
        sys.modules.pop("movies", None)
