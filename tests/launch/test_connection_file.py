"""What a host that SSH cannot reach is given: read back the same by its owner's `zmqrl worker`, else exit code 2."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.plans import stand_in_plan
from tests.support.raising import raises
from zmqrl.config.plan import Boot
from zmqrl.errors import ConfigError
from zmqrl.launch.connection_file import read_connection_file, write_connection_file
from zmqrl.messages.command import Join

JOIN = Join(["10.0.0.1"], (1, 2, 3), None, "server", "token")
NOT_ONE = "is not a connection file: "
Change = Callable[[dict[str, Any]], object]


def written(folder: Path) -> tuple[Path, Boot]:
    boot = Boot("agent", 0, 0, "far", stand_in_plan(folder / "run"), streams_logs=True)
    return write_connection_file(folder / "private" / "run", boot, JOIN), boot


def test_what_was_written_is_read_back_and_nobody_else_can(tmp_path: Path) -> None:
    path, boot = written(tmp_path)
    assert read_connection_file(path) == (boot, JOIN)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with raises(ConfigError, value=str(path), what="contains a token and is readable by other users"):
        read_connection_file(path)


@pytest.mark.parametrize(("change", "what"), [
    (lambda data: data.update(format=1), "has format 1, this zmqrl reads 2"),
    (lambda data: data.update(more=1), f"{NOT_ONE}Object contains unknown field `more`"),
    (lambda data: data["boot"].update(more=1), f"{NOT_ONE}unknown field 'more' - at `$.boot`"),
    (lambda data: data["boot"]["plan"]["config"]["run"].update(more=1),
     f"{NOT_ONE}unknown field 'more' - at `$.boot.plan.config.run`"),
    (lambda data: data["join"].pop("ports"), f"{NOT_ONE}Object missing required field `ports` - at `$.join`"),
    (lambda data: data["join"].update(ports=[1, 2]),
     f"{NOT_ONE}Expected `array` of length 3, got 2 - at `$.join.ports`"),
    (lambda data: data["boot"].update(index="0"), f"{NOT_ONE}Expected `int`, got `str` - at `$.boot.index`"),
    (lambda data: data.clear(), f"{NOT_ONE}Object missing required field `format`"),
])  # fmt: skip
def test_another_one_is_a_configuration_fault(tmp_path: Path, change: Change, what: str) -> None:
    path, _ = written(tmp_path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with raises(ConfigError, value=str(path), what=what):
        read_connection_file(path)


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff", b"[" * 100_000])
def test_garbage_is_a_configuration_fault(tmp_path: Path, content: bytes) -> None:
    path, _ = written(tmp_path)
    path.write_bytes(content)
    with raises(ConfigError, value=str(path), fix="use the file HOST.connect that the launcher wrote"):
        read_connection_file(path)
