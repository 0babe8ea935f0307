"""EnvPool by the class of docs/envs.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("envpool", reason="EnvPool is not installed")

from tests.support.running import ROOT
from zmqrl.config.sections import EnvSection
from zmqrl.envs.make import probe
from zmqrl.envs.vector import NativeVectorEnv, make_vector_env
from zmqrl.types import Array

BLOCK = re.compile(r"^```python\n# pools\.py\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECTION = EnvSection(id="pools:Pool", kwargs={"task": "CartPole-v1"}, num_envs=3)
STEPS = 100

pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered by casting:UserWarning")  # of EnvPool's spaces


@pytest.fixture(autouse=True)
def pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the page, where it can be imported."""
    found = BLOCK.search((ROOT / "docs" / "envs.md").read_text())
    assert found is not None
    (tmp_path / "pools.py").write_text(found[1])
    monkeypatch.syspath_prepend(str(tmp_path))


def walked(vector_env: int) -> Iterator[Array]:
    spec = probe(SECTION)
    assert (spec.vector_only, spec.observation.shape, spec.action.n) == (True, (4,), 2)
    env = make_vector_env(SECTION, spec, "async", 1, vector_env)
    assert isinstance(env, NativeVectorEnv)
    yield env.start()
    ended = 0
    for _ in range(STEPS):
        result = env.step(np.ones(3, np.int64))  # `step` checks that a reset follows the end of an episode
        ended += int(result.terminated.sum())
        yield result.obs
    assert ended > 3, "each env ends several episodes by action 1"
    env.close()


def test_its_steps_follow_from_the_seed_of_the_vector_env() -> None:
    first, again, other = (np.stack(list(walked(number))) for number in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other) and not np.array_equal(first[:, 0], first[:, 1])
