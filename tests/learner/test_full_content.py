"""With what a full checkpoint was made: another executor is refused."""

from __future__ import annotations

import pytest

from zmqrl.data_stores.base import Full
from zmqrl.errors import ConfigError
from zmqrl.learner.full_content import check_executor
from zmqrl.types import Version


def made_with(**made: str) -> Full:
    return Full(Version(0, 7), {}, {"counters": {}, "made_with": made})


def test_another_executor_is_refused() -> None:
    check_executor(made_with(executor="eager"), "eager")
    message = (
        "^learner.executor: 'manual': full checkpoint 0-7 was made with 'eager', and a resumed run must keep it: set "
        "learner.executor: eager$"
    )
    with pytest.raises(ConfigError, match=message):
        check_executor(made_with(executor="eager"), "manual")


def test_a_full_of_0_1_was_made_with_any_executor() -> None:
    check_executor(Full(Version(0, 7), {}, {"counters": {}}), "compiled")
