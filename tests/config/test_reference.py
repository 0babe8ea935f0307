"""docs/configuration.md has every key as the types have it."""

from __future__ import annotations

import re

import pytest

from generate import configuration
from zmqrl.config.kinds import SECTIONS
from zmqrl.planning.configure import kinds

PAGE = configuration.PATH.read_text() if configuration.PATH.exists() else ""


def test_the_page_is_current() -> None:
    assert configuration.text() == PAGE, "run: python -m generate.configuration"


def test_each_key_has_a_meaning() -> None:
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(rows) > 120
    assert [row[0].strip() for row in rows if not row[4].strip() and row[1].strip() != "section"] == []
    assert ["`run.checkpoint_every_s`", "number", "`10.0`", "> 0"] in [
        [cell.strip() for cell in row[:4]] for row in rows
    ]


@pytest.mark.parametrize("section", SECTIONS)
def test_the_meaning_of_a_kind_names_all_that_ship(section: str) -> None:
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{section}.kind` "))
    assert [kind for kind in kinds()[section] if f"`{kind}`" not in row.rpartition(" | ")[2]] == []
