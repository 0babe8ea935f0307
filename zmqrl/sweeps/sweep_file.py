"""The file of a sweep, and the trials that follow from it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from zmqrl.config.codec import by_dotted_keys, names_of
from zmqrl.config.overrides import SET
from zmqrl.config.presets import PRESET
from zmqrl.config.sections import Bounds, Count, Section
from zmqrl.config.validate import validated
from zmqrl.config.yaml_source import Branch, read_file
from zmqrl.errors import ConfigError
from zmqrl.messages.fields import PathText
from zmqrl.queue.records import JobNeeds
from zmqrl.random_streams import stream

MOST_TRIALS, MOST_SEEDS, MOST_RUNGS, MOST_STEPS = 10_000, 1000, 100, 1 << 53
Positive = Annotated[int, Bounds(ge=1, le=MOST_STEPS), Meta(ge=1, le=MOST_STEPS)]
"""Bounds for the file, by pydantic, and for `sweep.json`, which may be another user's, by msgspec."""
Values = tuple[Any, ...]


class Range(Section, frozen=True):
    """An interval, from which random and optuna draw."""

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    """Whether the logarithm is uniform."""
    integer: bool = False


class SweepFile(Section, frozen=True):
    """The keys of the file, which docs/sweeps.md describes."""

    preset: str
    parameters: Mapping[str, Values | Range] | tuple[Mapping[str, Any], ...]
    method: Literal["grid", "list", "random", "optuna"] = "grid"
    trials: Annotated[int, Bounds(ge=1, le=MOST_TRIALS)] = 20
    batch: Positive = 4
    seeds: Annotated[int, Bounds(ge=1, le=MOST_SEEDS), Meta(ge=1, le=MOST_SEEDS)] = 1
    seed: Count = 1
    set: Mapping[str, Any] = field(default_factory=dict)
    episodes: Annotated[int, Bounds(ge=1, le=1000)] = 20
    rungs: tuple[Positive, ...] = ()
    startup_trials: Positive = 4
    max_parallel: Positive = 16
    needs: JobNeeds = JobNeeds()
    priority: Annotated[int, Bounds(ge=-1000, le=1000)] = 0

    @property
    def space(self) -> Mapping[str, Values | Range]:
        """Values by dotted key; empty of method list."""
        return self.parameters if isinstance(self.parameters, Mapping) else {}

    @property
    def count(self) -> int:
        """Number of trials."""
        if self.method == "grid":
            return math.prod(len(each) for each in self.space.values() if isinstance(each, tuple))
        return len(self.parameters) if self.method == "list" else self.trials

    def parameters_of(self, trial: int) -> Mapping[str, Any]:
        """What a trial tries, a function of the arguments; of optuna a trial at random."""
        if not isinstance(self.parameters, Mapping):
            return self.parameters[trial]
        if self.method == "grid":
            choices = (each for each in self.parameters.values() if isinstance(each, tuple))
            return dict(zip(self.parameters, list(product(*choices))[trial], strict=True))
        return {key: self._draw(key, values, trial) for key, values in self.parameters.items()}

    def _draw(self, key: str, values: Values | Range, trial: int) -> Any:
        random = stream(self.seed, f"sweep/{key}", index=trial)
        if not isinstance(values, Range):
            return values[int(random.integers(len(values)))]
        low, high = values.low, values.high + values.integer
        drawn = math.exp(random.uniform(math.log(low), math.log(high))) if values.log else random.uniform(low, high)
        return max(math.floor(drawn), math.ceil(low)) if values.integer else drawn


class Sweep(Struct, frozen=True, forbid_unknown_fields=True):
    """`sweep.json` in the folder of a sweep: all that decides about it. It never changes."""

    keys: SweepFile
    folder: PathText
    """Working directory of the runs."""
    queue: PathText
    """Folder of the queue."""
    first_seed: int = 1
    best_by: str | None = None
    """`evaluator.best_by`: whose mean the value is in place of the return."""
    jobs_before: int = 0
    """Number of the last job that was in the queue before. Its jobs in this folder are of a sweep that was removed."""

    def stage_name(self, stage: int) -> str:
        """A rung, or the end, for messages."""
        return f"at {self.keys.rungs[stage]:,}" if stage < len(self.keys.rungs) else "at the end"

    def overrides(self, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """Overrides of a trial, as `--set` takes them."""
        pairs = [*by_dotted_keys(self.keys.set), *by_dotted_keys(parameters)]
        return tuple(f"{key}={json.dumps(value)}" for key, value in pairs if key)


def read_sweep(path: Path) -> SweepFile:
    """The keys of a file. ConfigError: file, line, key and what is wrong."""
    tree = read_file(path)
    space = tree.at(("parameters",))
    for name, node in space.children.items() if isinstance(space, Branch) else ():
        if isinstance(node, Branch) and node.children and not {*node.children} & {*names_of(Range)}:
            fix = f"write the dotted key {name}.{next(iter(node.children))}"
            raise ConfigError("is a section", key=("parameters", name), fix=fix, source=str(node.source))
        if isinstance(node, Branch):  # its errors as those of an interval alone
            validated(Range, node, ("parameters", name))
    keys = validated(SweepFile, tree)
    for key, what, fix in (*_written_faults(keys, tree), *faults(keys)):
        node = tree.at(key) or tree
        raise ConfigError(what, key=key, fix=fix, source=str(node.source))
    return keys


def _written_faults(keys: SweepFile, tree: Branch) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Faults of what is written without an effect. They are not refused in `sweep.json`."""
    for name, methods in {"trials": ("random", "optuna"), "batch": ("optuna",)}.items():
        if tree.at((name,)) is not None and keys.method not in methods:
            yield (name,), f"has no effect with method: {keys.method}", f"remove it, or write method: {methods[0]}"
    given = {key for key, _ in by_dotted_keys(keys.set)}
    for key, values in keys.space.items():
        if key in given:
            yield ("parameters", key), "is in set too", "remove one of the two"
        if isinstance(values, tuple) and len({*map(json.dumps, values)}) < len(values):
            yield ("parameters", key), "has a value twice", "remove one of them"


@contextmanager
def located(file: Path) -> Iterator[None]:
    """Errors of keys that a file of a sweep sets name it and the line, in place of `--set`, by which the runs set them.

    A key of method list has the line of `parameters`.
    """
    try:
        yield
    except ConfigError as error:
        if error.source and not error.source.startswith(SET.name):
            raise
        tree = read_file(file)
        lines = {".".join(path).removeprefix("parameters.").removeprefix("set."): it for path, it in tree.nodes()}
        node = lines.get("preset" if error.key == PRESET else ".".join(error.key))
        node = node or (lines["parameters"] if error.source else None)
        more = tuple(line.replace(SET.name, str(file), 1) for line in error.more)
        raise (error if node is None else error.replaced(source=str(node.source), more=more)) from error.__cause__


def faults(keys: SweepFile) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Key, what is wrong, and fix of what the bounds of the keys do not show."""
    if isinstance(keys.parameters, Mapping) == (keys.method == "list") or not keys.parameters:
        fix = "method list takes a list of mappings, the others `algorithm.learning_rate: [1e-4, 1e-3]`"
        yield ("parameters",), f"cannot be used with method: {keys.method}" if keys.parameters else "is empty", fix
    for key, values in keys.space.items():
        if not isinstance(values, Range):
            yield from [] if values else [(("parameters", key), "has no value", "write a list of values")]
        elif keys.method == "grid":
            yield ("parameters", key), "an interval cannot be used with method: grid", "write a list of values"
        elif (
            values.low >= values.high
            or (values.log and values.low <= 0)
            or (values.integer and (values.low % 1 or values.high % 1))
        ):
            what = "low must be less than high, above 0 with log, and both whole with integer"
            yield ("parameters", key), what, "write {low: 1e-4, high: 1e-2}"
    if any("run.seed" in each for each in (keys.space, *(keys.parameters if keys.method == "list" else ()))):
        yield ("parameters",), "run.seed cannot be a parameter", "write seeds: N"
    if keys.count > MOST_TRIALS:
        yield ("parameters",), f"{keys.count:,} trials; at most {MOST_TRIALS:,} are allowed", "use method: random"
    if len(keys.rungs) > MOST_RUNGS:
        yield ("rungs",), f"{len(keys.rungs):,} rungs; at most {MOST_RUNGS} are allowed", "write rungs: [10000, 20000]"
    if list(keys.rungs) != sorted({each for each in keys.rungs if each % keys.rungs[0] == 0}):
        yield ("rungs",), "must ascend, each a multiple of the first", "write rungs: [10000, 20000]"
