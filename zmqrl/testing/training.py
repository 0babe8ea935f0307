"""What the training of an algorithm promises: only what may have an effect has one."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from zmqrl.algorithms.base import Algorithm, BaseLearner, Progress, schedule_of
from zmqrl.learning.schedule import Schedule, is_points
from zmqrl.random_streams import stream
from zmqrl.spaces import view
from zmqrl.testing.algorithm import AlgorithmMaker
from zmqrl.testing.devices import updates_run_on_one_device
from zmqrl.testing.expect import checks_of, is_same
from zmqrl.testing.experience import (
    SEED,
    UPDATES,
    acted,
    context_of,
    learn,
    observed,
    policy_of,
    progress_at,
    published,
    train,
)
from zmqrl.types import ACTING_STATE, ACTING_STATE_END, Array

ROUNDS, MANY_UPDATES = 3, 40
OVER_THE_HORIZON = (0, 50, 100)
"""Rounds at the start, in the middle and at the end of the schedules' horizon."""
LOG_PROB = "log_prob"
"""The extra column of heads that store the log-probability of the action."""
TARGET = re.compile(r"target(:\w+)?\.")
"""Prefix of the tensors of target networks in `state`."""
ROUNDING = 1e-3
"""Share of the largest change by training that is taken as rounding: C51 has 3e-6, and 0.1 where it ignores
terminations. It does not depend on the learning rate."""
DRAWS, FIRST_DRAW = 3, 5
"""Random values of a target network, of which one has to have an effect; index of the first one's stream."""


def rows_that_reset_are_not_trained(make: AlgorithmMaker) -> None:
    """What the row after the end of an episode holds (`valid` is false) has no effect, except its observation.

    After a truncation the extras of this row have one too: the head filled them from the true last observation.
    """
    one, other = make(), make()
    slots = acted(one, SEED)
    changed = {name: column.copy() for name, column in slots.items()}
    reset, rng = ~slots["valid"], stream(SEED, "testing", index=1)
    assert reset.any()
    unread, extras = reset.copy(), {column.name for column in one.acting().extras}
    unread[:, 1:] &= ~slots["truncated"][:, :-1]
    drawn = acted(one, SEED + 1)
    for name, column in changed.items():
        state = name.startswith((ACTING_STATE, ACTING_STATE_END))
        if name not in ("obs", "terminated", "truncated", "valid") and not state:
            rows = unread if name in extras else reset
            column[rows] = drawn[name][rows]
    changed["reward"][reset] = rng.normal(size=int(reset.sum())) * 100
    is_same(_after(one, slots), _after(other, changed), "weights after other actions and rewards in rows that reset")


def a_truncation_bootstraps(make: AlgorithmMaker) -> None:
    """The observation after a truncated row has an effect: what follows it has a value.

    Nothing is compared where rewards have no effect, as in behaviour cloning.
    """
    one, other = make(), make()
    slots = acted(one, SEED)
    slots["truncated"] |= slots["terminated"]
    slots["terminated"][...] = False
    changed = _with_other_ends(one, slots)
    first, second = (_after(made, held, MANY_UPDATES) for made, held in ((one, slots), (other, changed)))
    other_rewards = {**slots, "reward": slots["reward"] + slots["valid"].astype(np.float32)}
    assert not _is_equal(first, second) or _is_equal(first, _after(make(), other_rewards, MANY_UPDATES)), (
        "the last observations of truncated episodes have no effect: a truncation is trained as termination"
    )


def a_termination_has_no_value_after_it(make: AlgorithmMaker) -> None:
    """The observation after a terminated row has no effect. With statistics of observations nothing is compared.

    Nor without `Algorithm.termination_cuts_value`, with an intrinsic reward, which depends on it, or with
    `Relabel.terminated`, which ends episodes at other rows. No effect is one that rounding explains: what follows a
    termination may be multiplied by a sum of probabilities, as in C51.
    """
    one, other = make(), make()
    relabel = one.replay().relabel
    is_intrinsic = getattr(one.config, "intrinsic", None) is not None
    if one.statistics() or not one.termination_cuts_value or is_intrinsic or (relabel and relabel.terminated):
        return
    slots = acted(one, SEED)
    slots["terminated"] |= slots["truncated"]
    slots["truncated"][...] = False
    changed = _with_other_ends(one, slots)
    begun = _everything(one.learner(context_of(one)))
    first, second = _after(one, slots), _after(other, changed)
    moved = {name: ROUNDING * _distance(array, begun.get(name, np.zeros(()))) for name, array in first.items()}
    differing = [name for name, array in first.items() if _distance(array, second[name]) > moved[name]]
    assert not differing, f"other weights after other observations at the ends of episodes: {differing}"


def a_target_network_lags(make: AlgorithmMaker) -> None:
    """After some of the first updates, what `state` holds as `target.<tensor>` is not the tensor that is trained.

    Nor is what it holds as `target:<name>.<tensor>`, for each name of a target.
    """
    algorithm = make()
    learner = algorithm.learner(context_of(algorithm))
    equal = {found[0] for name in learner.state() if (found := TARGET.match(name))}
    if not equal:
        return
    slots = acted(algorithm, SEED)
    for number in range(ROUNDS):
        learn(algorithm, learner, slots, number, updates=1)
        now = {name.removeprefix("private."): a for name, a in {**learner.state(), **learner.weights()}.items()}
        for name, array in now.items():
            target = TARGET.match(name)
            if target and not np.array_equal(array, now[name.removeprefix(target[0])]):
                equal.discard(target[0])
    names = ", ".join(sorted(prefix.rstrip(".") for prefix in equal))
    assert not equal, f"the target networks ({names}) are always equal to the networks that are trained"


def a_target_network_is_read(make: AlgorithmMaker) -> None:
    """For each tower that `state` holds as `target.<tower>` or `target:<name>.<tower>`, other values change updates."""
    algorithm = make()
    state = algorithm.learner(context_of(algorithm)).state()
    towers = sorted({_tower(name) for name in state if TARGET.match(name)})
    if not towers:
        return
    slots = acted(algorithm, SEED)
    expected = _from_other_target(algorithm, slots, "", 0)
    unread = [
        tower
        for tower in towers
        if all(_is_equal(expected, _from_other_target(algorithm, slots, tower, draw)) for draw in range(DRAWS))
    ]
    assert not unread, (
        f"no update reads the target network of {', '.join(unread)}: a loss without `target=True` reads the network "
        "that is trained; a tower that needs no target belongs to a group without one"
    )


def recorded_updates_are_the_eager_ones(make: AlgorithmMaker) -> None:
    """An executor records `train` once: a number that changes comes from its batch. For `learner.executor: compiled`.

    The rounds are spread over the whole horizon, so that a schedule that changes slowly differs by as much as it can.

    Raises:
        TrainingFailed: An update differs from the recorded one.
        ConfigError: It cannot be recorded.
    """
    algorithm = make()
    if "compiled" in algorithm.executors:
        context = dataclasses.replace(context_of(algorithm), executor="traced")
        train(algorithm, algorithm.learner(context), OVER_THE_HORIZON)


def schedules_are_followed(make: AlgorithmMaker) -> None:
    """Another end of each schedule of the configuration changes updates or what workers get at the horizon's end."""
    algorithm = make()
    end = progress_at(OVER_THE_HORIZON[-1])
    expected = _at_the_end(algorithm, end)
    for field in dataclasses.fields(algorithm.config):
        schedule = getattr(algorithm.config, field.name)
        other = _with_other_end(schedule)
        if other != schedule:
            config = dataclasses.replace(algorithm.config, **{field.name: other})
            shape = (algorithm.network_section, algorithm.env, algorithm.segment_steps, algorithm.num_envs)
            found = _at_the_end(type(algorithm)(config, *shape), end)
            assert not _is_equal(expected, found), (
                f"the end of the schedule {field.name!r} has no effect: its value is `value_at(config."
                f"{field.name}, progress)`, in `numbers`, `learning_rates` or `schedule`"
            )


def _with_other_end(setting: Any) -> Any:
    if isinstance(setting, Schedule):
        return dataclasses.replace(setting, end=(setting.start + setting.end) / 2)
    if is_points(setting):
        return (*setting[:-1], (setting[-1][0], (setting[0][1] + setting[-1][1]) / 2))
    return setting


def a_new_version_replaces_the_old_one(make: AlgorithmMaker) -> None:
    """A policy that has acted with another version has, after `load`, the bits of one that never did."""
    algorithm = make()
    fresh, used = policy_of(algorithm), policy_of(algorithm)
    rng, weights = stream(SEED, "testing", index=3), published(algorithm)
    old = {name: array + rng.normal(size=array.shape).astype(array.dtype) for name, array in weights.items()}
    schedule = schedule_of(algorithm, progress_at())
    used.load(old, schedule)
    acted(algorithm, SEED + 1, used)
    used.load(weights, schedule)
    is_same(acted(algorithm, SEED, used), acted(algorithm, SEED, fresh), "columns acted after another version")


def stored_log_probs_are_those_of_the_acting_version(make: AlgorithmMaker) -> None:
    """On-policy, with the column `log_prob`: it has an effect. Recomputed ones are those of another version."""
    one, other = make(), make()
    if not one.on_policy or LOG_PROB not in (column.name for column in one.acting().extras):
        return
    slots = acted(one, SEED)
    rng = stream(SEED, "testing", index=4)
    shifted = slots[LOG_PROB] + 0.1 * rng.normal(size=slots[LOG_PROB].shape).astype(np.float32)
    first, second = _after(one, slots), _after(other, {**slots, LOG_PROB: shifted})
    assert not _is_equal(first, second), "the stored log-probabilities have no effect"


def _after(algorithm: Algorithm, slots: Mapping[str, Array], updates: int = UPDATES) -> dict[str, Array]:
    """Everything that a new learner holds after one round on these slots."""
    learner = algorithm.learner(context_of(algorithm))
    learn(algorithm, learner, slots, updates=updates)
    return _everything(learner)


def _at_the_end(algorithm: Algorithm, end: Progress) -> dict[str, Array]:
    """What a learner holds after rounds over the horizon, and what workers then receive."""
    learner = algorithm.learner(context_of(algorithm))
    train(algorithm, learner, OVER_THE_HORIZON)
    sent = {name: np.array(value) for name, value in schedule_of(algorithm, end).items()}
    return {**_everything(learner), **sent}


def _from_other_target(algorithm: Algorithm, slots: Mapping[str, Array], tower: str, draw: int) -> dict[str, Array]:
    """What a new learner holds after one round, but targets; that of `tower` had random values before the round."""
    learner = algorithm.learner(context_of(algorithm))
    state, rng = learner.state(), stream(SEED, "testing", index=FIRST_DRAW + draw)
    for name, array in state.items():
        if TARGET.match(name) and _tower(name) == tower:
            state[name] = np.asarray(array + rng.normal(size=array.shape), array.dtype)
    learner.load_state(learner.weights(), state)
    learn(algorithm, learner, slots)
    return {name: array for name, array in _everything(learner).items() if not TARGET.match(name)}


def _tower(name: str) -> str:
    """Tower of the tensor of a target, with the prefix of the target unless that is `target`."""
    return ".".join(name.split(".")[:2]).removeprefix("target.")


def _is_equal(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


def _distance(one: Array, other: Array) -> float:
    """Largest difference of an entry."""
    return float(np.abs(np.subtract(one, other, dtype=np.float64)).max(initial=0.0))


def _everything(learner: BaseLearner) -> dict[str, Array]:
    return {**learner.weights(), **learner.state()}


def _with_other_ends(algorithm: Algorithm, slots: Mapping[str, Array]) -> dict[str, Array]:
    """Slots with other observations after the rows that end an episode: the true last ones. Goals of hindsight stay."""
    obs, ended = slots["obs"].copy(), slots["terminated"] | slots["truncated"]
    assert ended.any()
    drawn, space = observed(algorithm, stream(SEED, "testing", index=2), obs.shape[:3]), algorithm.env.observation
    relabel = algorithm.replay().relabel
    goals = () if relabel is None else relabel.goals
    for part in (part for part in space.parts if part.name in goals):
        view(drawn, space, part)[...] = view(obs, space, part)
    obs[:, 1:][ended] = drawn[:, 1:][ended]
    return {**slots, "obs": obs}


TRAINING = (*checks_of(__name__), updates_run_on_one_device)
