"""The kind kubernetes without a cluster: the Jobs that it makes, and what it reads from answers of kubectl."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from tests.agent.plans import stand_in_plan
from tests.support.raising import raises
from tests.support.waiting import until
from zmqrl.config.codec import replace
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config, DefaultsSection, HostSection, LearnerSection, StoreSection
from zmqrl.data_stores import tensors
from zmqrl.errors import HostFailed
from zmqrl.launch.run.boots import boots
from zmqrl.messages.orchestrator import HostUnusable
from zmqrl.orchestrators.agent import AgentProgress
from zmqrl.orchestrators.host_commands import REMOTE_RUNS
from zmqrl.orchestrators.pods.agent import PodAgent, PodShell
from zmqrl.orchestrators.pods.kubectl import Pod, Pods, Wait, label, pod_of
from zmqrl.orchestrators.pods.kubernetes import KubernetesAccess, KubernetesConfig, KubernetesOrchestrator

RUN = Config(learner=LearnerSection(host="trainer"), hosts={"trainer": HostSection(), "w1": HostSection(workers=1)})
SECRET = {"name": "registry"}
HERE = 'while [ "$1" != -- ]; do shift; done; shift\n'
"""Of a kubectl whose pods are this machine."""


def access(**keys: Any) -> KubernetesAccess:
    return KubernetesAccess(KubernetesConfig(image="lab/zmqrl", **keys), RUN)


def test_a_host_is_a_job_that_is_not_repeated_and_goes_on_its_own() -> None:
    job = access().job("run-1", "w1")
    assert job["spec"]["backoffLimit"] == 0 and job["spec"]["ttlSecondsAfterFinished"] > 0
    assert job["metadata"]["labels"] == {"zmqrl.run": "run-1", "zmqrl.host": "w1"}
    assert job["spec"]["template"]["metadata"]["labels"] == job["metadata"]["labels"], "pods are found by them too"
    pod = job["spec"]["template"]["spec"]
    assert (pod["restartPolicy"], pod["automountServiceAccountToken"]) == ("Never", False)


def test_the_learner_has_its_own_resources_and_further_fields_are_those_of_the_api() -> None:
    given = access(
        resources={"cpu": "1"},
        learner_resources={"cpu": "4", "nvidia.com/gpu": "1"},
        node_selector={"pool": "rl"},
        pod={"imagePullSecrets": [SECRET]},
        container={"imagePullPolicy": "Always"},
    )
    learner, worker = (given.job("run-1", host)["spec"]["template"]["spec"] for host in ("trainer", "w1"))
    assert learner["containers"][0]["resources"]["limits"] == {"cpu": "4", "nvidia.com/gpu": "1"}
    assert worker["containers"][0]["resources"] == {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}
    assert (worker["nodeSelector"], worker["imagePullSecrets"]) == ({"pool": "rl"}, [SECRET])
    assert worker["containers"][0]["imagePullPolicy"] == "Always" and worker["containers"][0]["image"] == "lab/zmqrl"


@pytest.mark.parametrize("host", ["Node_1.lab", "x" * 80, "-a-", "7"])
def test_any_name_of_a_host_gives_names_that_kubernetes_accepts(host: str) -> None:
    meta = access().job("r" * 70, host)["metadata"]
    name = meta["name"]
    assert (
        len(name) <= 63
        and name != access().job("r" * 70, host)["metadata"]["name"]
        and name == name.lower()
        and name.replace("-", "").isalnum()
    )
    for value in meta["labels"].values():
        assert len(value) <= 63 and value[0].isalnum() and value[-1].isalnum()
    assert label(host) == meta["labels"]["zmqrl.host"]


def test_the_python_is_that_of_the_image_unless_another_is_set() -> None:
    assert access().section("w1").python == "python3"
    run = replace(RUN, defaults=DefaultsSection(python="/opt/python"))
    assert KubernetesAccess(KubernetesConfig(image="i"), run).section("w1").python == "/opt/python"


SCHEDULED = {"type": "PodScheduled", "status": "True"}
NO_NODE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}
PREEMPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "preempting"}
RUNNING, PULLING = {"running": {}}, {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
STATES: list[tuple[str, dict[str, Any], str, str]] = [
    ("no node", {"phase": "Pending", "conditions": [NO_NODE]}, "waiting", "Unschedulable: 0/2 nodes are available"),
    ("scheduled", {"phase": "Pending", "conditions": [SCHEDULED]}, "waiting", ""),
    ("no image", {"phase": "Pending", "state": PULLING}, "waiting", "ImagePullBackOff: no such image"),
    ("being made", {"phase": "Pending", "state": {"waiting": {"reason": "ContainerCreating"}}}, "waiting", ""),
    ("running", {"phase": "Running", "conditions": [SCHEDULED], "state": RUNNING}, "running", ""),
    ("preempted", {"phase": "Running", "conditions": [PREEMPTED], "state": RUNNING}, "ending", ""),
    (
        "evicted",
        {"phase": "Failed", "reason": "Evicted", "message": "low on memory"},
        "ended",
        "Evicted: low on memory",
    ),
    ("killed", {"phase": "Failed", "state": {"terminated": {"reason": "OOMKilled"}}}, "ended", "OOMKilled"),
]


@pytest.mark.parametrize(("name", "status", "state", "reason"), STATES, ids=[state[0] for state in STATES])
def test_what_a_pod_does_is_read_from_its_status(name: str, status: dict[str, Any], state: str, reason: str) -> None:
    meta = {"name": "zmqrl-w1-x", "labels": {"zmqrl.host": "w1"}, "ownerReferences": [{"name": "zmqrl-w1"}]}
    if name == "preempted":
        meta["deletionTimestamp"], reason = "2026-01-01T00:00:00Z", "PreemptionByScheduler: preempting"
    ours = {"name": "zmqrl", "state": status.pop("state", {})}
    status["containerStatuses"] = [{"name": "istio-proxy", "state": RUNNING}, ours]
    assert pod_of({"metadata": meta, "status": status}) == Pod("zmqrl-w1-x", "w1", "zmqrl-w1", state, reason)  # type: ignore[arg-type]


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a script of sh in the place of kubectl."""

    def write(script: str) -> Pods:
        path = tmp_path / "kubectl"
        path.write_text(f"#!/bin/sh\n{script}")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return Pods("cluster", "rl", "run-1")

    return write


def test_the_message_of_the_api_server_is_the_cause(kubectl: Any) -> None:
    refusal = 'Error from server (Forbidden): jobs.batch is forbidden: User "ann" cannot create resource "jobs"'
    client = kubectl(f"echo '{refusal}' >&2; exit 1")
    with pytest.raises(HostFailed) as raised:
        client.create("w1", {})
    assert (raised.value.host, raised.value.cause) == ("w1", f"kubectl: {refusal}")
    assert "--context=cluster --namespace=rl create" in raised.value.fix


def test_a_kubectl_that_fails_without_a_word_is_named_by_its_exit_code(kubectl: Any) -> None:
    with raises(HostFailed, cause="kubectl: exit code 3"):
        kubectl("exit 3").create("w1", {})


def test_a_failure_is_the_answer_to_all_who_wait(kubectl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each host waits in turn as long as kubectl waits for an API server that is away."""
    monkeypatch.setattr("zmqrl.orchestrators.pods.kubectl.LIST_EVERY_S", 3600.0)
    client = kubectl(f"echo >>{tmp_path}/calls; exit 1")
    for host in ("w1", "w2"):
        with raises(HostFailed, host=host):
            client.listed(host)
    assert (tmp_path / "calls").read_text() == "\n"


def test_a_machine_without_kubectl_is_told_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with raises(HostFailed, cause="kubectl cannot be started: No such file or directory"):
        Pods(None, None, "run-1").listed("w1")


def test_a_job_is_deleted_when_its_pod_is_not_waited_for(kubectl: Any, tmp_path: Path) -> None:
    client = kubectl(f'echo "$3" >>{tmp_path}/calls; echo \'{{"items": []}}\'')

    reasons: list[str] = []
    with raises(HostFailed, cause="its pod did not run: no reason is known yet"):
        client.start("w1", {"metadata": {"name": "w1-1"}}, Wait(0.0, threading.Event(), reasons.append))
    assert reasons == []
    assert (tmp_path / "calls").read_text().split() == ["create", "get", "delete"]


ABOUT = [
    ("w1-2", "FailedCreate", "of another", "3"),
    ("w1-1", "FailedCreate", "quota", "1"),
    ("w1-1-x", "FailedMount", "no secret", "2"),
]


def test_a_warning_is_the_reason_where_the_status_has_none(
    kubectl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zmqrl.orchestrators.pods.kubectl.LISTS_PER_WARNING", 1)
    events = [
        {"involvedObject": {"name": name}, "reason": reason, "message": message, "lastTimestamp": at}
        for name, reason, message, at in ABOUT
    ]
    (tmp_path / "events").write_text(json.dumps({"items": events}))
    answers = f"get) [ $4 = pods ] && echo '{{\"items\": []}}' || cat {tmp_path}/events"
    client, reasons = kubectl(f"case $3 in {answers} ;; esac"), list[str]()
    with raises(HostFailed, cause="its pod did not run: FailedMount: no secret"):
        client.start("w1", {"metadata": {"name": "w1-1"}}, Wait(0.0, threading.Event(), reasons.append))
    assert reasons == ["FailedMount: no secret"]


def shell(client: Pods) -> PodShell:
    pod = Pod("zmqrl-w1-x", "w1", "zmqrl-w1", "running", "")
    return PodShell("w1", client, {}, Wait(0.0, threading.Event(), lambda _: None), pod)


def test_a_file_goes_to_a_pod_and_comes_back(kubectl: Any, tmp_path: Path) -> None:
    pod, content = shell(kubectl(HERE + 'exec "$@"')), os.urandom(200_000)
    pod.put(content, f"{tmp_path}/a folder/file")
    pod.get(f"{tmp_path}/a folder/file", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    pod.remove_tree(f"{tmp_path}/a folder")
    assert not (tmp_path / "a folder").exists()


def test_a_file_that_arrives_in_part_is_an_error_and_has_no_name(kubectl: Any, tmp_path: Path) -> None:
    pod = shell(kubectl(HERE + 'head -c 1000 | "$@"'))
    with pytest.raises(HostFailed):
        pod.put(bytes(200_000), f"{tmp_path}/file")
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(("kept", "arrived"), [(1000, "1000 of 200000"), (0, "0 of 200000")])
def test_a_file_that_comes_back_in_part_is_an_error(kubectl: Any, tmp_path: Path, kept: int, arrived: str) -> None:
    (tmp_path / "file").write_bytes(bytes(200_000))
    pod = shell(kubectl(f'{HERE} "$@" | head -c {kept}'))
    with raises(HostFailed, cause=f"{arrived} bytes of {tmp_path}/file arrived"):
        pod.get(f"{tmp_path}/file", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_copy_fails_when_it_stalls_and_not_after_a_time(
    kubectl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zmqrl.orchestrators.pods.streams.STALLED_S", 1.5)
    (tmp_path / "file").write_bytes(bytes(6))
    slow = shell(kubectl(f"{HERE} echo 6 >&2; for i in 1 2 3 4 5 6; do printf x; sleep 0.5; done"))
    slow.get(f"{tmp_path}/file", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"xxxxxx"
    stalled = shell(kubectl(f"{HERE} printf xx; sleep 600"))
    with raises(HostFailed, cause="a copy stalled after 2 bytes: nothing was transferred for 1.5 s"):
        stalled.get(f"{tmp_path}/file", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    with raises(HostFailed, cause="a copy stalled after 0 bytes: nothing was transferred for 1.5 s"):
        shell(kubectl("sleep 600")).put(tmp_path / "file", f"{tmp_path}/there")


CLUSTER = """case $3 in
create) body=$(cat)
    host=$(printf '%s' "$body" | sed 's/.*"zmqrl.host": "\\([^"]*\\)".*/\\1/')
    job=$(printf '%s' "$body" | sed 's/.*"metadata": {"name": "\\([^"]*\\)".*/\\1/')
    case "$*" in *dry-run*) ;; *) echo $host >$S/jobs/$job ;; esac
    [ ! -e $S/late ] || { echo timeout >&2; exit 1; } ;;
get) comma=
    printf '{"items": ['
    for job in $([ $(cat $S/state) = none ] || ls $S/jobs); do
        printf '%s{"metadata": {"name": "%s-x", "labels": {"zmqrl.host": "%s"}, "ownerReferences": [{"name": "%s"}]},' \
            "$comma" $job $(cat $S/jobs/$job) $job
        printf '"status": {"containerStatuses": [{"name": "zmqrl", "state": {"%s": {}}}]}}' $(cat $S/state)
        comma=,
    done
    echo ']}' ;;
delete) [ ! -e $S/refuses ] || { echo refused >&2; exit 1; }
    shift 6
    [ ! -e $S/slow ] || cat $S/slow
    case $1 in
    --selector=*!=*) kept=${1##*!=}
        for job in $(ls $S/jobs); do [ $(cat $S/jobs/$job) = $kept ] || rm $S/jobs/$job; done ;;
    --selector=*) rm -f $S/jobs/* ;;
    *) rm -f $S/jobs/$1 ;;
    esac ;;
exec) [ ! -e $S/cut ] || { echo cut >&2; exit 1; }
    while [ "$1" != -- ]; do shift; done; shift
    exec "$@" ;;
esac
"""
"""A kubectl with a Job per host, all of whose pods have one state: $S/jobs, $S/state."""


class Pretended(NamedTuple):
    """A run in pods that are processes of this machine; its agents end at once."""

    orchestrator: KubernetesOrchestrator
    plan: RunPlan
    folder: Path

    def deploy(self) -> None:
        self.orchestrator.deploy(boots(self.plan))

    def jobs(self) -> list[str]:
        return sorted(self.plainly(name) for name in os.listdir(self.folder / "jobs"))

    def plainly(self, text: str) -> str:
        """The names of Jobs in a text without their random part."""
        return re.sub(r"zmqrl-(\w+)-[0-9a-f]{6}", r"\1-1", text)


@pytest.fixture
def pretended(kubectl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    folder = tmp_path / "cluster"
    (folder / "jobs").mkdir(parents=True)
    (folder / "state").write_text("running")
    kubectl(f"S={folder}\n{CLUSTER}")
    monkeypatch.setattr(KubernetesAccess, "records_end_s", 0.0)
    monkeypatch.setattr("zmqrl.orchestrators.on_hosts.CANCEL_S", 1.0)
    plan = stand_in_plan(tmp_path / "run")
    hosts = {
        host: HostSection(workers=workers, python="true", workdir=str(tmp_path / "pods"))
        for host, workers in (("trainer", 0), ("w1", 1))
    }
    config = replace(plan.config, hosts=hosts, learner=replace(plan.config.learner, host="trainer"))
    plan = replace(plan, config=config, workers={"trainer": 0, "w1": 1}, store_path=str(tmp_path / "here"))
    settings = KubernetesConfig(image="i", namespace="rl", context="cluster")
    return Pretended(KubernetesOrchestrator(settings, plan), plan, folder)


def test_a_pod_that_waits_delays_no_other_host(pretended: Pretended) -> None:
    """The start of each takes its time; a lock of all shells would make it a queue."""
    (pretended.folder / "state").write_text("waiting")
    pretended.deploy()
    until(lambda: pretended.jobs() == ["trainer-1", "w1-1"], pretended.jobs, 20.0)
    assert not pretended.orchestrator.undeploy(0.1).left and not pretended.jobs()


@pytest.mark.parametrize("state", ["waiting", "none"])
def test_a_job_that_could_not_be_deleted_is_named(pretended: Pretended, state: str) -> None:
    """Its pod never ran, or was not created."""
    (pretended.folder / "state").write_text(state)
    pretended.deploy()
    until(lambda: pretended.jobs() == ["trainer-1", "w1-1"], pretended.jobs, 20.0)
    (pretended.folder / "refuses").touch()
    what = {"waiting": "job {0}-1 (kubectl: refused)", "none": "? (its Job was not deleted: kubectl: refused)"}[state]
    left = tuple(map(pretended.plainly, pretended.orchestrator.undeploy(0.1).left))
    assert left == tuple(f"{host}/{what.format(host)}" for host in ("trainer", "w1"))


def test_a_pod_whose_files_could_not_be_collected_is_left_with_the_command_that_copies_them(
    pretended: Pretended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zmqrl.orchestrators.remote_checkpoints.RETRIES_AFTER_S", ())
    orchestrator, run_id, here = pretended.orchestrator, pretended.plan.run_id, tmp_path / "here"
    folder = tmp_path / "pods" / REMOTE_RUNS / run_id / "trainer" / "checkpoints"
    folder.mkdir(parents=True)
    content = tensors.dump({}, {})
    (folder / "v0-7.safetensors").write_bytes(content)
    pretended.deploy()
    until(lambda: len(orchestrator.agents) == 2, "the agents", 20.0)
    orchestrator.agents["trainer"]._is_booted = True  # else it has written nothing
    (pretended.folder / "cut").touch()
    (left,) = orchestrator.undeploy(0.1).left
    assert (
        pretended.plainly(left).startswith("trainer/pod trainer-1-x (it has checkpoints without a copy")
        and not here.exists()
    )
    assert pretended.jobs() == ["trainer-1"]
    (pretended.folder / "cut").unlink()
    here.mkdir()
    subprocess.run(left.partition("to copy them: ")[2][:-1], shell=True, check=True)
    assert (here / "v0-7.safetensors").read_bytes() == content
    access = KubernetesAccess(orchestrator.config, pretended.plan.config)
    access.bring_left("trainer", run_id, tmp_path / "resumed")
    assert (tmp_path / "resumed" / "v0-7.safetensors").read_bytes() == content and not pretended.jobs()


def test_a_learners_pod_outlasts_the_grace_of_the_other_hosts() -> None:
    def idle_looks(host: str, run: Config) -> int:
        job = KubernetesAccess(KubernetesConfig(image="i"), run).job("run-1", host)
        return int(job["spec"]["template"]["spec"]["containers"][0]["command"][-1])

    patient = replace(RUN, limits=replace(RUN.limits, grace_s=7200.0))
    assert (idle_looks("w1", patient), idle_looks("trainer", RUN)) == (12, 723)
    assert idle_looks("trainer", patient) * 5 == 7200 + 3600
    assert idle_looks("trainer", replace(RUN, store=StoreSection(options={"path": "/shared"}))) == 12


def test_a_pod_that_is_replaced_is_deleted_first_and_not_reported_as_lost(pretended: Pretended) -> None:
    orchestrator = pretended.orchestrator
    pretended.deploy()
    until(lambda: len(orchestrator.agents) == 2, "the agents", 20.0)
    former = orchestrator.agents["w1"]
    until(lambda: former.wait(0.0) is not None, "its end", 20.0)
    orchestrator.deploy({"w1": boots(pretended.plan)["w1"]})
    until(lambda: orchestrator.agents["w1"] is not former, "the other one", 20.0)
    assert former.is_released and pretended.jobs() == ["trainer-1", "w1-1"]
    assert not orchestrator.undeploy(0.1).left


def test_an_agent_that_is_released_while_the_cause_of_its_end_is_looked_up_reports_none(pretended: Pretended) -> None:
    """Its pod is not listed any more: the launcher deletes it."""
    agent = SimpleNamespace(host="w1", progress=AgentProgress(), is_released=False, wait=lambda timeout_s: 1)
    agent.pipe = SimpleNamespace(lines=lambda: ())

    def silent_end(code: int) -> HostFailed:
        agent.is_released = True
        return HostFailed("w1", "it was deleted", "")

    agent.silent_end = silent_end
    pretended.orchestrator._read(cast(PodAgent, agent))
    assert not pretended.orchestrator.monitor(0.0)


def test_the_cause_of_an_eviction_may_follow_the_end_of_the_processes(pretended: Pretended) -> None:
    answers = iter([None, None, "Evicted: The node was low on resource: memory."])
    pod = SimpleNamespace(lost=lambda: next(answers), started=lambda: SimpleNamespace(name="zmqrl-w1-x"))
    boot = SimpleNamespace(plan=pretended.plan, workers=(0,))
    agent = SimpleNamespace(host="w1", progress=AgentProgress(), shell=pod, boot=boot)
    found = PodAgent.cut_off(cast(PodAgent, agent))
    assert found is not None and found.cause.endswith("pod zmqrl-w1-x: Evicted: The node was low on resource: memory.")


def test_the_end_of_an_agent_without_boot_does_not_wait_for_kubectl(pretended: Pretended) -> None:
    """The main thread ends one after the other."""
    pretended.deploy()
    until(lambda: len(pretended.orchestrator.agents) == 2, "the agents", 20.0)
    os.mkfifo(pretended.folder / "slow")
    pretended.orchestrator.agents["w1"].terminate()
    assert "w1-1" in pretended.jobs()
    with (pretended.folder / "slow").open("w"):
        (pretended.folder / "slow").unlink()
    until(lambda: pretended.jobs() == ["trainer-1"], pretended.jobs, 20.0)
    assert not pretended.orchestrator.undeploy(0.1).left


def test_a_job_whose_creation_was_not_answered_in_time_is_deleted(pretended: Pretended) -> None:
    (pretended.folder / "late").touch()
    pretended.deploy()
    until(lambda: not pretended.orchestrator.is_connecting, pretended.jobs, 20.0)
    assert not pretended.jobs()
    pretended.orchestrator.undeploy(0.1)


def test_a_probe_that_waits_can_be_abandoned_and_ends_with_its_deadline(pretended: Pretended) -> None:
    (pretended.folder / "state").write_text("waiting")
    reached = KubernetesAccess(pretended.orchestrator.config, pretended.plan.config)
    ((_, probe),) = reached.shells(["w1"])
    assert 0 < probe._job["spec"]["activeDeadlineSeconds"] <= 3600
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(probe.check_answer)
        until(lambda: pretended.jobs() == ["w1-1"], pretended.jobs, 20.0)
        reached.abandon()
        with raises(HostFailed, host="w1"):
            waiting.result(20.0)
    assert not pretended.jobs()


def test_the_line_that_kubectl_adds_is_not_the_cause_of_an_agents_end(pretended: Pretended) -> None:
    ended = "echo no space >&2; echo command terminated with exit code 3 >&2; exit 3"
    path = pretended.folder.parent / "kubectl"
    path.write_text(path.read_text().replace('    exec "$@"', f"    {ended}"))
    pretended.deploy()
    reported: list[HostUnusable] = []

    def failures() -> list[HostUnusable]:
        events = [each.event for each in pretended.orchestrator.monitor(0.1)]
        reported.extend(event for event in events if isinstance(event, HostUnusable))
        return reported

    until(failures, "the failures", 20.0)
    assert reported[0].cause.endswith("before its handshake: no space")
    pretended.orchestrator.undeploy(0.1)
