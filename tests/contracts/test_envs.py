"""The suite of `zmqrl.testing` over every kind of env."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contracts.suites import name_of
from zmqrl.config.sections import EnvSection
from zmqrl.envs import base
from zmqrl.envs.make import probe
from zmqrl.envs.vector import make_vector_env
from zmqrl.plugins import concrete, modules
from zmqrl.testing.env import ENV, MODES, EnvMaker
from zmqrl.types import ModeName

ENVS = {
    "gymnasium": EnvSection(num_envs=3),
    "continuous": EnvSection(id="Pendulum-v1", num_envs=3, kwargs={"max_episode_steps": 7}),
    "dotted path": EnvSection(id="tests.envs.odd_envs:Walker", num_envs=3),
    "offset actions": EnvSection(id="tests.envs.odd_envs:Offset", num_envs=2, kwargs={"start": 5}),
    "state as array": EnvSection(id="tests.envs.odd_envs:Stateful", num_envs=2, recovery="state"),
    "state as bytes": EnvSection(
        id="tests.envs.odd_envs:Stateful", num_envs=2, recovery="state", kwargs={"form": "bytes"}
    ),
    "dict with a mask": EnvSection(id="tests.envs.space_envs:Mixed", num_envs=2),
    "tuple": EnvSection(id="tests.envs.space_envs:Pair", num_envs=2),
    "discrete observations": EnvSection(id="tests.envs.space_envs:Numbered", num_envs=2),
    "multi-discrete observations": EnvSection(id="tests.envs.space_envs:Several", num_envs=2),
    "partly bounded actions": EnvSection(id="tests.envs.space_envs:HalfBounded", num_envs=2),
    "masked multi-discrete actions": EnvSection(id="tests.envs.space_envs:MaskedSeveral", num_envs=2),
    "several agents": EnvSection(id="tests.envs.agent_envs:Walkers", num_envs=6, max_episode_steps=11),
    "witness": EnvSection(id="zmqrl.drill.witness:WitnessEnv", num_envs=2),
}


@pytest.fixture(params=ENVS)
def maker(request: pytest.FixtureRequest, tmp_path: Path) -> EnvMaker:
    section = ENVS[request.param]
    if request.param == "witness":
        section = EnvSection(id=section.id, num_envs=section.num_envs, kwargs={"record": str(tmp_path)})
    return lambda: section


@pytest.mark.parametrize("check", ENV, ids=name_of)
def test_contract(check: Callable[[EnvMaker], None], maker: EnvMaker) -> None:
    check(maker)


def test_every_vector_env_is_among_them() -> None:
    found = {
        kind
        for name in modules("zmqrl.envs", base.VectorEnv)
        for kind in concrete(f"zmqrl.envs.{name}", base.VectorEnv)
    }

    def used(section: EnvSection, mode: ModeName) -> type[base.VectorEnv]:
        env = make_vector_env(section, probe(section), mode, 1, 0)
        env.close()
        return type(env)

    sections = [section for section in ENVS.values() if "witness" not in section.id]
    assert {used(section, mode) for section in sections for mode in MODES} == found
