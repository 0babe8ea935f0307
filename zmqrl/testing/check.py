"""One call that checks an algorithm of your own: the suites over every space that it accepts, then probe envs."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from zmqrl.acting.make_head import make_head
from zmqrl.algorithms.base import Algorithm
from zmqrl.config.codec import replace
from zmqrl.config.sections import EnvSection, NetworkSection, ReplaySection
from zmqrl.envs.make import probe
from zmqrl.envs.spaces import observation_spec
from zmqrl.errors import ConfigError
from zmqrl.networks.kinds.base import layer_kind
from zmqrl.testing.algorithm import (
    ALGORITHM,
    CONTINUOUS,
    DISCRETE,
    VECTOR,
    training_changes_the_network,
    workers_act_with_version_0,
)
from zmqrl.testing.probes import PROBES, Memory, ProbeEnv
from zmqrl.testing.rounds import Rounds
from zmqrl.testing.training import TRAINING, a_termination_has_no_value_after_it
from zmqrl.types import MODES, EnvSpec, SpaceSpec

ENVS, VECTOR_ENVS, EPISODES, SEED = 2, 4, 50, 1
LEAST = 0.7
"""Share of the way from a random policy to the best one that a probe requires."""
LOOK_EVERY = 500
"""Env steps between two scores of a probe."""
IMPORT_CPU_S = 60
"""CPU time of a process that imports the module of the algorithm, which may check the algorithm again."""
SMALL = NetworkSection(hidden=(32,))
MODULE = NetworkSection("zmqrl.testing.features:Features")
"""A module of the user's own in place of `network`."""
OVER_MODULE = (workers_act_with_version_0, training_changes_the_network)
UNCUT = a_termination_has_no_value_after_it.__name__
REPLAY = ReplaySection(learning_starts=200, ratio=0.5)


@dataclass
class Report:
    """What was checked. Its `str` has the number of checks that passed, and what was skipped."""

    algorithm: str
    imports_torch: bool | None = None
    """Whether its module imports torch, which the launcher then loads too (1.5 s); None: unknown, as in a notebook."""
    passed: list[str] = field(default_factory=list)
    """Checks and probes, with the space that they ran over; each is printed when it has passed."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Spaces and probes that it does not accept, and why."""

    def add(self, name: str) -> None:
        """Add a check that passed, and print it at once."""
        self.passed.append(name)
        print(f"passed   {name}", file=sys.stderr, flush=True)

    def __str__(self) -> str:
        answers = {None: "unknown", True: "yes: the launcher loads it too (1.5 s, 160 MiB)", False: "no"}
        lines = [f"{self.algorithm}: {len(self.passed)} checks passed", f"imports torch: {answers[self.imports_torch]}"]
        lines += [f"  skipped  {name}: {why}" for name, why in self.skipped.items()]
        return "\n".join(lines)


def check_algorithm(
    kind: type[Algorithm],
    config: Any = None,
    *,
    network: NetworkSection = SMALL,
    observation: gym.Space[Any] | None = None,
    replay: ReplaySection = REPLAY,
    segment_steps: int = 16,
    env_steps: int = 10_000,
    skip: Collection[str] = (),
) -> Report:
    """Check an algorithm: `ALGORITHM` and `TRAINING` over the spaces that it accepts, then the probe envs.

    Args:
        kind: The class.
        config: Its configuration; default: `kind.Config()`.
        network: The network section.
        observation: Space of the observations, but in probe envs: a Dict with goals for `relabel`; default: a vector.
        replay: Of off-policy algorithms in the probe envs.
        segment_steps: Rows T of a segment, as `env.segment_steps` of a run. Sequences of replay must fit into it.
        env_steps: The most that a probe is trained; it ends as soon as the probe is learned.
        skip: Names of checks and probes that are left out; the report lists them.

    Returns:
        What was checked.

    Raises:
        AssertionError: A check failed: its name, the space and the cause.
        ConfigError: `config` is not an instance of `kind.Config`, or `skip` has an unknown name.
    """
    if config is not None and not isinstance(config, kind.Config):
        raise ConfigError(f"must be an instance of {kind.__qualname__}.Config", key=("config",), value=repr(config))
    known = {check.__name__ for check in (*ALGORITHM, *TRAINING, *OVER_MODULE)} | {env.__name__ for env in PROBES}
    if unknown := sorted({*skip} - known):
        fix = f"known: {', '.join(sorted(known))}"
        raise ConfigError("no such check", key=("skip",), value=", ".join(unknown), fix=fix)
    with _one_quiet_thread():
        space = VECTOR if observation is None else observation_spec("check_algorithm", observation)
        subject = _Subject(kind, kind.Config() if config is None else config, segment_steps, space)
        return _checked(subject, network, replay, env_steps, skip)


@dataclass(frozen=True)
class _Subject:
    """The algorithm that is checked, over any network and env."""

    kind: type[Algorithm]
    config: Any
    segment_steps: int
    observation: SpaceSpec

    def made(self, network: NetworkSection, env: EnvSpec) -> Algorithm:
        return self.kind(self.config, network, env, self.segment_steps, ENVS)

    def refusal(self, network: NetworkSection, env: EnvSpec) -> str:
        try:
            algorithm = self.made(network, env)
            algorithm.check("single", VECTOR_ENVS, ReplaySection())
            make_head(algorithm.acting(), 1)
        except ConfigError as error:
            return str(error)
        except Exception as error:
            raise AssertionError(
                f"{env.id}: {type(error).__name__}: {error}: what the algorithm does not accept must be refused: "
                "declare the class attributes `actions`, `needs_bounds` and `masks`, or raise ConfigError in `__init__`"
            ) from error
        return ""


@contextmanager
def _one_quiet_thread() -> Iterator[None]:
    """Small networks are fastest with one thread. torch logs each step of tracing, which pytest would keep."""
    import torch

    threads, log = torch.get_num_threads(), logging.getLogger("torch.__trace")
    disabled = log.disabled
    torch.set_num_threads(1)
    log.disabled = True
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        log.disabled = disabled


def _checked(
    subject: _Subject, network: NetworkSection, replay: ReplaySection, env_steps: int, skip: Collection[str]
) -> Report:
    report = Report(subject.kind.__qualname__, skipped=dict.fromkeys(sorted(skip), "by its name"))
    if not subject.kind.termination_cuts_value:
        skip = {*skip, UNCUT}
        report.skipped[UNCUT] = "termination_cuts_value is False"
    accepted: list[bool] = []
    for name, action in (("discrete", DISCRETE), ("continuous", CONTINUOUS)):
        spec = EnvSpec(f"{name} actions", subject.observation, action)
        if refusal := subject.refusal(network, spec):
            report.skipped[spec.id] = refusal
            continue
        accepted.append(action is CONTINUOUS)
        _suite(report, subject, network, spec, skip, (*ALGORITHM, *TRAINING))
        with_module = replace(spec, id=f"{spec.id}, a module as network")
        if refusal := subject.refusal(MODULE, with_module):
            report.skipped[with_module.id] = refusal
        else:
            _suite(report, subject, MODULE, with_module, skip, OVER_MODULE)
    if not report.passed:
        raise AssertionError(f"{report.algorithm} accepts no actions: {report.skipped}")
    if all(MODES[mode].offline for mode in subject.kind.modes):
        skip = {*skip, *(env.__name__ for env in PROBES)}
        report.skipped |= {env.__name__: "it does not train on its own env steps" for env in PROBES}
    for env in (env for env in PROBES if env.__name__ not in skip):
        for continuous in (c for c in env.kinds_of_action if c in accepted):
            _probe(report, subject, network, replay, env, continuous, env_steps)
    report.imports_torch = imports_torch(subject.kind)
    return report


def imports_torch(kind: type[Algorithm]) -> bool | None:
    """Whether the module of the class imports torch; None when the module cannot be imported."""
    if kind.__module__ == "__main__":
        return None
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_CPU, ({IMPORT_CPU_S}, {IMPORT_CPU_S}))"
    code = f"{limit}; import sys; sys.path[:] = {sys.path!r}; import {kind.__module__}; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    return None if done.returncode else done.stdout.split()[-1] == "True"


def _suite(
    report: Report,
    subject: _Subject,
    network: NetworkSection,
    spec: EnvSpec,
    skip: Collection[str],
    checks: Sequence[Callable[[Callable[[], Algorithm]], None]],
) -> None:
    for check in checks:
        if check.__name__ not in skip:
            name = f"{check.__name__}, {spec.id}"
            _run(check, lambda: subject.made(network, spec), name)
            report.add(name)


def _run(check: Callable[[Callable[[], Algorithm]], None], make: Callable[[], Algorithm], name: str) -> None:
    try:
        check(make)
    except Exception as error:
        about = (check.__doc__ or "").splitlines()[0]
        raise AssertionError(f"{name}: {type(error).__name__}: {error}\n{about}") from error


def _has_recurrent_layer(algorithm: Algorithm) -> bool:
    """Whether observations are remembered; the state of a head, such as a noise process, is of actions."""
    return any(layer_kind(layer.kind).state_size(layer) for layer in algorithm.acting().layers)


def _probe(
    report: Report,
    subject: _Subject,
    network: NetworkSection,
    replay: ReplaySection,
    env: type[ProbeEnv],
    continuous: bool,
    env_steps: int,
) -> None:
    kwargs = {"continuous": continuous}
    name = f"{env.__name__}, {'continuous' if continuous else 'discrete'} actions"
    section = EnvSection(f"{env.__module__}:{env.__qualname__}", ENVS, VECTOR_ENVS, subject.segment_steps, kwargs)
    spec = probe(section)
    refusal = subject.refusal(network, spec)
    algorithm = None if refusal else subject.made(network, spec)
    if env is Memory and algorithm is not None and not _has_recurrent_layer(algorithm):
        refusal = "no layer with recurrent state"
    if algorithm is not None and algorithm.replay().relabel is not None:
        refusal = "no goals to relabel"
    if algorithm is None or refusal:
        report.skipped[name] = refusal or ""
        return
    rounds = Rounds(algorithm, section, env_steps, SEED, replay)
    try:
        share = 0.0
        for so_far in range(LOOK_EVERY, env_steps + LOOK_EVERY, LOOK_EVERY):
            rounds.train(so_far)
            share = (rounds.score(EPISODES) - env.RANDOM) / (env.BEST - env.RANDOM)
            if share >= LEAST:
                report.add(f"{name}: learned within {rounds.env_steps:,} env steps")
                return
    finally:
        rounds.close()
    raise AssertionError(
        f"{name}: {share:.0%} of the way from a random policy to the best one after {rounds.env_steps:,} env steps, "
        f"at least {LEAST:.0%} expected. It is learned only if this is right: {env.about}"
    )
