"""Runs in pods, by a real kubectl over a stand-in of a cluster: the same bits whatever it does, and nothing left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from tests.support.kubernetes.cluster import Kubernetes, kubernetes_or_skip
from tests.support.kubernetes.kubelet import ABSENT
from tests.support.runs import slurm_runs
from tests.support.runs.command_runs import summary, zmqrl
from tests.support.runs.pod_runs import PodRun, configuration, held_run, processes_of
from tests.support.runs.slurm_runs import STEPS
from tests.support.runs.system_plans import WAITING_TALLY
from tests.support.waiting import until

pytestmark = pytest.mark.whole
FOREVER = {"run": {"total_env_steps": 10_000_000}, "algorithm": dict(WAITING_TALLY), "min_workers": 1}
AT_ONCE = {"checkpoint_every_s": 0.2}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    with kubernetes_or_skip({"n1": 4, "n2": 4}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def alone(cluster: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The sha256 of the same run on this machine."""
    del cluster
    folder = tmp_path_factory.mktemp("alone")
    config = slurm_runs.configuration(hosts={"local": {"workers": 1}}, min_workers=1)
    del config["orchestrator"]
    (folder / "hosts.yaml").write_text(yaml.safe_dump(config))
    zmqrl("launch", folder / "hosts.yaml", "--mode", "single", "--plain", "--run-dir", folder / "run", at=folder)
    return str(summary(folder / "run")["weights_sha256"])


def assert_same(run: PodRun, alone: str) -> None:
    done = run.done()
    assert (done["status"], done["weights_sha256"]) == ("done", alone)
    assert done["ledger"]["balanced"] and done["env_steps"] == STEPS
    assert not processes_of(run.run_id)
    run.cluster.await_empty()


def test_a_run_in_pods_survives_an_eviction_and_brings_everything_back(
    cluster: Kubernetes, alone: str, tmp_path: Path
) -> None:
    with held_run(cluster, tmp_path / "run", configuration(tmp_path, run=AT_ONCE)) as run:
        run.wait_for_steps(250)
        cluster.act("evict", run.pod_of("w2"))
        run.wait_for_problem("Evicted: The node was low on resource: memory.")
        run.wait_for_problem("back with 1 worker")
        code, out, err = run.command("status", run.run_dir)
        assert code == 0 and all(host in out for host in ("trainer", "w1", "w2")), err
        assert list((run.run_dir / "checkpoints").glob("full-*")), "copied during the run"
        run.release()
        assert_same(run, alone)
        logs = {path.name for path in (run.run_dir / "logs").glob("*.log")}
        assert {"trainer-learner-0.log", "trainer-broker-0.log", "w1-worker-0.log"} <= logs
        assert list((run.run_dir / "checkpoints").glob("v*-*")), "the final version"


@pytest.mark.long
@pytest.mark.parametrize("frozen", [False, True], ids=["reported", "frozen"])
@pytest.mark.parametrize("what", ["preempt", "evict", "cut"])
def test_a_pod_that_is_taken_away_changes_no_bit(
    cluster: Kubernetes, alone: str, tmp_path: Path, what: str, frozen: bool
) -> None:
    """`frozen`: `kubectl exec` does not end with its pod, as in kubernetes#129144."""
    if what == "cut" and frozen:
        pytest.skip("a connection that is cut ends kubectl")
    hosts = {"local": {"workers": 0}, "w1": {"workers": 1}, "w2": {"workers": 1}}
    config = configuration(tmp_path, hosts=hosts, learner={"host": "local"})
    with held_run(cluster, tmp_path / "run", config) as run:
        run.wait_for_steps(250)
        cluster.act("freeze", "on" if frozen else "off")
        cluster.act(what, run.pod_of("w1"))
        run.wait_for_problem("back with 1 worker")
        cluster.act("freeze", "off")
        run.release()
        assert_same(run, alone)


@pytest.mark.long
def test_a_pod_that_waits_is_reported_and_joins_when_there_is_room(
    cluster: Kubernetes, alone: str, tmp_path: Path
) -> None:
    resources = {"orchestrator": {"resources": {"cpu": "1"}}}
    cluster.act("cores", "n1=1"), cluster.act("cores", "n2=1")
    try:
        with held_run(cluster, tmp_path / "run", configuration(tmp_path, **resources, min_workers=1)) as run:
            run.wait_for_problem("Unschedulable: 0/2 nodes are available: 2 Insufficient cpu.")
            cluster.act("cores", "n1=8")
            run.wait_for_steps(250)
            code, out, err = run.command("scale", run.run_dir, "w3=1")
            assert code == 0, (out, err)
            run.wait_for_host("w3")
            run.release()
            assert_same(run, alone)
    finally:
        cluster.act("cores", "n1=4"), cluster.act("cores", "n2=4")


@pytest.mark.long
def test_a_pod_that_is_refused_is_reported_and_made_once_it_is_admitted(
    cluster: Kubernetes, alone: str, tmp_path: Path
) -> None:
    cluster.act("refuse", quote('violates PodSecurity "restricted:latest"'))
    try:
        with held_run(cluster, tmp_path / "run", configuration(tmp_path)) as run:
            run.wait_for_problem("is forbidden: violates PodSecurity")
            cluster.act("refuse", "nothing")
            run.wait_for_steps(250)
            run.release()
            assert_same(run, alone)
    finally:
        cluster.act("refuse", "nothing")


@pytest.mark.long
def test_a_volume_that_is_not_mounted_is_reported(cluster: Kubernetes, tmp_path: Path) -> None:
    pod = {"volumes": [{"name": "data", "secret": {"secretName": ABSENT}}]}
    config = configuration(tmp_path, orchestrator={"pod": pod}, limits={"start_s": 10.0})
    with held_run(cluster, tmp_path / "run", config) as run:
        code, *printed = run.end()
        assert code == 4 and 'MountVolume.SetUp failed for volume "data"' in "".join(printed), printed


@pytest.mark.long
def test_a_killed_launcher_leaves_no_process_and_no_job_also_none_that_waits(
    cluster: Kubernetes, tmp_path: Path
) -> None:
    nowhere = {"orchestrator": {"resources": {"cpu": "3"}}}
    with held_run(cluster, tmp_path / "run", configuration(tmp_path, **FOREVER, **nowhere)) as run:
        run.wait_for_problem("Unschedulable")
        run.wait_for_steps(250)
        run_id = run.run_id
        assert processes_of(run_id) and len(cluster.list("jobs")) == 3
        run.process.kill()
        until(lambda: not processes_of(run_id), lambda: processes_of(run_id))
        cluster.await_empty()


@pytest.mark.long
def test_down_ends_a_run_whose_launcher_is_gone_and_a_resume_has_the_same_bits(
    cluster: Kubernetes, alone: str, tmp_path: Path
) -> None:
    with held_run(cluster, tmp_path / "run", configuration(tmp_path, run=AT_ONCE)) as run:
        run.wait_for_steps(1000)
        until(lambda: list((run.run_dir / "checkpoints").glob("full-*")), run.told)
        run.process.kill()
        code, out, err = run.command("down", run.run_dir)
        assert code == 0, (out, err)
        cluster.await_empty()
        run.release()
        resumed = PodRun(cluster, run.run_dir, run.config, "--resume", "auto")
        try:
            assert_same(resumed, alone)
        finally:
            resumed.close()


@pytest.mark.long
def test_doctor_examines_pods_and_leaves_none(cluster: Kubernetes, tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(configuration(tmp_path)))
    with held_run(cluster, tmp_path / "run", configuration(tmp_path)) as run:
        code, out, err = run.command("doctor", tmp_path / "hosts.yaml", "--json")
        assert all(host["failure"] is None for host in json.loads(out)["hosts"].values()), (code, out, err)


REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("forbid", {}, "jobs.batch is forbidden"),
    ("", {"orchestrator": {"pod": {"volume": []}}}, 'unknown field "spec.template.spec.volume"'),
    ("", {"orchestrator": {"namespaces": "rl"}}, "namespaces"),
]


@pytest.mark.long
@pytest.mark.parametrize(("action", "sections", "message"), REFUSALS, ids=["rights", "field", "key"])
def test_what_the_cluster_refuses_ends_before_the_start(
    cluster: Kubernetes, tmp_path: Path, action: str, sections: dict[str, Any], message: str
) -> None:
    if action:
        cluster.act(action, "create")
    try:
        with held_run(cluster, tmp_path / "run", configuration(tmp_path, **sections)) as run:
            code, *printed = run.end()
            assert (code, message in "".join(printed)) == (2, True), printed
            assert not run.run_dir.exists()
    finally:
        cluster.act("forbid", "nothing")
