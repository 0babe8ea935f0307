from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import call, create_autospec

import numpy as np
import pytest

from tests.support.waiting import WAIT_S, until
from zmqrl.acting.base import Policy
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.spec import ActingSpec
from zmqrl.config.codec import from_json, to_json
from zmqrl.config.plan import Boot, RunPlan
from zmqrl.config.sections import Config, EnvSection, EvaluatorSection
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.envs.make import probe
from zmqrl.evaluator.evaluation import evaluate
from zmqrl.evaluator.process import Inbox
from zmqrl.logs.events import EventPipe, Refusals
from zmqrl.messages.process import MessagesRefused
from zmqrl.networks.spec import LayerSpec
from zmqrl.types import Notice, Version

ROOT = Path(__file__).parents[2]
SECTION = EnvSection()
ENV = probe(SECTION)
SPEC = ActingSpec((LayerSpec("linear", "p", 4, 2),), "categorical", ENV.action, ENV.observation)
BALANCING = np.array([[-0.1, -0.5, -2.0, -1.5], [0.1, 0.5, 2.0, 1.5]], np.float32)


def weights(scale: float) -> dict[str, np.ndarray]:
    return {"p.weight": BALANCING * scale, "p.bias": np.zeros(2, np.float32)}


def test_scores_of_a_good_and_a_bad_policy_on_the_same_seeds() -> None:
    policy = make_policy(SPEC)
    policy.load(weights(1.0), {})
    good = evaluate(policy, SECTION, ENV, 5, 1)
    assert good.returns == (500.0,) * 5
    assert good.lengths == (500,) * 5
    policy.load(weights(-1.0), {})
    bad = evaluate(policy, SECTION, ENV, 5, 1)
    assert bad.mean < 15
    assert bad == evaluate(policy, SECTION, ENV, 5, 1)
    assert bad != evaluate(policy, SECTION, ENV, 5, 2)


class Always(Policy):
    """One number in every entry of the action."""

    def __init__(self, number: float) -> None:
        self._number = number

    def load(self, weights: Any, schedule: Any) -> None:
        return

    def act(self, obs: Any, t: int, context: Any) -> Any:
        raise NotImplementedError

    def act_greedily(self, obs: Any, state: Any = None) -> Any:
        return np.full((len(obs), 2, 2), self._number, np.float32)


@pytest.mark.parametrize("number", [-5.0, 5.0])
def test_actions_are_clipped_on_the_sides_that_have_a_bound(number: float) -> None:
    """The env raises for an action outside of its space."""
    section = EnvSection(id="tests.envs.space_envs:HalfBounded")
    assert min(evaluate(Always(number), section, probe(section), 2, 1).lengths) > 1


class Process:
    """The real evaluator process behind `zmqrl.entry`."""

    def __init__(self, path: Path, episodes: int = 3, video_every: int | None = None) -> None:
        config = Config(evaluator=EvaluatorSection(episodes=episodes, video_every=video_every))
        plan = RunPlan("r", str(path), 0.0, config, ENV, to_json(SPEC), (), True, 4, 4, {}, 0, str(path / "store"))
        read, write = os.pipe()
        boot = Boot("evaluator", 0, 0, "local", plan, fds={"events": write})
        argv = [sys.executable, "-m", "zmqrl.entry", "zmqrl.evaluator", "r", "0"]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=[write], cwd=ROOT)
        os.close(write)
        self._events = os.fdopen(read)
        self.send(to_json(boot))

    def send(self, *messages: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
        self.process.stdin.flush()

    def event(self) -> dict[str, Any]:
        return json.loads(self._events.readline())

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        rest = [json.loads(line) for line in self._events]
        self._events.close()
        return self.process.wait(WAIT_S), rest


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(str(tmp_path / "store"), 8)


def publish(store: DirectoryStore, n: int, scale: float) -> dict[str, Any]:
    saved = store.save(Version(0, n), weights(scale), {})
    return to_json(Notice(Version(0, n), saved.key, saved.nbytes, saved.sha256, env_steps=n * 10))


def task(notice: dict[str, Any], final: bool = False) -> dict[str, Any]:
    return {"command": "evaluate", "notice": notice, "final": final}


def test_scores_and_best_and_final(store: DirectoryStore, tmp_path: Path) -> None:
    process = Process(tmp_path)
    assert process.event()["event"] == "ready"
    process.send(task(publish(store, 1, 1.0)))
    first = process.event()
    assert (first["event"], first["version"], first["env_steps"], first["best"]) == ("score", [0, 1], 10, True)
    assert (first["return_mean"], first["return_std"], first["episodes"]) == (500.0, 0.0, 3)
    gone = publish(store, 2, 1.0)
    (tmp_path / "store" / gone["key"]).unlink()
    process.send(task(gone), task(publish(store, 3, -1.0), final=True))
    code, rest = process.end()
    assert code == 0
    assert [(e["version"], e["final"], e["best"]) for e in rest] == [([0, 3], True, False)]
    best = store.best()
    assert best is not None
    assert (best[0], best[2]) == ((0, 1), 500.0)


@pytest.mark.whole
def test_a_video_follows_the_score(store: DirectoryStore, tmp_path: Path) -> None:
    process = Process(tmp_path, video_every=1000)
    process.send(task(publish(store, 1, -1.0)))
    assert [process.event()["event"] for _ in range(2)] == ["ready", "score"]
    until(lambda: (tmp_path / "videos" / "000000010-v0-1.mp4").exists(), "the video")
    assert process.end() == (0, [])


@pytest.mark.whole
def test_a_final_version_makes_it_drop_an_older_score(store: DirectoryStore, tmp_path: Path) -> None:
    process = Process(tmp_path, episodes=200)
    process.event()
    process.send(task(publish(store, 1, 1.0)))
    time.sleep(0.3)  # not synchronisation: the older score may or may not be under way
    process.send(task(publish(store, 2, -1.0), final=True))
    code, rest = process.end()
    assert code == 0
    assert [e["version"] for e in rest] == [[0, 2]]


def test_a_malformed_line_is_counted_and_the_next_one_is_scored(store: DirectoryStore, tmp_path: Path) -> None:
    process = Process(tmp_path)
    assert process.event()["event"] == "ready"
    process.send({"notice": 3}, [], task({**publish(store, 1, 1.0), "nbytes": -1}))
    counts: dict[str, int] = {}
    while sum(counts.values()) < 3:
        counts = process.event()["counts"]
    assert counts == {"unknown command": 1, "not JSON": 1, "value": 1}
    process.send(task(publish(store, 2, 1.0), final=True))
    code, rest = process.end()
    assert (code, [e["version"] for e in rest]) == (0, [[0, 2]])


@pytest.mark.whole
def test_end_of_input_and_sigterm_end_it(store: DirectoryStore, tmp_path: Path) -> None:
    for way in ("eof", "sigterm"):
        process = Process(tmp_path)
        process.event()
        if way == "sigterm":
            process.process.send_signal(signal.SIGTERM)
            assert process.process.wait(WAIT_S) == 0
        assert process.end() == (0, [])


def test_a_notice_survives_json() -> None:
    notice = Notice(Version(1, 2), "k", 3, "s", 4, 5, {"epsilon": 0.5})
    assert from_json(Notice, json.loads(json.dumps(to_json(notice)))) == notice


def test_refused_lines_are_reported_once_per_heartbeat_and_at_the_end() -> None:
    """It polls at each env step: lines that keep coming would fill the pipe of events."""
    events = create_autospec(EventPipe, instance=True)
    read, write = os.pipe()
    inbox = Inbox(read, Refusals(events), 3600.0)
    for _ in range(5):
        os.write(write, b"no task\n")
        inbox.poll(0.0)
    assert events.send.call_args_list == [call(MessagesRefused({"not JSON": 1}))]
    inbox.report()
    assert events.send.call_args_list[1:] == [call(MessagesRefused({"not JSON": 5}))]
    os.close(read)
    os.close(write)
