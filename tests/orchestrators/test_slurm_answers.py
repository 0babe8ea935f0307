"""The kind slurm without a cluster: which node a host has, and what is made of each answer of Slurm, also of none."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.raising import raises
from tests.support.runs.slurm_runs import configuration
from tests.support.waiting import until
from zmqrl.config.plan import RunPlan
from zmqrl.errors import HostFailed
from zmqrl.launch.run.boots import boots
from zmqrl.messages.orchestrator import AgentExited
from zmqrl.orchestrators import slurm_commands
from zmqrl.orchestrators.slurm import SlurmOrchestrator
from zmqrl.orchestrators.slurm_access import SlurmAccess
from zmqrl.orchestrators.slurm_commands import Allocation, Listing
from zmqrl.orchestrators.slurm_steps import SlurmConfig
from zmqrl.planning.configure import load
from zmqrl.planning.plan_run import plan_run

SILENT_S = 0.3
HOSTS = {
    "left": {"workers": 2},
    "idle": {"workers": 0},
    "off": {"workers": 1, "manual": True},
    "right": {"workers": 1},
}


def plan_of(tmp_path: Path, **sections: Any) -> RunPlan:
    return plan_run(load(overrides=configuration(**sections)).config, tmp_path / "run", time.time())


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> Any:
    def within(nodes: dict[str, int]) -> None:
        monkeypatch.setattr(Allocation, "own", classmethod(lambda cls: Allocation("7", nodes)))

    return within


def test_a_host_has_the_same_node_in_the_run_the_doctor_and_the_count_of_cores(allocated: Any, tmp_path: Path) -> None:
    allocated({"x1": 8, "x2": 4})
    plan = plan_of(tmp_path, hosts=HOSTS, learner={"host": "right"}, min_workers=2)
    config = SlurmConfig()
    orchestrator = SlurmOrchestrator(config, plan)
    ours = {host: node_in(orchestrator._step(host)) for host in ("left", "right")}
    assert ours == {"right": "x1", "left": "x2"}
    probes = SlurmAccess(config, plan.config).prefixes(["left", "right"])
    assert {host: node_in(argv) for host, argv in probes.items()} == ours
    assert SlurmAccess(config, plan.config).cores(["left", "right"]) == {"left": 4, "right": 8}


def node_in(arguments: list[str]) -> str:
    (node,) = [argument.partition("=")[2] for argument in arguments if argument.startswith("--nodelist=")]
    return node


def test_the_probe_of_a_host_has_the_cpus_of_its_part_of_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(slurm_commands, "known_nodes", lambda: {"n1"})
    plan = plan_of(tmp_path, learner={"host": "n1"}, hosts={"n1": {"workers": 4}})
    assert "--cpus-per-task=6" in SlurmAccess(SlurmConfig(), plan.config).prefixes(["n1"])["n1"]


def test_each_host_fails_where_the_allocation_is_too_small(allocated: Any, tmp_path: Path) -> None:
    allocated({"x1": 8})
    config = plan_of(tmp_path).config
    found = dict(SlurmAccess(SlurmConfig(), config).shells(["n1", "n2"]))
    assert list(found) == ["n1", "n2"]
    for failed in found.values():
        assert isinstance(failed, HostFailed) and "has 1 node (x1)" in failed.cause


@pytest.fixture
def squeue(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What squeue answers for jobs, and with -s for steps; the list of the questions."""

    def answers(jobs: str | None, steps: str = "") -> list[tuple[str, ...]]:
        requested: list[tuple[str, ...]] = []

        def slurm(host: str, *command: str) -> str:
            requested.append(command)
            if jobs is None:
                raise HostFailed(host, "squeue did not answer", "scontrol ping")
            return steps if "-s" in command else jobs

        monkeypatch.setattr(slurm_commands, "slurm", slurm)
        return requested

    return answers


def test_a_job_in_its_epilog_has_ended_and_one_with_a_step_has_not(squeue: Any) -> None:
    squeue("1 COMPLETING a\n2 COMPLETING b\n3 RUNNING c d\n4 PENDING e\n", "2.0 b\n9.1 f\n3.batch batch\n")
    listing = Listing()
    assert {name: list(listing.ids("n1", name)) for name in ("a", "b", "c d", "e", "f")} == {
        "a": [], "b": ["2"], "c d": ["3"], "e": ["4"], "f": ["9.1"],
    }  # fmt: skip


def test_jobs_with_other_names_are_listed(squeue: Any) -> None:
    squeue("1 RUNNING \n2 PENDING\n3 RUNNING caf\ufffd\n4 RUNNING a\n", "1.0 \n4.0 a\n")
    listing = Listing()
    assert [list(listing.ids("n1", name)) for name in ("a", "")] == [["4"], ["1", "2"]]
    assert slurm_commands.state_of("2") == "PENDING"


def test_output_in_another_encoding_is_read() -> None:
    assert slurm_commands.slurm("n1", "printf", "1 RUNNING caf\\351\\n") == "1 RUNNING caf\ufffd\n"


def test_a_command_that_cannot_be_executed_fails_the_host(tmp_path: Path) -> None:
    with raises(HostFailed, host="n1"):
        slurm_commands.slurm("n1", str(tmp_path))


def test_a_controller_that_does_not_answer_is_waited_for_once(squeue: Any) -> None:
    requested, listing = squeue(None), Listing()
    for host in ("n1", "n2"):
        with raises(HostFailed, host=host, cause="squeue did not answer"):
            listing.ids(host, "any")
    assert len(requested) == 1


def test_an_end_without_an_answer_of_slurm_is_unreachable_and_reaps_the_node_that_slurm_chose(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The commands of Slurm are stand-ins: squeue hangs, and srun runs its command here."""
    log, python = tmp_path / "srun.log", tmp_path / "python"
    run = f'#!/bin/sh\necho "$@" >> {log}\nwhile [ "$1" != sh ]; do shift; done\nSLURMD_NODENAME=n7 exec "$@"\n'
    commands = {"sinfo": "#!/bin/sh\necho n7\n", "squeue": "#!/bin/sh\nexec sleep 600\n", "srun": run}
    for name, text in commands.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    python.write_text(f"#!/bin/sh\n{sys.executable} -m zmqrl.orchestrators.handshake\nhead -n1 > /dev/null\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(slurm_commands, "ANSWER_S", SILENT_S)
    monkeypatch.setattr(SlurmOrchestrator, "_check_accepted", lambda self: None)
    plan = plan_of(tmp_path, hosts={"left": {"workers": 4, "python": str(python)}})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").touch()
    orchestrator = SlurmOrchestrator(SlurmConfig(), plan)
    orchestrator.deploy({"left": boots(plan)["left"]})
    seen: list[Any] = []
    until(lambda: has_ended(orchestrator, seen), lambda: seen)
    teardown = orchestrator.undeploy(1.0)
    assert all("left/? (unreachable" in left for left in teardown.left) and len(teardown.left) == 2, teardown
    step, reaper = log.read_text().splitlines()
    assert "--nodelist" not in step and "--nodelist=n7" in reaper


def test_commands_of_slurm_have_no_options_of_an_outer_job(monkeypatch: pytest.MonkeyPatch) -> None:
    outer = ("SLURM_EXPORT_ENV", "SLURM_MEM_PER_CPU", "SLURMD_NODENAME", "SBATCH_EXPORT", "SRUN_CPUS_PER_TASK")
    options = ("SQUEUE_STATES", "SINFO_FORMAT", "SCANCEL_STATE", "SLURM_PARTITION", "SLURM_A_LATER_ONE")
    kept = (
        "SLURM_CONF",
        "SLURM_ACCOUNT",
        "SBATCH_ACCOUNT",
        "SLURM_ARRAY_TASK_ID",
        "SLURM_CLUSTERS",
        "SLURMISH",
        "HOME",
    )
    for name in (*outer, *options, *kept):
        monkeypatch.setenv(name, "x")
    found = slurm_commands.environment()
    assert not {*outer, *options} & found.keys() and {*kept} <= found.keys()


def has_ended(orchestrator: SlurmOrchestrator, seen: list[Any]) -> bool:
    seen += orchestrator.monitor(0.1)
    return any(isinstance(event.event, AgentExited) for event in seen)
