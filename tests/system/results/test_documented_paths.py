"""The two paths of docs/architecture.md are those of the code: experience to the gradient, weights to the action.

A run in single and one in sync with one worker record every entry into a function of zmqrl, in each process. Segments
have one step, so that the loop over env steps repeats nothing.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support.running import RUN_S, environment

pytestmark = pytest.mark.whole
PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
RECORDER = Path(__file__).parent / "recorded_calls"
SETTLED = 5
"""The rounds before also build what the others use."""
CONFIG = {
    "env.vector_envs": 1,
    "env.num_envs": 8,
    "env.segment_steps": 1,
    "algorithm.minibatch_size": 8,
    "run.total_env_steps": 200,
    "run.stop_at_return": "null",
    "evaluator.episodes": 0,
    "limits.heartbeat_s": 10.0,
}
MODULE = re.compile(r"`([a-z_/]+)\.py`")


@dataclass(frozen=True)
class DocumentedPath:
    """What a section of the page says."""

    sync: list[str]
    """Modules in order."""
    single: list[str]
    used: set[str]
    """All others that are entered on the way."""
    used_in_single: set[str]
    """Those that only single enters."""

    def of(self, mode: str) -> list[str]:
        return self.single if mode == "single" else self.sync

    def named(self, mode: str) -> set[str]:
        return {*self.of(mode), *self.used, *(self.used_in_single if mode == "single" else ())}


def documented(heading: str) -> DocumentedPath:
    """The table and the sentence of the section."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if re.match(r"\| \d", line)]
    sync = [module for row in rows for module in modules(row[3])]
    used = {module for row in rows for module in modules(row[5])}
    single, *further = section.split("\nIts path: ")[1].split("\n")[:2]
    return DocumentedPath(sync, modules(single), used, {module for line in further for module in modules(line)})


def modules(text: str) -> list[str]:
    return [path.replace("/", ".") for path in MODULE.findall(text)]


@dataclass
class Call:
    """An entry into a function."""

    module: str
    function: str
    caller: str | None
    """Module."""
    end: int = 0
    """Index of the first call after it has returned."""


Calls: TypeAlias = list[Call]


def recorded(file: Path) -> Calls:
    """Calls in one process, in order."""
    calls: Calls = []
    stack: Calls = []
    for line in file.read_text().splitlines():
        event, module, function = line.split(" ")
        if event == "call":
            calls.append(Call(module.removeprefix("zmqrl."), function, stack[-1].module if stack else None))
            stack.append(calls[-1])
        elif stack:
            stack.pop().end = len(calls)
    for call in stack:
        call.end = len(calls)
    return calls


def below(
    calls: Sequence[Call], function: str, holds: str | None = None, then: str | None = None, until: str | None = None
) -> Calls:
    """A call of `function` and all calls below it, after `SETTLED` rounds, that enters what most of them enter.

    Some rounds also have what is done once per second, or at the end of an episode. `holds`: only calls with this one
    below are counted. `then`: up to the end of the next call of this function. `until`: up to the first call of this
    one.
    """
    spans = [calls[begin:end] for begin, end in _spans(calls, function, then)]
    if holds is not None:
        spans = [span for span in spans if holds in map(name, span)]
    if until is not None:
        spans = [span[: [*map(name, span)].index(until) + 1] for span in spans if until in map(name, span)]
    kinds = [tuple(entered(span)) for span in spans[SETTLED:]]
    counts = Counter(kinds)
    usual = {module for kind in counts for module in kind if 2 * sum(module in other for other in kinds) > len(kinds)}
    best = min(kinds, key=lambda kind: (len(usual ^ set(kind)), -counts[kind]))
    return list(spans[SETTLED + kinds.index(best)])


def _spans(calls: Sequence[Call], function: str, then: str | None) -> Iterator[tuple[int, int]]:
    for begin, call in enumerate(calls):
        if name(call) == function:
            ends = (later.end for later in calls[call.end :] if name(later) == then)
            end = call.end if then is None else next(ends, None)
            if end is not None:
                yield begin, end


def name(call: Call) -> str:
    return f"{call.module}.{call.function}"


def entered(calls: Iterable[Call]) -> Iterator[str]:
    """Modules in the order of entry. To construct or to compare a value is not an entry."""
    for call in calls:
        if call.module != call.caller and not call.function.startswith("__"):
            yield call.module


class RecordedRun:
    """A whole run, and what each of its processes entered."""

    def __init__(self, folder: Path, mode: str) -> None:
        calls = folder / "calls"
        calls.mkdir()
        sets = [word for key, value in CONFIG.items() for word in ("--set", f"{key}={value}")]
        workers = [] if mode == "single" else ["--workers", "1"]
        command = [sys.executable, "-m", "zmqrl", "train", "cartpole-ppo", "--mode", mode, *workers, *sets, "--plain"]
        env = environment({"ZMQRL_RECORDED_CALLS": str(calls)})
        env["PYTHONPATH"] = os.pathsep.join((str(RECORDER), env["PYTHONPATH"]))
        done = subprocess.run(
            [*command, "--run-dir", str(folder / "run")], env=env, capture_output=True, text=True, timeout=RUN_S
        )
        assert done.returncode == 0, done.stderr
        self._of_processes = [recorded(file) for file in calls.iterdir()]

    def below(self, function: str, **bounds: str) -> list[str]:
        """Modules that are entered below a call of `function`, after the one that calls it; see `below`."""
        calls = next(calls for calls in self._of_processes if function in map(name, calls))
        found = below(calls, function, **bounds)
        return [str(found[0].caller), *entered(found)]


def experience(run: RecordedRun, mode: str) -> list[str]:
    """From the env step to the gradient."""
    if mode == "single":
        return [
            *run.below("rollout.collector.collect", then="bus_ends.inproc.poll", until="broker.leases.allows"),
            *run.below("bus_ends.inproc.take", then="learner.sync_loop._learn"),
        ]
    return [
        *run.below("rollout.collector.collect", then="bus_ends.zmq_sink.poll"),
        *run.below("broker.process._round", holds="broker.acceptance.take_sealed", until="wire.sockets.send"),
        *run.below("learner.sync_loop._take_round", then="learner.sync_loop._learn"),
    ]


def weights(run: RecordedRun, mode: str) -> list[str]:
    """From the gradient to the policy that acts."""
    if mode == "single":
        return run.below("learner.publishing.publish", then="rollout.worker._take_weights")
    return [
        *run.below("learner.publishing.publish"),
        *run.below("broker.process._round", holds="broker.state._version_announced"),
        *run.below("agent.host_agent._take_notices", holds="agent.weights_relay._write"),
        *run.below("rollout.worker._take_weights", holds="acting.numpy_policy.load"),
    ]


@pytest.fixture(scope="module", params=["single", "sync"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def run(mode: str, tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return RecordedRun(tmp_path_factory.mktemp(mode), mode)


def returns(path: Sequence[str], listed: Sequence[str]) -> set[tuple[str, str]]:
    """From where to where: entries into a module listed before the one that was entered last."""
    on_it = [module for module in path if module in listed]
    steps = itertools.pairwise(on_it)
    return {(last, here) for last, here in steps if listed.index(here) < listed.index(last)}


def test_experience_enters_the_modules_of_the_page_in_order(run: RecordedRun, mode: str) -> None:
    page, path = documented("Experience: from the envs to the learner"), experience(run, mode)
    listed = page.of(mode)
    assert list(dict.fromkeys(module for module in path if module in listed)) == listed
    assert set(path) <= page.named(mode), "the page names every module that is entered"
    assert len(listed) <= 16 and len(page.used) <= 35, sorted(page.used)
    assert len(returns(path, listed)) <= 3, returns(path, listed)


def test_weights_enter_the_modules_of_the_page_in_order(run: RecordedRun, mode: str) -> None:
    page, path = documented("Weights: from the learner to the workers"), weights(run, mode)
    listed = page.of(mode)
    assert list(dict.fromkeys(module for module in path if module in listed)) == listed
    assert set(path) <= page.named(mode), "the page names every module that is entered"
    assert len(listed) <= 12 and len(page.used) <= 30, sorted(page.used)
