"""`zmqrl launch --submit`: the script of the job, and what is decided on the login node."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.commands import Command
from tests.support.raising import compare
from tests.support.runs.slurm_runs import configuration
from zmqrl.launcher_place.submit import SCRIPT
from zmqrl.launcher_place.submit import submit as submit_job


@pytest.fixture
def submit(zmqrl: Command, tmp_path: Path) -> Any:
    """`launch --submit --dry-run` with these sections, and further arguments."""

    def run(*arguments: str, **sections: Any) -> Any:
        (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(configuration(**sections)))
        return zmqrl(
            "launch", tmp_path / "hosts.yaml", "--submit", "--dry-run", "--run-dir", tmp_path / "run", *arguments
        )

    return run


def test_a_dry_run_shows_the_plan_and_the_script_and_writes_nothing(submit: Any, tmp_path: Path) -> None:
    done = submit("--resume", "auto", "--from-scratch", orchestrator={"extra_args": ["--comment", "a b", "--mem=1G"]})
    assert done.code == 0, done.err
    assert "processes on n1: worker-0, worker-1" in done.out
    script = done.out.partition("#!/bin/sh\n")[2].splitlines()
    assert "#SBATCH --comment 'a b' --mem=1G" in script
    (launch,) = [shlex.split(line) for line in script if " launch " in line]
    assert launch[launch.index("--resume") + 1] == "auto" and "--from-scratch" in launch
    assert not (tmp_path / "run").exists()


def test_a_webhook_is_not_written_into_the_script(submit: Any, zmqrl: Command, tmp_path: Path) -> None:
    for words in (("--set", "webhook=https://hooks.lab/services/SECRET"), ("--set", " webhook = 'http://lab/SECRET'")):
        done = submit(*words)
        assert done.code == 2 and "SECRET" not in done.out + done.err
        compare(done.error, key=("--set",))
        done = zmqrl("launch", tmp_path / "hosts.yaml", "--submit", "--run-dir", tmp_path / "run", *words)
        assert done.code == 2 and not (tmp_path / "run").exists()
    done = submit("--set", "webhook=https://hooks.lab/services/$HOME", "--set", "webhook=null")
    assert done.code == 0 and "'webhook=https://hooks.lab/services/$HOME'" in done.out, done.err


def test_the_script_is_of_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqrl.launcher_place.submit.slurm", lambda *_: "4242")
    (tmp_path / SCRIPT).touch()
    assert submit_job(tmp_path, "#!/bin/sh\n") == "4242"
    assert (tmp_path / SCRIPT).stat().st_mode & 0o777 == 0o600


def test_a_job_of_the_queue_is_a_job_of_slurm(zmqrl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def slurm(*words: str) -> str:
        asked.append(words)
        return "4242"

    monkeypatch.setattr("zmqrl.launcher_place.submit.slurm", slurm)
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(configuration()))
    done = zmqrl("queue", "add", "hosts.yaml", "--after", "7", "--after", "9", "--needs", "cores=3,gpus=1")
    assert (done.code, done.out.partition(";")[0]) == (0, "job 4242 submitted"), done.err
    ((*words, path),) = asked
    assert words[1:] == ["sbatch", "--parsable", "--dependency=afterok:7:9", "--kill-on-invalid-dep=yes"]
    script = Path(path).read_text()
    assert "#SBATCH --cpus-per-task=3" in script and "#SBATCH --gres=gpu:1" in script
    done = zmqrl("queue", "add", "hosts.yaml", "--priority", "1")
    compare(done.error, key=("--priority",), value="1")
    assert not (tmp_path / "queue").exists() and len(asked) == 1
    assert zmqrl("launch", "hosts.yaml", "--after", "7").code == 2


def test_from_scratch_needs_a_run_to_resume(submit: Any) -> None:
    done = submit("--from-scratch")
    assert done.code == 2 and "--resume auto" in done.err


def test_the_device_of_the_node_is_not_looked_for_on_the_login_node(submit: Any) -> None:
    done = submit(learner={"device": "cuda"}, orchestrator={"gres": "gpu:1"})
    assert done.code == 0 and "#SBATCH --gres=gpu:1" in done.out, done.err


def test_the_cores_of_the_login_node_are_not_those_of_the_job(submit: Any) -> None:
    done = submit(hosts={"local": {}, "n1": {"workers": 2}}, min_workers=1)
    assert done.code == 2, done.err
    compare(done.error, key=("hosts", "local", "workers"), value="'auto'")
