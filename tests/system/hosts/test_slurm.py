"""Runs on a real Slurm cluster: the same bits as on one machine, whatever Slurm does, and nothing left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.slurm import CPUS, LOOK_EVERY_S, Slurm, slurm_or_skip
from tests.support.marks import long
from tests.support.running import END_S, RUN_S
from tests.support.runs.command_runs import summary, zmqrl
from tests.support.runs.slurm_runs import (
    STEPS,
    SlurmRun,
    closed_at_the_end,
    configuration,
    environment_of,
    processes,
)
from tests.support.runs.system_plans import WAITING_TALLY
from tests.support.waiting import until
from tests.support.yardstick import within

pytestmark = pytest.mark.timed
Begin = Callable[..., SlurmRun]
FOREVER = {"run": {"total_env_steps": 10_000_000}, "algorithm": dict(WAITING_TALLY), "min_workers": 2}
LOCAL = {"local": {"workers": 0}}
LIMIT_S = 600.0
"""Time limits of Slurm are minutes."""
LONGER_STEPS = 32_000
LONGER = {"run": {"total_env_steps": LONGER_STEPS}}
"""Minutes while it is held: an env step of one of 8 takes 10 ms."""
ONE_EACH = {"n1": {"workers": 1}, "n2": {"workers": 1}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm_or_skip(3) as cluster:
        yield cluster


@pytest.fixture
def begin(cluster: Slurm, tmp_path: Path) -> Iterator[Begin]:
    """Start a run; `sections` are further keys of hosts.yaml."""

    def start(name: str, *options: object, sections: Any = None, **more: Any) -> SlurmRun:
        runs.append(SlurmRun(cluster, tmp_path / name, configuration(**(sections or {})), *options, **more))
        return runs[-1]

    with closed_at_the_end() as runs:
        yield start


@pytest.fixture(scope="module")
def alone(cluster: Slurm, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The sha256 of the same run on this machine, without Slurm."""
    del cluster
    return sha256_alone(tmp_path_factory.mktemp("alone"))


def sha256_alone(folder: Path, **run: Any) -> str:
    config = configuration(hosts={"local": {"workers": 1}}, min_workers=1, run=run)
    del config["orchestrator"]
    (folder / "hosts.yaml").write_text(yaml.safe_dump(config))
    zmqrl("launch", folder / "hosts.yaml", "--mode", "single", "--plain", "--run-dir", folder / "run", at=folder)
    return str(summary(folder / "run")["weights_sha256"])


def longer_alone(folder: Path) -> str:
    return sha256_alone(folder, **LONGER["run"])


def assert_same(run: SlurmRun, alone: str) -> None:
    done = run.summary()
    assert (done["status"], done["weights_sha256"]) == ("done", alone)
    assert done["ledger"]["balanced"] and done["env_steps"] == STEPS


@pytest.mark.long
def test_two_nodes_give_the_bits_of_one_machine(begin: Begin, cluster: Slurm, alone: str) -> None:
    run = begin("two")
    run.done()
    assert_same(run, alone)
    assert not processes(run.run_id)
    cluster.await_idle()


def test_the_commands_work_during_a_run_that_loses_a_node_gets_it_back_and_gets_another(
    begin: Begin, cluster: Slurm, alone: str
) -> None:
    node = {"learner": {"host": "n1"}, "orchestrator": {"gres": "gpu:1"}}
    run = begin("learner", held=True, sections={**node, "min_workers": 3})
    run.wait_for_steps(250)
    run_id = run.run_id
    assert gres_of(run_id) == {("n1", "agent"), ("n1", "template"), ("n1", "learner")}
    code, out, _ = run.command("status", run.run_dir)
    assert code == 0 and all(word in out for word in ("n1", "n2", "env steps/s")), out
    cluster.run("scancel", "-n", f"zmqrl-{run_id}-n2")
    until(lambda: "n2: Slurm: STEP" in str(run.status()["problems"]), run.told)
    until(lambda: "back with 2 workers" in str(run.status()["problems"]), run.told)
    assert run.host("n2")["state"] == "ready"
    code, out, err = run.command("scale", run.run_dir, "n2=1")
    assert (code, "n2: 1 worker" in out) == (0, True), (out, err)
    code, out, err = run.command("scale", run.run_dir, "n3=1")
    assert (code, "n3: connecting, 1 worker" in out) == (0, True), (out, err)
    until(lambda: run.host("n3").get("state") == "ready" and run.host("n3")["env_steps_per_s"], run.told, run.run_s)
    (job,) = cluster.run("squeue", "-h", "-n", f"zmqrl-{run_id}-n3", "-o", "%N %C").split("\n")[:-1]
    assert job == "n3 1", "a further job, with a CPU for the worker"
    code, out, _ = run.command("logs", run.run_dir)
    assert code == 0 and "n2" in out, out
    run.release()
    code, _, err = run.end()
    assert code == 0, err
    assert_same(run, alone)
    assert "CANCELLED" in err, "Slurm's words"
    assert not processes(run_id)
    cluster.await_idle()


def gres_of(run_id: str) -> set[tuple[str, str]]:
    """Node and role of the processes that see a GPU of Slurm; every process of the run is looked at."""
    found = {}
    for pid, argv in processes(run_id).items():
        role, environ = argv[argv.index("zmqrl.entry") + 1].removeprefix("zmqrl."), environment_of(pid)
        found[environ["SLURMD_NODENAME"], role] = environ.get("CUDA_VISIBLE_DEVICES")
    assert {("n1", "worker"), ("n2", "worker"), ("n2", "agent")} < set(found)
    return {place for place, devices in found.items() if devices}


def test_a_killed_launcher_leaves_no_process_and_no_job_also_no_pending_one(begin: Begin, cluster: Slurm) -> None:
    with cluster.occupied("n3"):
        run = begin("killed", sections={**FOREVER, "hosts": {"n1": {"workers": 1}}, "min_workers": 1})
        run.wait_for_steps(250)
        code, _, err = run.command("scale", run.run_dir, "n3=1")
        assert code == 0, err
        reason = until(lambda: [text for text in run.status()["problems"] if "pending" in str(text)], run.told)
        assert "n3" in str(reason) and "Resources" in str(reason), "in Slurm's words"
        run_id = run.run_id
        assert len(cluster.run("squeue", "-h", "-n", f"zmqrl-{run_id}-n1,zmqrl-{run_id}-n3").splitlines()) == 2
        with within(END_S):
            run.process.kill()
            until(lambda: not processes(run_id), lambda: processes(run_id))
        left = lambda: cluster.run("squeue", "-h").splitlines()  # noqa: E731
        until(lambda: len(left()) == 1, left, every_s=LOOK_EVERY_S)


def test_an_allocation_serves_hosts_of_any_names_and_loses_a_step(begin: Begin, cluster: Slurm, alone: str) -> None:
    hosts = {"local": {"workers": 0}, "left": {"workers": 1}, "right": {"workers": 1}}
    salloc = ("salloc", "--quiet", "-N2", "-c4")
    run = begin("salloc", held=True, sections={"hosts": hosts, "min_workers": 2}, prefix=salloc)
    run.wait_for_steps(250)
    steps = cluster.run("squeue", "-h", "-s", "-o", "%i %j").splitlines()
    ours = {step.split()[1].rpartition("-")[2]: step.split()[0] for step in steps if "zmqrl-" in step}
    assert set(ours) == {"left", "right"}, steps
    code, _, why = run.command("scale", run.run_dir, "more=1")
    assert (code, "it has the nodes of the Slurm job" in why) == (2, True)
    cluster.run("scancel", ours["right"])
    known = ("right: Slurm: STEP", "right: the host agent exited (exit code 137)")  # slurmstepd may lose its own line
    until(lambda: any(text in str(run.status()["problems"]) for text in known), run.told)  # its state may be brief
    run.release()
    code, _, err = run.end()
    assert code == 0, err
    assert_same(run, alone)
    assert any(text in err for text in known)
    until(lambda: not cluster.jobs(), cluster.jobs, every_s=LOOK_EVERY_S)


def test_a_submitted_run_stops_at_its_time_limit_and_continues_through_preemption(
    begin: Begin, cluster: Slurm, alone: str
) -> None:
    hosts = {"local": {"workers": 1}, "other": {"workers": 1}}
    sections = {"hosts": hosts, "min_workers": 2, "learner": {"host": "other"}, "orchestrator": {"time": "10"}}
    run = begin("submitted", "--submit", held=True, sections=sections)
    code, out, err = run.end()
    assert code == 0, (out, err)
    script = (run.run_dir / "job.sh").read_text()
    assert "#SBATCH --time=10\n" in script and "#SBATCH --signal=B:TERM@60\n" in script
    run.wait_for_steps(250)
    assert json.loads((run.run_dir / "run.json").read_text())["job"] == out.split()[1], "`down` finds it"
    cluster.run("scancel", "--batch", "--signal=TERM", out.split()[1])  # as Slurm does 60 s before the limit
    until(lambda: not cluster.jobs(), run.told, run.run_s, LOOK_EVERY_S)
    stopped = run.summary()
    assert stopped["status"] == "interrupted" and 0 < stopped["env_steps"] < STEPS
    assert list(run.run_dir.glob("checkpoints/full-*"))

    code, out, err = run.command("launch", run.file, "--submit", "--run-dir", run.run_dir, "--resume", "auto")
    assert code == 0, (out, err)
    until(lambda: run.run_id != stopped["run_id"] and run.env_steps > stopped["env_steps"] + 250, run.told, run.run_s)
    preempted = run.run_id
    cluster.run("srun", "-p", "urgent", "-N3", f"-c{CPUS}", "true")
    run.release()
    cluster.start_requeued(out.split()[1])
    until(lambda: not cluster.jobs(), run.told, run.run_s, LOOK_EVERY_S)
    told = (run.run_dir / "slurm.out").read_text()
    assert len({stopped["run_id"], preempted, run.run_id}) == 3, f"there were three attempts: {told}"
    assert_same(run, alone)
    assert "other: Slurm: STEP" in told, "the learner's host had a grace time"
    assert f"run {preempted}: interrupted" in told, "it stopped with a checkpoint"
    assert not processes(preempted) and not processes(run.run_id)


@pytest.mark.long
def test_hosts_whose_jobs_reach_their_time_limit_return_in_other_jobs(
    begin: Begin, cluster: Slurm, tmp_path: Path
) -> None:
    sections = {**LONGER, "orchestrator": {"time": "1"}, "hosts": {**LOCAL, **ONE_EACH}, "min_workers": 2}
    run = begin("limit", held=True, sections=sections)
    run.wait_for_steps(250)
    first = set(cluster.run("squeue", "-h", "-o", "%i").split())
    until(lambda: "DUE TO TIME LIMIT" in str(run.status()["problems"]), run.told, LIMIT_S, LOOK_EVERY_S)
    until(lambda: not first & set(cluster.run("squeue", "-h", "-o", "%i").split()), run.told, LIMIT_S, LOOK_EVERY_S)
    until(lambda: all(run.host(host).get("state") == "ready" for host in ONE_EACH), run.told, LIMIT_S)
    run.release()
    code, _, err = run.end()
    assert code == 0, err
    assert (run.summary()["weights_sha256"], run.summary()["ledger"]["balanced"]) == (longer_alone(tmp_path), True)
    cluster.await_idle()


@pytest.mark.long
def test_a_submitted_run_stops_before_its_time_limit_and_is_continued(
    begin: Begin, cluster: Slurm, tmp_path: Path
) -> None:
    """Slurm signals within the minute that begins 60 s before the limit."""
    hosts = {"local": {"workers": 1}, "other": {"workers": 1}}
    sections = {**LONGER, "hosts": hosts, "min_workers": 2, "orchestrator": {"time": "3"}}
    run = begin("limited", "--submit", held=True, sections=sections)
    assert run.end()[0] == 0
    run.wait_for_steps(250)
    until(lambda: not cluster.jobs(), run.told, LIMIT_S, LOOK_EVERY_S)
    stopped = run.summary()
    assert stopped["status"] == "interrupted" and 0 < stopped["env_steps"] < LONGER_STEPS
    run.release()
    code, out, err = run.command("launch", run.file, "--submit", "--run-dir", run.run_dir, "--resume", "auto")
    assert code == 0, (out, err)
    until(lambda: not cluster.jobs(), run.told, run.run_s, LOOK_EVERY_S)
    assert (run.summary()["weights_sha256"], run.summary()["ledger"]["balanced"]) == (longer_alone(tmp_path), True)


@pytest.mark.long
def test_each_task_of_an_array_job_has_a_run(cluster: Slurm, tmp_path: Path, alone: str) -> None:
    """`down` ends that of one task, from outside of the job; the other one is not disturbed."""
    hold, config = tmp_path / "hold", configuration(hosts={"local": {"workers": 1}, "other": {"workers": 1}})
    hold.touch()
    env = {**config["env"], "kwargs": {"hold": str(hold)}}
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump({**config, "env": env, "min_workers": 2}))
    launch = f"{sys.executable} -m zmqrl launch {tmp_path}/hosts.yaml --plain --run-dir {tmp_path}/run"
    script = f"#!/bin/sh\n#SBATCH --array=1-2 -c4 -o {tmp_path}/out.%a\n{launch}$SLURM_ARRAY_TASK_ID\n"
    (tmp_path / "job.sh").write_text(script)
    cluster.run("sbatch", str(tmp_path / "job.sh"))
    first, second = tmp_path / "run1", tmp_path / "run2"
    told = lambda: "".join(path.read_text() for path in tmp_path.glob("out.*"))  # noqa: E731
    until(lambda: all(env_steps(path) >= 250 for path in (first, second)), told, RUN_S, LOOK_EVERY_S)
    run_ids = [str(json.loads((path / "run.json").read_text())["run_id"]) for path in (first, second)]
    down = subprocess.run(
        [sys.executable, "-m", "zmqrl", "down", first], env=cluster.environment(), capture_output=True, text=True
    )
    assert down.returncode == 0, (down, told())
    assert not processes(run_ids[0]) and processes(run_ids[1])
    hold.unlink()
    until(lambda: not cluster.jobs(), told, RUN_S, LOOK_EVERY_S)
    done = summary(second)
    assert (done["status"], done["weights_sha256"], done["ledger"]["balanced"]) == ("done", alone, True), told()


def env_steps(run_dir: Path) -> int:
    """As the status of a run has them; 0 before it has one."""
    try:
        return int(json.loads((run_dir / "status.json").read_text())["env_steps"])
    except (OSError, ValueError, KeyError):
        return 0


@pytest.mark.long
def test_down_ends_a_run_whose_launcher_does_not_answer(begin: Begin, cluster: Slurm) -> None:
    run = begin("down", sections={**FOREVER, "hosts": ONE_EACH})
    run.wait_for_steps(250)
    run_id = run.run_id
    run.process.send_signal(signal.SIGSTOP)
    code, out, err = run.command("down", run.run_dir)
    assert code == 0, (out, err)
    assert all(f"  {host}: " in out for host in ("launcher", "n1", "n2")) and "LEFT" not in out, out
    assert not processes(run_id)
    cluster.await_idle()
    run.end()


def test_down_ends_a_submitted_run_as_from_a_login_node(begin: Begin, cluster: Slurm) -> None:
    hosts = {"local": {"workers": 1}, "other": {"workers": 1}}
    run = begin("down-job", "--submit", sections={**FOREVER, "hosts": hosts})
    code, out, err = run.end()
    assert code == 0, (out, err)
    run.wait_for_steps(250)
    run_id, record = run.run_id, run.run_dir / "run.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "host": "node-of-the-job"}))
    code, out, _ = run.command("status", run.run_dir)
    assert code == 0 and "env steps/s" in out, out
    code, out, err = run.command("down", run.run_dir)
    assert code == 0 and "launcher: ended Slurm job" in out, (out, err)
    assert not processes(run_id)
    cluster.await_idle()


def test_doctor_examines_nodes_and_reports_a_busy_one(begin: Begin, cluster: Slurm) -> None:
    hosts = {"local": {"workers": 0}, "n1": {"workers": 1}, "n3": {"workers": 1}}
    run = begin("doctor", "--dry-run", sections={"hosts": hosts, "min_workers": 1})
    code, out, err = run.end()
    assert code == 0 and "host n1: by orchestrator.kind slurm" in out, (out, err)
    with cluster.occupied("n3"):
        code, out, err = run.command("doctor", run.file, "--json")
    report = json.loads(out)
    assert code == 2, (out, err)
    assert report["hosts"]["n1"]["hello"] and report["hosts"]["n3"]["hello"] is None
    assert {fault["host"] for fault in report["faults"]} == {"n3"} and "Requested nodes are busy" in out
    cluster.await_idle()


@pytest.mark.parametrize("submit", [False, long(True)])
def test_what_slurm_rejects_ends_with_its_words_and_leaves_nothing(begin: Begin, cluster: Slurm, submit: bool) -> None:
    run = begin("rejected", *["--submit"][:submit], sections={"orchestrator": {"partition": "gone"}})
    code, _, err = run.end()
    assert code == 2 and "Slurm rejects the job" in err and "invalid partition specified: gone" in err, err
    assert not run.run_dir.exists()
    cluster.await_idle()


def test_an_allocation_that_is_too_small_is_refused(begin: Begin) -> None:
    run = begin("small", prefix=("salloc", "--quiet", "-N1"))
    code, _, err = run.end()
    assert code == 2 and not run.run_dir.exists()
    assert "the run has 2 hosts (n1, n2), and the Slurm allocation" in err and "salloc -N2" in err, err


def test_a_job_that_stays_pending_ends_the_run_with_the_reason(begin: Begin, cluster: Slurm) -> None:
    with cluster.occupied("n1"):
        sections = {"hosts": {"n1": {"workers": 1}}, "min_workers": 1, "limits": {"start_s": 6.0, "grace_s": 3.0}}
        run = begin("pending", sections=sections)
        code, _, err = run.end()
        left = cluster.run("squeue", "-h", "-o", "%j").split()
    assert (code, left) == (4, ["sleep"]), err
    assert "is pending (Resources)" in err and "raise limits.start_s (6 s)" in err and "--submit" in err, err


@pytest.mark.parametrize(("number", "start_s", "code"), [(signal.SIGTERM, 120.0, 130), long(None, 4.0, 4)])
def test_a_run_whose_learners_job_is_pending_is_not_waited_for(
    begin: Begin, cluster: Slurm, number: int | None, start_s: float, code: int
) -> None:
    with cluster.occupied("n1"):
        hosts = {"local": {"workers": 1}, "n1": {"workers": 1}}
        sections = {"hosts": hosts, "learner": {"host": "n1"}, "min_workers": 1, "limits": {"start_s": start_s}}
        run = begin("unstarted", sections=sections)
        run.wait_for(lambda: run.status().get("phase") == "starting")
        with within(END_S + (0.0 if number else start_s)):
            if number is not None:
                run.process.send_signal(number)
            found, _, err = run.end()
        left = cluster.run("squeue", "-h", "-o", "%j").split()
    assert (found, run.summary()["exit_code"], left) == (code, code, ["sleep"]), err
