"""Packed observations: parts are views at aligned places, for numpy and torch alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zmqrl.config.codec import from_json, to_json
from zmqrl.spaces import ALIGNMENT, SpaceSpec, composite, unpack, view

DTYPES = ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "bool")
LEADS = ((4,), (3, 2), ())


@st.composite
def spaces(draw: Any) -> SpaceSpec:
    kinds = draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=6))
    shapes = [tuple(draw(st.lists(st.integers(1, 3), max_size=3))) for _ in kinds]
    boxes = (SpaceSpec("box", shape, kind) for shape, kind in zip(shapes, kinds, strict=True))
    return composite([(f"p{number}", box, (f"p{number}",)) for number, box in enumerate(boxes)])


def filled(space: SpaceSpec, lead: tuple[int, ...], seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """A packed array, and what was written into each part."""
    rng = np.random.default_rng(seed)
    packed, written = np.zeros((*lead, *space.shape), space.dtype), {}
    for part in space.parts:
        values = (rng.random((*lead, *part.space.shape)) * 9).astype(part.space.dtype)
        view(packed, space, part)[...] = values
        written[part.name] = values
    return packed, written


@settings(max_examples=60, deadline=None)
@given(spaces(), st.sampled_from(LEADS), st.integers(0, 99))
def test_every_part_comes_back_for_numpy_and_torch(space: SpaceSpec, lead: tuple[int, ...], seed: int) -> None:
    packed, written = filled(space, lead, seed)
    found, tensors = unpack(packed, space), unpack(torch.from_numpy(packed), space)
    assert list(found) == list(tensors) == list(written)
    for name, values in written.items():
        assert found[name].dtype == values.dtype and found[name].shape == values.shape
        assert np.array_equal(found[name], values)
        assert np.array_equal(tensors[name].numpy(), values)
        assert tensors[name].numpy().dtype == values.dtype


@settings(max_examples=60, deadline=None)
@given(spaces())
def test_parts_are_aligned_views(space: SpaceSpec) -> None:
    packed, _ = filled(space, (3,), 0)
    tensor = torch.from_numpy(packed)
    assert space.dtype == "float32" or space.nbytes % ALIGNMENT == 0
    for name, part in unpack(packed, space).items():
        assert np.shares_memory(part, packed)
        assert part.flags.aligned, name
    for part in unpack(tensor, space).values():
        assert tensor.data_ptr() <= part.data_ptr() < tensor.data_ptr() + packed.nbytes


def test_a_slice_of_a_batch_is_unpacked_without_a_copy() -> None:
    space = composite(
        [("a", SpaceSpec("box", (2, 3), "float64"), ("a",)), ("b", SpaceSpec("discrete", (), "int64", 4), ("b",))]
    )
    packed, written = filled(space, (5, 4), 1)
    part = unpack(packed[1:4, 2:], space)
    assert np.array_equal(part["a"], written["a"][1:4, 2:]) and np.shares_memory(part["a"], packed)
    tensors = unpack(torch.from_numpy(packed)[1:4, 2:], space)
    assert np.array_equal(tensors["b"].numpy(), written["b"][1:4, 2:])


def test_float32_parts_are_one_flat_float32_array() -> None:
    space = composite(
        [("a", SpaceSpec("box", (3,), "float32"), ("a",)), ("b", SpaceSpec("box", (2, 2), "float32"), ("b",))]
    )
    assert (space.kind, space.shape, space.dtype) == ("parts", (7,), "float32")
    rows = np.arange(14, dtype=np.float32).reshape(2, 7)
    assert unpack(rows, space)["b"].tolist() == [[[3, 4], [5, 6]], [[10, 11], [12, 13]]]


def test_a_space_without_parts_is_one_part_without_a_name() -> None:
    rows = np.zeros((2, 3), np.float32)
    assert unpack(rows, SpaceSpec("box", (3,), "float32"))[""] is rows


def test_specs_travel_as_json() -> None:
    space = composite(
        [
            ("a", SpaceSpec("multi_discrete", (2,), "int64", nvec=(3, 4)), ("a", 0)),
            ("b", SpaceSpec("box", (1,), "bool"), (1,)),
        ]
    )
    assert from_json(SpaceSpec, to_json(space)) == space


def test_multi_discrete_actions_in_the_env() -> None:
    space = SpaceSpec(
        "multi_discrete", (4,), "int64", nvec=(3, 3, 3, 3), starts=(1, 0, 0, -1), env_dtype="int8", env_shape=(2, 2)
    )
    given_ = space.for_env(np.array([[0, 1, 2, 0], [2, 2, 2, 2]], np.uint8))
    assert given_.dtype == np.int8 and given_.tolist() == [[[1, 1], [2, -1]], [[3, 2], [2, 1]]]


def test_only_bytes_from_0_to_255_of_rank_3_are_an_image() -> None:
    image = SpaceSpec("box", (3, 8, 8), "uint8", low=(0.0,), high=(255.0,))
    assert image.is_image and SpaceSpec("box", (3, 8, 8), "uint8").is_image
    for other in (
        SpaceSpec("box", (3, 8, 8), "uint8", low=(0.0,), high=(10.0,)),
        SpaceSpec("box", (3, 8, 8), "float32", low=(0.0,), high=(255.0,)),
        SpaceSpec("box", (64,), "uint8", low=(0.0,), high=(255.0,)),
    ):
        assert not other.is_image
