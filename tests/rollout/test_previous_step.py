"""The previous action and reward are the same numbers in acting, in every runtime, and in what a learner receives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import pytest
import torch

from tests.support.raising import raises
from zmqrl.acting.base import ActingContext
from zmqrl.acting.box_heads import Gaussian
from zmqrl.acting.heads import Categorical, MultiCategorical
from zmqrl.acting.numpy_policy import make_policy
from zmqrl.acting.previous import previous_rows
from zmqrl.acting.spec import ActingSpec, ActingState, previous_size
from zmqrl.acting.state import check_acting, noise_of, state_columns
from zmqrl.config.codec import from_json, replace, to_json
from zmqrl.config.sections import EnvSection
from zmqrl.envs.make import probe
from zmqrl.envs.vector import make_vector_env
from zmqrl.errors import ConfigError
from zmqrl.networks.forward import unroll
from zmqrl.networks.initial import initial_weights
from zmqrl.networks.spec import LayerSpec, NetworkSpec
from zmqrl.rollout.collector import Collector
from zmqrl.types import Array, ColumnSpec, EnvSpec

T, N, H, SEED, SEGMENTS = 7, 3, 5, 4, 3
KINDS = ("discrete", "several", "box")
Runtime = Literal["numpy", "torch"]


class Seen:
    """Part of a head: keeps what it receives for a row, and for the observation after it."""

    fills = frozenset({"outputs", "next_outputs"})

    def complete(self, outputs: Array, columns: Mapping[str, Array], context: ActingContext) -> None:
        assert len(outputs) == len(columns["reward"]) + 1
        context.extras["outputs"][...], context.extras["next_outputs"][...] = outputs[:-1], outputs[1:]


class SeenCategorical(Seen, Categorical): ...


class SeenSeveral(Seen, MultiCategorical): ...


class SeenGaussian(Seen, Gaussian): ...


HEADS: Mapping[str, str] = {"discrete": "Categorical", "several": "Several", "box": "Gaussian"}


def section_of(kind: str) -> EnvSection:
    return EnvSection(id="tests.envs.odd_envs:Lottery", num_envs=N, kwargs={"kind": kind})


def spec_of(env: EnvSpec, kind: str, noisy: bool = False) -> ActingSpec:
    """A recurrent layer behind the observation and the step before."""
    size, outputs = previous_size(env.action), sum(env.action.choices) or 2
    layers = (
        LayerSpec("noisy" if noisy else "linear", "in", 2, 4),
        LayerSpec("tanh"),
        LayerSpec("concat", inputs=4, outputs=4 + size),
        LayerSpec("gru", "core", 4 + size, H),
        LayerSpec("linear", "out", H, outputs),
    )
    extras = [ColumnSpec(name, "float32", (T, N, outputs)) for name in ("outputs", "next_outputs")]
    arrays = ("log_std",) if kind == "box" else ()
    head, noise = f"{__name__}:Seen{HEADS[kind]}", noise_of(layers)
    state = (ActingState("core", H),)
    return ActingSpec(
        layers,
        head,
        env.action,
        env.observation,
        tuple(extras),
        arrays=arrays,
        noise=noise,
        state=state,
        state_every=1,
        previous=True,
    )


def weights_of(spec: ActingSpec) -> dict[str, Array]:
    log_std = {"log_std": np.ones(2, np.float32)}  # most actions are outside of the bounds
    return {**initial_weights(NetworkSpec((("p", spec.layers),)), SEED), **log_std}


def collected(kind: str, runtime: Runtime = "numpy", noisy: bool = False) -> tuple[ActingSpec, list[dict[str, Array]]]:
    """Segments of one vector env."""
    section = section_of(kind)
    env = probe(section)
    spec = spec_of(env, kind, noisy)
    check_acting(spec, T)
    policy = make_policy(from_json(ActingSpec, to_json(spec) | {"runtime": runtime}))
    policy.load(weights_of(spec), {})
    collector = Collector(make_vector_env(section, env, "sync", SEED, 0), policy, spec, SEED, 0)
    collector.start()
    segments = []
    for index in range(SEGMENTS):
        columns = {
            "obs": np.zeros((T + 1, N, 2), np.float32),
            "action": np.zeros((T, N, *env.action.shape), env.action.dtype),
            "reward": np.zeros((T, N), np.float32),
            **{name: np.zeros((T, N), bool) for name in ("terminated", "truncated", "valid")},
            **{c.name: np.full(c.shape, 77, c.dtype) for c in (*spec.extras, *state_columns(spec, T, N))},
        }
        collector.collect(columns, index, lambda _: None, lambda: False)
        segments.append(columns)
    return spec, segments


def by_definition(segments: list[dict[str, Array]], kind: str) -> Array:
    """`[rows + 1, N, P]`, row by row; the first row of an env has no step before it."""
    action, reward, valid = (np.concatenate([s[name] for s in segments]) for name in ("action", "reward", "valid"))
    rows = [[np.zeros({"discrete": 4, "several": 6, "box": 3}[kind])] * N]
    for t in range(len(reward)):
        row = []
        for env in range(N):
            if kind == "discrete":
                numbers = [float(action[t, env] == value) for value in range(3)]
            elif kind == "several":
                numbers = [float(action[t, env, 0] == value) for value in range(2)]
                numbers += [float(action[t, env, 1] == value) for value in range(3)]
            else:
                numbers = [float(action[t, env, 0, 0]), float(action[t, env, 1, 0])]
            row.append(np.array([*numbers, float(reward[t, env])]) if valid[t, env] else rows[0][env])
        rows.append(row)
    return np.array(rows, np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_and_the_column_are_those_of_the_definition(kind: str) -> None:
    spec, segments = collected(kind)
    expected = by_definition(segments, kind)
    assert not np.concatenate([s["valid"] for s in segments]).all() and np.abs(expected[..., -1]).max() > 1
    if kind == "box":
        assert np.abs(expected[..., :-1]).max() > 0.5, "stored actions are not clipped"
    for index, columns in enumerate(segments):
        first = T * index
        assert columns["state.previous"].tobytes() == expected[first : first + T].tobytes()
        assert columns["state_end.previous"][0].tobytes() == expected[first + T].tobytes()
        rows = (columns["state.previous"][0], columns["action"], columns["reward"], columns["valid"])
        assert previous_rows(spec.action, *rows).tobytes() == expected[first : first + T + 1].tobytes()


@pytest.mark.parametrize("runtime", ["numpy", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_acting_computes_what_the_learner_unrolls(kind: str, runtime: Runtime) -> None:
    """Of every row, and of the observation after the last one: also where that is the last one of an episode."""
    spec, segments = collected(kind, runtime)
    tensors = {name: torch.tensor(array) for name, array in weights_of(spec).items()}
    truncated = 0
    for columns in segments:
        rows = (columns["state.previous"][0], columns["action"], columns["reward"], columns["valid"])
        previous = torch.tensor(previous_rows(spec.action, *rows))
        reset = torch.tensor(np.concatenate((np.zeros((1, N), bool), ~columns["valid"])))
        core, obs = {"core": torch.tensor(columns["state.core"][0])}, torch.tensor(columns["obs"])
        outputs, _ = unroll(spec.layers, tensors, obs, core, reset, previous)
        np.testing.assert_allclose(columns["outputs"], outputs[:-1], atol=1e-6)
        np.testing.assert_allclose(columns["next_outputs"], outputs[1:], atol=1e-6)
        without, _ = unroll(spec.layers, tensors, obs, core, reset, torch.zeros_like(previous))
        assert (outputs - without).abs().max() > 0.01, "the step before has an effect"
        truncated += int(columns["truncated"].sum())
    assert truncated > 0


@pytest.mark.parametrize("runtime", ["numpy", "torch"])
def test_the_last_outputs_of_a_segment_are_without_noise(runtime: Runtime) -> None:
    spec, segments = collected("discrete", runtime, noisy=True)
    policy = make_policy(from_json(ActingSpec, to_json(spec) | {"runtime": runtime}))
    policy.load(weights_of(spec), {})
    tensors = {name: torch.tensor(array) for name, array in weights_of(spec).items()}
    for columns in segments:
        state = {name: torch.tensor(columns[f"state_end.{name}"][0]) for name in ("core", "previous")}
        reset = torch.zeros((1, N), dtype=torch.bool)
        obs, previous = torch.tensor(columns["obs"][-1:]), state.pop("previous")[None]
        expected, _ = unroll(spec.layers, tensors, obs, state, reset, previous)
        np.testing.assert_allclose(columns["next_outputs"][-1], expected[0], atol=1e-6)
        first = {"core": torch.tensor(columns["state.core"][0])}
        noiseless, _ = unroll(
            spec.layers,
            tensors,
            torch.tensor(columns["obs"][:1]),
            first,
            reset,
            torch.tensor(columns["state.previous"][:1]),
        )
        assert np.abs(noiseless[0].numpy() - columns["outputs"][0]).max() > 1e-3, "that of a row has its noise"


@pytest.mark.parametrize("runtime", ["numpy", "torch"])
def test_a_head_that_completes_segments_does_not_change_them(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    _, completed = collected("discrete", runtime, noisy=True)
    monkeypatch.delattr(Seen, "complete")
    _, plain = collected("discrete", runtime, noisy=True)
    for one, other in zip(completed, plain, strict=True):
        assert (other["outputs"] == 77).all()
        for name in one.keys() - {"outputs", "next_outputs"}:
            assert one[name].tobytes() == other[name].tobytes(), name


@pytest.mark.parametrize("change", ["no layer", "another size", "no previous", "an own state"])
def test_a_layer_and_the_state_belong_together(change: str) -> None:
    spec = spec_of(probe(section_of("discrete")), "discrete")
    layers = [layer for layer in spec.layers if layer.kind != "concat"]
    wrong = {
        "no layer": replace(spec, layers=tuple(layers)),
        "another size": replace(spec, layers=(LayerSpec("concat", inputs=2, outputs=5), *layers)),
        "no previous": replace(spec, previous=False, state=spec.state[:1]),
        "an own state": replace(spec, previous=False, layers=tuple(layers)),
    }[change]
    with raises(ConfigError, key=("acting", "previous"), value=str(wrong.previous)):
        check_acting(wrong, T)


def test_an_extra_has_another_name() -> None:
    spec = spec_of(probe(section_of("discrete")), "discrete")
    with raises(ConfigError, key=("acting",)):
        check_acting(replace(spec, extras=(ColumnSpec("previous", "float32", (T, N)),)), T)
