"""What the network sees of an observation: numpy and torch against plain loops, layout and scaling of images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.raising import raises
from zmqrl.acting.numpy_policy import ObservationInput
from zmqrl.acting.spec import ActingSpec
from zmqrl.config.codec import from_json, to_json
from zmqrl.config.sections import NetworkSection
from zmqrl.errors import ConfigError
from zmqrl.networks.build import tower
from zmqrl.networks.input import NumpyInput, network_input
from zmqrl.networks.torch_input import TorchInput
from zmqrl.spaces import SpaceSpec, composite, unpack
from zmqrl.testing.observations import observations

ROWS = 5
IMAGE = SpaceSpec("box", (3, 4, 5), "uint8", low=(0.0,), high=(255.0,))
GRID = SpaceSpec("box", (3, 4, 5), "uint8", low=(0.0,), high=(10.0,))
LEAVES = {
    "image": IMAGE,
    "grid": GRID,
    "discrete": SpaceSpec("discrete", (), "int64", n=4, start=7),
    "multi": SpaceSpec("multi_discrete", (3,), "int64", nvec=(2, 5, 3), env_shape=(3,)),
    "bits": SpaceSpec("box", (2, 2), "int8", low=(0.0,), high=(1.0,)),
    "double": SpaceSpec("box", (2,), "float64"),
    "float": SpaceSpec("box", (2, 3), "float32"),
    "action_mask": SpaceSpec("box", (4,), "bool"),
}


def slow(space: SpaceSpec, row: np.ndarray, mean: np.ndarray, scale: np.ndarray, clip: float) -> list[float]:
    """One row's input, number by number."""
    found: list[float] = []
    place = 0
    for part in space.leaves():
        if part.name == "action_mask":
            continue
        values = unpack(row, space)[part.name].reshape(-1)
        if part.space.choices:
            for value, n in zip(values.tolist(), part.space.choices, strict=True):
                found += [float(other == value) for other in range(n)]
            continue
        for value in values.tolist():
            if np.dtype(part.space.dtype).kind == "f":
                value = min(max((value - mean[place]) * scale[place], -clip), clip)
                place += 1
            found.append(value / 255 if part.name and part.space.is_image else value)
    return found


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(sorted(LEAVES)), min_size=1, unique=True), st.booleans(), st.integers(0, 9))
def test_both_forms_are_a_plain_loop(names: list[str], normalise: bool, seed: int) -> None:
    if names == ["action_mask"]:
        return
    space = composite([(name, LEAVES[name], (name,)) for name in names])
    _check(space, normalise, seed)


@pytest.mark.parametrize("name", sorted(set(LEAVES) - {"action_mask"}))
@pytest.mark.parametrize("normalise", [False, True])
def test_a_space_without_parts(name: str, normalise: bool) -> None:
    _check(LEAVES[name], normalise, 0)


def _check(space: SpaceSpec, normalise: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    spec = network_input(space)
    assert from_json(type(spec), to_json(spec)) == spec
    size = spec.statistics_size
    mean, scale = rng.normal(size=size), rng.random(size) + 0.5
    obs = observations(space, rng, (ROWS,))
    taken = NumpyInput(spec, space, ROWS, normalise, 1.5)
    taken.load({"obs_mean": mean, "obs_scale": scale})
    identity = (np.zeros(size), np.ones(size), np.inf)
    expected = [slow(space, row, *((mean, scale, 1.5) if normalise else identity)) for row in obs]
    for _ in range(2):
        taken.take(observations(space, rng, (ROWS,)))  # buffers are used again
        np.testing.assert_allclose(taken.take(obs), np.array(expected, np.float32), rtol=1e-6, atol=1e-7)
    floats = None
    if normalise and size:
        exact = np.clip((spec.floats(obs, space) - mean) * scale, -1.5, 1.5).astype(np.float32)
        floats = torch.from_numpy(exact)
    tensor = TorchInput(spec, space)(torch.from_numpy(obs), floats)
    assert tensor.shape == (ROWS, *spec.shape) and tensor.dtype == torch.float32
    assert np.array_equal(tensor.numpy().reshape(ROWS, -1), taken.take(obs))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize(
    ("layout", "shape", "expected"),
    [
        ("auto", (7, 8, 3), (3, 7, 8)),
        ("auto", (7, 8, 1), (1, 7, 8)),
        ("auto", (84, 84, 4), (4, 84, 84)),
        ("auto", (4, 84, 84), (4, 84, 84)),
        ("auto", (3, 7, 3), (3, 7, 3)),
        ("auto", (10, 10, 6), (10, 10, 6)),
        ("hwc", (10, 10, 6), (6, 10, 10)),
        ("chw", (7, 8, 3), (7, 8, 3)),
    ],
)
def test_the_layout_of_images(layout: str, shape: tuple[int, ...], expected: tuple[int, ...], dtype: str) -> None:
    """Of floats, each pixel is normalised with its own statistics, which are in the order of the env."""
    space = SpaceSpec("box", shape, dtype)
    section = NetworkSection("cnn", (8,), kernels=(1,), channels=(2,), strides=(1,), image_layout=layout)  # type: ignore[arg-type]
    spec = network_input(space, section)
    assert (spec.shape, spec.channels_last) == (expected, expected != shape)
    rng = np.random.default_rng(0)
    obs, size = observations(space, rng, (ROWS,)), spec.statistics_size
    mean, scale = rng.normal(size=size), rng.random(size) + 0.5
    floats = np.clip((spec.floats(obs, space) - mean) * scale, -1.5, 1.5).astype(np.float32) if size else None
    seen = obs if floats is None else floats.reshape(ROWS, *shape)
    images = np.moveaxis(seen, -1, 1) if spec.channels_last else seen
    acting = ObservationInput(
        ActingSpec((), "categorical", space, space, input=spec, normalise_obs=True, obs_clip=1.5), ROWS
    )
    acting.load({"obs_mean": mean, "obs_scale": scale})
    assert np.array_equal(acting.take(obs).reshape(ROWS, *expected), images)
    normalised = None if floats is None else torch.from_numpy(floats)
    assert np.array_equal(TorchInput(spec, space)(torch.from_numpy(obs), normalised).numpy(), images)
    assert (
        next(layer for layer in tower("q", section, space, 2, output_gain=1.0) if layer.kind == "conv").inputs
        == expected[0]
    )
    flat = network_input(space, NetworkSection(image_layout=layout))  # type: ignore[arg-type]
    assert flat.shape == shape, "an mlp sees the numbers in their order"


@pytest.mark.parametrize(
    ("space", "section", "scaled"),
    [
        (IMAGE, NetworkSection(), True),
        (GRID, NetworkSection(), False),
        (IMAGE, NetworkSection(scale_images=False), False),
        (SpaceSpec("box", (128,), "uint8", low=(0.0,), high=(255.0,)), NetworkSection(), False),
    ],
)
def test_only_images_are_scaled_and_once(space: SpaceSpec, section: NetworkSection, scaled: bool) -> None:
    kinds = [layer.kind for layer in tower("q", section, space, 2, output_gain=1.0)]
    assert (kinds.count("scale") == 1) == scaled
    assert network_input(space, section).parts[0].divisor == 1, "the tower divides an observation that is one image"
    inside = composite([("x", space, ("x",)), ("y", LEAVES["float"], ("y",))])
    assert (network_input(inside, section).parts[0].divisor == 255) == scaled
    assert "scale" not in [layer.kind for layer in tower("q", section, inside, 2, output_gain=1.0)]


def test_a_cnn_of_parts_or_numbers_is_refused() -> None:
    space = composite([("image", IMAGE, ("image",)), ("v", LEAVES["float"], ("v",))])
    with raises(ConfigError, key=("network", "kind"), value="cnn", fix="write mlp"):
        tower("q", NetworkSection("cnn"), space, 2, output_gain=1.0)
    with raises(ConfigError, key=("network", "kind"), value="cnn", fix="write mlp"):
        tower("q", NetworkSection("cnn"), LEAVES["discrete"], 2, output_gain=1.0)


def test_a_mask_alone_is_not_an_input() -> None:
    with raises(
        ConfigError,
        key=("env", "id"),
        what="its observations have no part besides 'action_mask': the network has no input",
    ):
        network_input(composite([("action_mask", LEAVES["action_mask"], ("action_mask",))]))
