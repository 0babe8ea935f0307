import pytest

from zmqrl.algorithms.sac import SAC, SACConfig
from zmqrl.config.sections import NetworkSection
from zmqrl.testing.algorithm import ALGORITHM, CONTINUOUS, VECTOR
from zmqrl.types import EnvSpec


def make():
    return SAC(SACConfig(batch_size=16), NetworkSection(hidden=(8,)), EnvSpec("toy", VECTOR, CONTINUOUS), 16, 2)


@pytest.mark.parametrize("check", ALGORITHM, ids=lambda c: c.__name__)
def test_it(check):
    check(make)
