"""What a learner has on the disk before it announces a version."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import MagicMock, create_autospec

import numpy as np
import pytest

from tests.data_stores.memory_store import MemoryStore
from zmqrl.algorithms.base import Progress
from zmqrl.algorithms.start.make import make_algorithm
from zmqrl.bus_ends.learner_end import LearnerChannel, LearnerEnds, SegmentSource
from zmqrl.config.codec import replace
from zmqrl.config.plan import INITIAL, Boot
from zmqrl.config.sections import Config, EnvSection, LearnerSection, NetworkSection, RunSection, StoreSection
from zmqrl.data_stores import tensors
from zmqrl.data_stores.base import Full, Saved, prefixed
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.envs.make import probe
from zmqrl.learner.counters import RunProgress
from zmqrl.learner.process import _context, _note_device, _publish_first
from zmqrl.learner.publishing import Publisher
from zmqrl.learner.restore import load_start_state
from zmqrl.learner.retrying_writer import RetryingWriter
from zmqrl.learner.session import make_session
from zmqrl.logs.events import EventPipe
from zmqrl.messages.process import ProblemReport
from zmqrl.planning.checked import initial_file
from zmqrl.planning.plan_run import plan_run
from zmqrl.testing.experience import version_0
from zmqrl.types import ModeName, Version, Weights


class _Store(MemoryStore):
    def __init__(self, done: list[str]) -> None:
        super().__init__("", 3)
        self._done = done

    def save(self, version: Version, weights: Weights, meta: object) -> Saved:
        self._done.append(f"save {version}")
        return super().save(version, weights, {})

    def save_full(self, full: Full, durable: bool) -> int:
        self._done.append(f"full {full.version} {'durable' if durable else 'volatile'}")
        return super().save_full(full, durable)

    def sync_full(self, version: Version) -> None:
        self._done.append(f"sync {version}")


def _ends() -> LearnerEnds:
    """Of a new arena."""
    ends = LearnerEnds(create_autospec(SegmentSource, instance=True), create_autospec(LearnerChannel, instance=True))
    cast(MagicMock, ends.channel.last_record).return_value = None
    return ends


def _start(
    tmp_path: Path, mode: ModeName, done: list[str], store: MemoryStore, resume: bool, total: int = 100_000
) -> None:
    config = Config(run=RunSection(mode=mode, total_env_steps=total), algorithm={"kind": "ppo"})
    plan = plan_run(config, tmp_path / "run", time.time(), resume)
    ends = _ends()
    cast(MagicMock, ends.channel.announce).side_effect = lambda notice: done.append(f"announce {notice.version}")
    algorithm = make_algorithm(config, plan.env)
    start = load_start_state(Boot("learner", 0, 0, "local", plan), algorithm, store, ends)
    events = create_autospec(EventPipe, instance=True)
    session = make_session(plan, algorithm, store, ends, events, start)
    weights = _publish_first(session, algorithm, start)
    full = store.newest_full()
    assert full is not None
    assert {f"weights/{name}" for name in weights} == {name for name in full.arrays if name.startswith("weights/")}


@pytest.mark.parametrize("mode", ["single", "sync", "async"])
def test_a_first_full(tmp_path: Path, mode: ModeName) -> None:
    done: list[str] = []
    _start(tmp_path, mode, done, _Store(done), resume=False)
    assert done == ["save 0-0", "full 0-0 durable", "announce 0-0"]


def test_a_learner_keeps_the_first_version_after_each_multiple(tmp_path: Path) -> None:
    """Also one that takes over: the multiples before the newest kept version are not kept again."""
    config = Config(algorithm={"kind": "ppo"}, store=StoreSection(keep_every=1000))
    plan = plan_run(config, tmp_path / "run", time.time(), False)
    algorithm, store = make_algorithm(config, plan.env), MemoryStore("", 3)
    writer = create_autospec(RetryingWriter, instance=True)
    writer.retry_until.side_effect = lambda what, action, effect: action()
    for versions in ((0, 600, 1100, 1900, 2000, 4500), (2000, 4900, 5100)):
        progress = SimpleNamespace()
        channel, events = create_autospec(LearnerChannel, instance=True), create_autospec(EventPipe, instance=True)
        publisher = Publisher(plan, algorithm, store, channel, writer, events, cast(RunProgress, progress))
        for env_steps in versions:
            progress.version, progress.snapshot = Version(0, env_steps), Progress(1, env_steps, 0, 10_000)
            publisher.save({"w": np.zeros(1, np.float32)})
            store.retire()
    kept = [v.n for v in store.versions() if store.weights_of(v) is not None and v in store._kept]
    assert kept == [1100, 2000, 4500, 5100]


@pytest.mark.parametrize("mode", ["single", "sync", "async"])
def test_what_a_resumed_run_begins_from(tmp_path: Path, mode: ModeName) -> None:
    """Written by a process that was killed, it may be in memory alone."""
    done: list[str] = []
    store = _Store(done)
    _start(tmp_path, mode, [], store, resume=False)
    del done[:]
    _start(tmp_path, mode, done, store, resume=True)
    assert done == ["save 1-0", "sync 0-0", "announce 1-0"]


def test_the_last_full_of_a_run_is_not_announced_again(tmp_path: Path) -> None:
    """Else workers would step a round more."""
    done: list[str] = []
    store = _Store(done)
    _start(tmp_path, "sync", [], store, resume=False)
    first = store.newest_full()
    assert first is not None
    counters = {**dict(first.meta)["counters"], "env_steps": 640, "n": 5}  # type: ignore[dict-item]
    store.save_full(
        Full(Version(0, 5), {n: np.array(a) for n, a in first.arrays.items()}, {"counters": counters}), True
    )
    del done[:]
    _start(tmp_path, "sync", done, store, resume=True, total=640)
    assert done == ["save 1-5", "sync 0-5"]


def test_learner_only_networks_of_another_run_are_in_the_first_full_alone(tmp_path: Path) -> None:
    """Workers do not need them, and a learner that is replaced before the second full checkpoint begins with them."""
    config = Config(
        run=RunSection(mode="sync", total_env_steps=1_000, init_from=str(tmp_path / "full-0-4.safetensors")),
        algorithm={"kind": "td3"},
        env=EnvSection(id="Pendulum-v1"),
        network=NetworkSection(hidden=(8,)),
    )
    algorithm = make_algorithm(config, probe(config.env))
    weights = {name: array + 1 for name, array in version_0(algorithm).items()}
    arrays = {**prefixed("weights", weights), "state/x": np.zeros(1)}
    DirectoryStore(str(tmp_path), 8).save_full(Full(Version(0, 4), arrays, {"counters": {}}), durable=False)
    plan, store = plan_run(config, tmp_path / "run", time.time()), MemoryStore("", 3)
    Path(plan.run_dir).mkdir()
    (Path(plan.run_dir) / INITIAL).write_bytes(initial_file(plan) or b"")
    for resume in (False, True):
        boot = Boot("learner", 0, 0, "local", replace(plan, resume=resume))
        ends = _ends()
        start = load_start_state(boot, algorithm, store, ends)
        events = create_autospec(EventPipe, instance=True)
        session = make_session(boot.plan, algorithm, store, ends, events, start)
        given = _context(algorithm, session, _publish_first(session, algorithm, start), events).weights
        for name, array in weights.items():
            np.testing.assert_array_equal(given[name], array, err_msg=name)
        newest = store.newest()
        assert newest is not None
        assert not any(name.startswith("q") for name in tensors.parse(newest[1])[0])


def test_a_learner_on_another_device_than_before_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as after a resume with `learner.device: auto` on a machine without a GPU."""
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA L4")
    plan = plan_run(Config(run=RunSection(mode="sync"), algorithm={"kind": "ppo"}), tmp_path / "run", time.time())
    algorithm, store, reports = make_algorithm(plan.config, plan.env), MemoryStore("", 3), list[ProblemReport]()
    events, learner = create_autospec(EventPipe, instance=True), MagicMock()
    cast(MagicMock, events.send).side_effect = reports.append
    learner.weights.return_value = version_0(algorithm)
    learner.state.return_value = {}
    for device, count in (("cpu", 0), ("cpu", 0), ("cuda", 1), ("cuda", 1), ("cpu", 2)):
        ends, resume = _ends(), store.newest_full() is not None
        boot = Boot("learner", 0, 0, "local", replace(plan, resume=resume))
        start = load_start_state(boot, algorithm, store, ends)
        session = make_session(boot.plan, algorithm, store, ends, events, start)
        _publish_first(session, algorithm, start)
        _note_device(device, session, events, start)
        assert session.checkpoints.write(learner) is not None
        assert len(reports) == count, (device, reports)
    assert "device cpu (now NVIDIA L4)" in reports[0].cause
    assert "device NVIDIA L4 (now cpu)" in reports[1].cause


def test_a_learner_receives_the_precision_and_has_gradients_by_autograd(tmp_path: Path) -> None:
    learner = LearnerSection(device="cpu", precision="bfloat16")
    config = Config(run=RunSection(mode="sync"), algorithm={"kind": "ppo"}, learner=learner)
    plan = plan_run(config, tmp_path / "run", time.time())
    algorithm, store, ends = make_algorithm(plan.config, plan.env), MemoryStore("", 3), _ends()
    start = load_start_state(Boot("learner", 0, 0, "local", plan), algorithm, store, ends)
    events = create_autospec(EventPipe, instance=True)
    session = make_session(plan, algorithm, store, ends, events, start)
    context = _context(algorithm, session, _publish_first(session, algorithm, start), events)
    assert (context.precision, context.executor) == ("bfloat16", "eager")
