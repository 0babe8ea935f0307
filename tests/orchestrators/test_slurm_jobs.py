"""What the kind slurm asks of a real cluster, and what it refuses before anything is started."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.slurm import CPUS, Slurm, slurm_or_skip
from tests.support.marks import at_once
from tests.support.raising import raises
from tests.support.runs.slurm_runs import configuration
from tests.support.waiting import WAIT_S, until
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config
from zmqrl.errors import ConfigError, HostFailed
from zmqrl.launch.run.boots import boots
from zmqrl.messages.orchestrator import AgentExited, HostUnusable, Reaped
from zmqrl.orchestrators.base import Orchestrator
from zmqrl.orchestrators.host_commands import job_name
from zmqrl.orchestrators.make import access_of, make_orchestrator
from zmqrl.orchestrators.slurm_access import SlurmAccess
from zmqrl.orchestrators.slurm_commands import Allocation, cpus_of, error_text, slurm
from zmqrl.orchestrators.slurm_steps import SlurmConfig, nodes_of
from zmqrl.planning.checked import resolve_auto_workers
from zmqrl.planning.configure import load
from zmqrl.planning.plan_run import plan_run

pytestmark = pytest.mark.whole
CLUSTER = "from tests.lab.slurm import Slurm; import sys; s = Slurm(1); print(s.folder, flush=True); sys.stdin.read()"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm_or_skip(2) as cluster:
        yield cluster


@pytest.fixture
def here(cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """This process is on the login node."""
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    yield cluster
    cluster.await_idle()


def plan_of(tmp_path: Path, **sections: Any) -> RunPlan:
    config = load(overrides=configuration(**sections)).config
    return plan_run(resolve_auto_workers(config), tmp_path / "run", time.time())


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"partition": "gone"}, "invalid partition specified: gone; Invalid partition name specified"),
        ({"account": "gone"}, "Invalid account or account/partition combination specified"),
        ({"constraint": "cray"}, "Invalid feature specification"),
        ({"cpus_per_task": CPUS + 1}, "Requested node configuration is not available"),
        ({"extra_args": ["--gres=fpga:1"]}, "Invalid generic resource (gres) specification"),
    ],
)
def test_what_slurm_rejects_is_reported_with_its_message(
    here: Slurm, tmp_path: Path, options: dict[str, Any], cause: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        make_orchestrator(plan_of(tmp_path, orchestrator=options))
    ((key, value),) = options.items()
    option = value[0] if isinstance(value, list) else f"--{key.replace('_', '-')}={value}"
    assert f"Slurm rejects the job of n1: {cause}\n" in str(refused.value) and option in str(refused.value)
    assert not here.jobs()


def test_an_account_registered_at_the_site_is_taken(here: Slurm, tmp_path: Path) -> None:
    make_orchestrator(plan_of(tmp_path, orchestrator={"account": "physics", "time": "1-00:00"}))


@pytest.mark.parametrize(
    ("sections", "key", "fix"),
    [
        (
            {"orchestrator": {"gres": "gpu:1"}},
            ("orchestrator", "gres"),
            "set learner.host to a host of the run, or use --submit",
        ),
        ({"hosts": {"n1": {"workers": 4, "user": "ann"}}}, ("hosts", "n1", "user"), "remove the key"),
        ({"hosts": {"n1": {"workers": 4, "workdir": "/w"}}}, ("hosts", "n1", "workdir"), "remove the key"),
        ({"code": {"sync": [str(Path(__file__).parent)]}}, ("code", "sync"), "remove the key"),
        (
            {"hosts": {"cpu": {"workers": "auto"}}, "min_workers": 1},
            ("hosts", "cpu", "workers"),
            "set a number, or orchestrator.cpus_per_task",
        ),
    ],
)
def test_what_does_not_apply_to_nodes_is_refused(
    here: Slurm, tmp_path: Path, sections: dict[str, Any], key: tuple[str, ...], fix: str
) -> None:
    with raises(ConfigError, key=key, fix=fix):
        make_orchestrator(plan_of(tmp_path, **sections))


def test_slurm_takes_the_example_of_the_documentation(here: Slurm, tmp_path: Path) -> None:
    """Except for its partition and account, which this cluster names otherwise."""
    text = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text()
    (tmp_path / "hosts.yaml").write_text(text.partition("```yaml\n")[2].partition("```")[0])
    changes = ("orchestrator.partition=main", "orchestrator.account=physics")
    config = load(hosts_file=tmp_path / "hosts.yaml", overrides=changes).config
    make_orchestrator(plan_run(config, tmp_path / "run", time.time()))
    assert config.orchestrator.options["time"] == "2:00:00"


def test_without_the_commands_of_slurm_a_run_is_refused(
    here: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        with raises(ConfigError, key=("orchestrator", "kind"), value="slurm") as refused:
            make_orchestrator(plan)
    assert "login node" in str(refused.value)


@pytest.mark.parametrize(("exclusive", "neighbours"), [(False, "warned"), (True, "refused")])
def test_another_users_run_is_an_error_only_on_nodes_for_this_run_alone(
    here: Slurm, tmp_path: Path, exclusive: bool, neighbours: str
) -> None:
    """`test_host_lock` has what an agent does with either: here is what it is given, over the stdin of srun."""
    python, boot = tmp_path / "python", tmp_path / "boot.json"
    keep = f"head -n1 > {boot}.new\nmv {boot}.new {boot}"
    reap = f'case "$*" in *reaper*) exec {sys.executable} "$@";; esac'
    python.write_text(f"#!/bin/sh\n{reap}\n{sys.executable} -m zmqrl.orchestrators.handshake\n{keep}\n")
    python.chmod(0o755)
    hosts = {"n1": {"workers": 4, "python": str(python)}}
    plan = plan_of(tmp_path, hosts=hosts, orchestrator={"exclusive": exclusive})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").touch()
    orchestrator = make_orchestrator(plan)
    try:
        orchestrator.deploy({"n1": boots(plan)["n1"]})
        until(boot.exists, lambda: orchestrator.monitor(0.0))
    finally:
        assert orchestrator.undeploy(1.0).left == ()
    assert json.loads(boot.read_text())["neighbours"] == neighbours
    here.await_idle()


def test_a_node_that_does_not_have_the_run_directory_is_unusable(here: Slurm, tmp_path: Path) -> None:
    """The file that a launcher has written there by now is missing."""
    plan = plan_of(tmp_path, hosts={"n1": {"workers": 4}})
    orchestrator = make_orchestrator(plan)
    events: list[Any] = []
    try:
        orchestrator.deploy({"n1": boots(plan)["n1"]})
        until(lambda: _has_ended(orchestrator, events), lambda: events)
    finally:
        orchestrator.undeploy(1.0)
    (unusable,) = [event.event for event in events if isinstance(event.event, HostUnusable)]
    assert f"the run directory {plan.run_dir} is not shared with this node" in unusable.cause


def _has_ended(orchestrator: Orchestrator, events: list[Any]) -> bool:
    events += orchestrator.monitor(0.1)
    return any(isinstance(event.event, AgentExited) for event in events)


def test_what_does_not_end_without_its_launcher_is_cancelled_and_other_jobs_are_left_alone(
    here: Slurm, tmp_path: Path
) -> None:
    plan = plan_of(tmp_path)
    mine, other = (job_name(run_id, "n1") for run_id in (plan.run_id, "another"))
    jobs = [subprocess.Popen(["srun", "-J", name, "sleep", "600"], stderr=subprocess.DEVNULL) for name in (mine, other)]
    try:
        until(lambda: len(here.run("squeue", "-h", "-t", "RUNNING").splitlines()) == 2, here.jobs)
        (job,) = here.run("squeue", "-h", "-n", mine, "-o", "%i").split()
        found = dict(access_of(plan.config, ["n1"]).reap(["n1", "n2"], plan.run_id, 0.5))
        assert found == {"n1": Reaped(killed=(f"job {job}",)), "n2": Reaped()}
        assert here.run("squeue", "-h", "-t", "RUNNING", "-o", "%j").split() == [other], "its job may be COMPLETING"
    finally:
        for each in jobs:
            each.terminate()
            each.wait(WAIT_S)


@pytest.mark.parametrize(
    ("script", "found", "grace_s"),
    [("exec sleep 600", "ended", WAIT_S), ("trap : TERM; while :; do sleep 0.2; done", "killed", 2.0)],
)
def test_the_job_of_a_launcher_is_ended_from_any_machine(here: Slurm, script: str, found: str, grace_s: float) -> None:
    job = here.run("sbatch", "--parsable", "--requeue", "-o", "/dev/null", f"--wrap={script}").strip()
    until(lambda: here.run("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING", here.log)
    access = SlurmAccess(SlurmConfig(), Config())
    assert access.end_job(job, grace_s) == Reaped(**{found: (f"Slurm job {job}",)})
    assert not here.jobs()
    assert access.end_job(job, 2.0) == Reaped()


@at_once
def test_a_job_that_waits_is_cancelled_without_a_grace(here: Slurm, tmp_path: Path) -> None:
    plan = plan_of(tmp_path, hosts={"n1": {"workers": 4}})
    orchestrator = make_orchestrator(plan)
    with here.occupied("n1"):
        orchestrator.deploy({"n1": boots(plan)["n1"]})
        until(lambda: "PENDING" in here.run("squeue", "-h", "-o", "%T"), here.jobs)
        assert orchestrator.undeploy(3600.0).left == ()
        assert here.run("squeue", "-h", "-o", "%j").split() == ["sleep"]


def test_auto_is_the_cores_of_the_node_or_the_cpus_of_a_job(here: Slurm, tmp_path: Path) -> None:
    one = {"hosts": {"n1": {"workers": "auto"}}, "min_workers": 1}
    assert plan_of(tmp_path, **one).workers["n1"] == 4, "no more than vector envs"
    assert plan_of(tmp_path, **one, orchestrator={"cpus_per_task": 3}).workers["n1"] == 2, "all cores but one"


def test_hosts_of_an_allocation_are_its_nodes_by_name_then_in_order() -> None:
    allocation = Allocation("7", {"a1": 8, "a2": 8, "a3": 4})
    assert nodes_of(["a2", "left", "right"], allocation) == {"a2": "a2", "left": "a1", "right": "a3"}
    with raises(ConfigError, key=("hosts",), fix="allocate 4 (salloc -N4), or use --limit"):
        nodes_of(["a2", "left", "right", "more"], allocation)


@pytest.mark.parametrize(
    ("text", "nodes", "cpus"),
    [("16(x2),8", 3, [16, 16, 8]), ("4", 1, [4]), ("4", 2, [1, 1]), ("", 1, [1]), ("odd(x2)", 2, [1, 1])],
)
def test_cpus_of_an_allocation(text: str, nodes: int, cpus: list[int]) -> None:
    assert cpus_of(text, nodes) == cpus


def test_slurm_output_is_reported_once_without_the_names_of_its_programs() -> None:
    output = "srun: error: invalid partition specified: x\nsrun: error: invalid partition specified: x\n\nfatal: gone\n"
    assert error_text(output) == "invalid partition specified: x; gone"


def test_a_slurm_command_that_fails_without_output_is_named(here: Slurm) -> None:
    with raises(HostFailed, host="n1", cause="scancel ended with exit code 1"):
        slurm("n1", "scancel", "--quiet", "99.9")


def test_the_cluster_ends_with_the_process_that_made_it() -> None:
    with slurm_or_skip(1) as cluster:
        mine = str(cluster.folder)
        assert len(_servers(mine)) == 3, "munged, slurmctld and slurmd"
    assert not _servers(mine) and not cluster.folder.exists()
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdout is not None
        folder = maker.stdout.readline().strip()
        assert _servers(folder)
        maker.kill()
    until(lambda: not _servers(folder), lambda: _servers(folder), WAIT_S)
    subprocess.run(["rm", "-rf", folder], check=True)


def _servers(folder: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if folder in text:
            found.append(text)
    return found
