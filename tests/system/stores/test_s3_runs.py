"""Runs with an S3 server: copied to it, continued from it, through its outages; and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.running import Run
from tests.support.runs.command_runs import PLAIN, summary, zmqrl
from tests.support.s3_server import BUCKET, S3Server
from tests.support.waiting import until
from tests.support.yardstick import within
from zmqrl.run_files.trusted_places import trust

pytestmark = pytest.mark.usefixtures("s3")
STEPS, STEP_S = 4_096, 0.002
"""Of `slow_envs` no less than 4 s, however fast the machine is: a run is cut after its third full checkpoint of 16."""
MIRROR = f"s3://{BUCKET}/runs"
SMALL = (f"run.total_env_steps={STEPS}", "network.hidden=[32, 32]", *PLAIN)
SLOW = ("env.id=tests.stand_ins.slow_envs:Slow", "env.max_episode_steps=50")
SETTINGS = (*SMALL, "run.checkpoint_every_s=0.2")
IDLE = ("algorithm.kind=zmqrl.bench.noop:NoUpdate",)
WAITING = ("algorithm.kind=tests.stand_ins.tally:Tally", "algorithm.round_s=0.1", "run.total_env_steps=1e9")
OBJECT = ("run.mode=async", "store.kind=object")
REFUSED_S = 5.0
STOPPED_S, AWAY_S = 5.0, 5.0
Begin = Callable[..., "TrainRun"]


def _sets(*settings: str) -> Iterator[str]:
    for setting in settings:
        yield from ("--set", setting)


class TrainRun(Run):
    """`zmqrl train cartpole-ppo` or with other words."""

    def __init__(self, run_dir: Path, *words: object) -> None:
        super().__init__(self.start("-m", "zmqrl", "train", *words, "--plain"), run_dir)

    def lineage(self) -> str:
        """Its name at the URL; once it has begun."""
        self.wait_for((self.run_dir / "run.json").exists)
        lineage: str = json.loads((self.run_dir / "run.json").read_text())["lineage"]
        return lineage

    def env_steps(self) -> int:
        return int(self.status().get("env_steps", 0))


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Start `cartpole-ppo` in a run directory; whatever is left of it at the end of the test is killed."""
    runs: list[TrainRun] = []

    def start(run_dir: Path, *settings: str, mode: str = "sync", workers: int = 2) -> TrainRun:
        words = ("cartpole-ppo", "--mode", mode, "--workers", workers, "--run-dir", run_dir, *_sets(*settings))
        runs.append(TrainRun(run_dir, *words))
        return runs[-1]

    yield start
    for run in runs:
        run.cut_short()


@pytest.fixture(autouse=True)
def trusted_bucket(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the copies name is imported."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    trust(f"s3://{BUCKET}")


@pytest.fixture
def service(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The session's server, for the processes of this test."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server that the test may stop and kill."""
    server = S3Server(tmp_path_factory.mktemp("own") / "log")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    words = ("--mode", "single", "--run-dir", run_dir, "--plain", *_sets(*SMALL, *SLOW, "env.kwargs.step_s=0"))
    zmqrl("train", "cartpole-ppo", *words, at=run_dir.parent)
    return summary(run_dir)


def _fulls(names: list[str]) -> list[int]:
    """The versions of the full checkpoints among the names of objects."""
    stems = [Path(name).stem for name in names]
    return sorted(int(stem.rpartition("-")[2]) for stem in stems if stem.startswith("full-"))


def _has_records(names: list[str]) -> bool:
    """Whether the first copy is complete: checkpoints are copied before records."""
    return {"config.json", "run.json"} <= {Path(name).name for name in names}


def _is_complete(run: TrainRun, server: S3Server, lineage: str) -> bool:
    """Whether the newest checkpoints of a run that has ended, and its records, are copied."""
    names = {Path(name).name for name in server.names(f"runs/{lineage}/")}
    checkpoints = run.run_dir / "checkpoints"
    fulls = sorted(checkpoints.glob("full-*"), key=lambda path: int(path.stem.rpartition("-")[2]))
    return {"config.json", "run.json", "summary.json", "metrics.jsonl", fulls[-1].name} <= names


@pytest.mark.long
def test_a_run_whose_directory_is_lost_continues_from_its_copy(
    tmp_path: Path, begin: Begin, service: S3Server, undisturbed: dict[str, Any]
) -> None:
    """And nothing that zmqrl writes or sends has the credentials."""
    run = begin(tmp_path / "lost", *SETTINGS, *SLOW, f"env.kwargs.step_s={STEP_S}", f"store.mirror={MIRROR}")
    copy = f"runs/{run.lineage()}/"
    run.wait_for(lambda: _has_records(names := service.names(copy)) and max(_fulls(names), default=0) >= 3)
    run.cut_short()
    shutil.rmtree(run.run_dir)
    at = max(_fulls(service.names(copy)))

    again = tmp_path / "again"
    told = zmqrl("train", "--resume", f"s3://{BUCKET}/{copy}", "--run-dir", again, "--plain", at=tmp_path)
    found = summary(again)
    assert found["status"] == "done" and found["resumed_from"] is not None, (found, told)
    assert found["resumed_from"]["version"].rpartition("-")[2] == str(at), found["resumed_from"]
    assert found["weights_sha256"] == undisturbed["weights_sha256"]
    assert found["env_steps"] == undisturbed["env_steps"]

    here, there = (zmqrl("eval", where, "--episodes", 2, at=tmp_path) for where in (again, f"s3://{BUCKET}/{copy}"))
    assert here == there
    written = b"".join(path.read_bytes() for path in again.rglob("*") if path.is_file())
    for name in service.names(copy):
        written += service.get(name)
    for secret in (service.key, service.secret):
        assert secret.encode() not in written
        assert secret not in told + here


@pytest.mark.long
def test_training_continues_while_the_server_of_the_mirror_is_away(tmp_path: Path, begin: Begin, own: S3Server) -> None:
    """Stopped for a while, then killed and started again empty."""
    run = begin(tmp_path / "run", *SETTINGS, *WAITING, f"store.mirror={MIRROR}", "store.wait_s=30")
    lineage = run.lineage()
    copy = f"runs/{lineage}/"
    run.wait_for(lambda: _fulls(own.names(copy)))
    with own.stopped(STOPPED_S):
        before = run.env_steps()
        time.sleep(STOPPED_S - 1.0)
        assert run.env_steps() > before
    at = max(_fulls(own.names(copy)))
    run.wait_for(lambda: max(_fulls(own.names(copy)), default=0) > at)

    own.kill()
    run.wait_for(lambda: "the run is not copied" in str(run.status().get("problems")))
    before = run.env_steps()
    run.wait_for(lambda: run.env_steps() > before)
    own.start()
    run.wait_for(lambda: {"config.json", "run.json"} <= {Path(name).name for name in own.names(copy)})
    run.process.send_signal(signal.SIGTERM)
    code, out, err = run.end()
    assert code == 130, out + err
    assert "the run was not copied for" in out + err
    assert _is_complete(run, own, lineage)


@pytest.mark.long
def test_the_last_copy_is_made_when_the_server_returns(tmp_path: Path, begin: Begin, own: S3Server) -> None:
    run = begin(tmp_path / "run", "run.total_env_steps=2e4", *PLAIN, *IDLE, f"store.mirror={MIRROR}")
    lineage = run.lineage()
    own.kill()
    run.wait_for((run.run_dir / "summary.json").exists)
    own.start()
    code, out, err = run.end()
    assert (code, run.summary()["status"]) == (0, "done"), out + err
    until(lambda: _is_complete(run, own, lineage), lambda: f"the copy: {err}")


@pytest.mark.timed
@pytest.mark.parametrize(("changes", "settings", "named"), [
    ({"AWS_SECRET_ACCESS_KEY": "wrong"}, [f"store.mirror={MIRROR}"], "store.mirror: .*SignatureDoesNotMatch"),
    ({"AWS_SECRET_ACCESS_KEY": "wrong"}, [*OBJECT, f"store.url={MIRROR}"], "store.url: .*SignatureDoesNotMatch"),
    ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, [*OBJECT, f"store.url={MIRROR}"], "store.url: .*Connection refused"),
    ({}, [*OBJECT, "store.url=s3://no-such-bucket/runs"], "store.url: .*NoSuchBucket.*create the bucket"),
    ({}, ["store.mirror=s3://no-such-bucket/runs"], "store.mirror: .*NoSuchBucket.*create the bucket"),
    ({}, ["store.mirror=s3://key:secret@bucket/runs"], "store.mirror: .*credentials"),
    ({}, ["store.mirror=/srv/copies"], "store.mirror: .*write a URL"),
])  # fmt: skip
def test_what_the_service_refuses_ends_the_command_at_once(
    tmp_path: Path,
    service: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, str],
    settings: list[str],
    named: str,
) -> None:
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    words = ("cartpole-ppo", "--run-dir", "refused", "--plain", *_sets(*settings))
    with within(REFUSED_S):
        told = zmqrl("train", *words, at=tmp_path, code=2)
    assert re.search(named, told), told
    assert told.count("\n") == 1
    assert not (tmp_path / "refused").exists()


def test_sync_refuses_objects_and_names_the_mirror(tmp_path: Path, service: S3Server) -> None:
    words = _sets("store.kind=object", f"store.url={MIRROR}")
    told = zmqrl("train", "cartpole-ppo", "--run-dir", "refused", "--plain", *words, at=tmp_path, code=2)
    assert f"{{kind: directory, mirror: {MIRROR}}}" in told
    assert not (tmp_path / "refused").exists()


def test_async_trains_on_objects_through_an_outage_and_continues_from_the_url(
    tmp_path: Path, begin: Begin, own: S3Server
) -> None:
    objects = ("store.kind=object", f"store.url={MIRROR}", "run.checkpoint_every_s=1", "evaluator.episodes=0")
    run = begin(
        tmp_path / "run",
        "run.total_env_steps=1e9",
        "run.stop_at_return=null",
        *objects,
        *IDLE,
        *SLOW,
        f"env.kwargs.step_s={STEP_S}",
        mode="async",
    )
    lineage = run.lineage()
    run.wait_for(lambda: _fulls(own.names(f"runs/{lineage}/")))
    with own.stopped(AWAY_S):
        pass
    at = max(_fulls(own.names(f"runs/{lineage}/")))
    run.wait_for(lambda: max(_fulls(own.names(f"runs/{lineage}/")), default=0) > at)
    run.process.send_signal(signal.SIGTERM)
    code, out, err = run.end()
    assert code == 130, out + err
    stopped = run.summary()
    assert stopped["restarts"] == 0
    assert not [*run.run_dir.glob("checkpoints/*")]

    url = f"s3://{BUCKET}/runs/{lineage}"
    here, there = (zmqrl("eval", where, "--episodes", 2, at=tmp_path) for where in (run.run_dir, url))
    assert here == there
    shutil.rmtree(run.run_dir)
    steps = stopped["env_steps"] + 500
    again = ("--resume", url, "--run-dir", "again", "--plain", *_sets(f"run.total_env_steps={steps}"))
    zmqrl("train", *again, at=tmp_path)
    found = summary(tmp_path / "again")
    assert found["env_steps"] >= steps
    assert found["resumed_from"]["env_steps"] <= stopped["env_steps"]


def test_a_detached_run_is_copied_too(tmp_path: Path, service: S3Server) -> None:
    """Its checks use the client of the service, and the command forks."""
    settings = _sets("run.total_env_steps=2e4", *PLAIN, *IDLE, f"store.mirror={MIRROR}")
    run_dir = tmp_path / "run"
    words = ("cartpole-ppo", "--workers", 1, "--run-dir", run_dir, "--detach", *settings)
    zmqrl("train", *words, at=tmp_path)
    lineage = json.loads((run_dir / "run.json").read_text())["lineage"]
    copied = f"runs/{lineage}/summary.json"
    until(lambda: copied in service.names(copied), "summary.json at the URL")


def test_a_url_without_a_run_is_refused_and_leaves_nothing(tmp_path: Path, service: S3Server) -> None:
    for words in (("eval", f"{MIRROR}/nothing"), ("train", "--resume", f"{MIRROR}/nothing", "--run-dir", "here")):
        told = zmqrl(*words, at=tmp_path, code=2)
        assert "is not a copy of a run" in told
    assert not [*tmp_path.iterdir()]
