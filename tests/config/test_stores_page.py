"""The examples of docs/stores.md: each is planned as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zmqrl.planning.checks import check_parts
from zmqrl.planning.configure import load_config

PAGE = (Path(__file__).parents[2] / "docs" / "stores.md").read_text()
FILES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
INLINE = re.findall(r"`store: (\{[^`]*\})`", PAGE)
IN_ASYNC = "run: {{preset: cartpole-dqn, mode: async}}\nstore: {}\nhosts: {{local: {{workers: 1}}}}"


def test_examples_found() -> None:
    assert (len(FILES), len(INLINE)) == (2, 3)


@pytest.mark.parametrize("text", [*FILES, *map(IN_ASYNC.format, INLINE)])
def test_an_example_is_valid(tmp_path: Path, text: str) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(text)
    check_parts(load_config(None, file))
