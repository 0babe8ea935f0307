"""docs/protocol.md names every message as its type does, and every type says what has to be known of it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from generate.messages import TABLES, paragraphs, table_of, with_tables
from zmqrl.messages.orchestrator import Handshake

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
FROM_TO_WHEN = re.compile(r"[A-Z][\w,' ]+ to [\w,' ]+(, on `\w+`)?: \S.+\.")
KINDS = list(dict.fromkeys(kind for kinds in TABLES.values() for kind in kinds.values()))


def test_the_tables_of_the_protocol_are_those_of_the_types() -> None:
    page = PAGE.read_text()
    assert with_tables(page) == page, "run: python -m generate.messages"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_message_documents_sender_receiver_time_and_effect_of_a_wrong_one(kind: type[msgspec.Struct]) -> None:
    what, when, wrong = paragraphs(kind)
    assert FROM_TO_WHEN.fullmatch(when), when
    assert what.endswith(".") and wrong.endswith(".")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_message_refuses_unknown_fields(kind: type[msgspec.Struct]) -> None:
    """All but the first line of an agent, which is read before versions are compared."""
    assert kind.__struct_config__.forbid_unknown_fields != (kind is Handshake)
    assert kind.__struct_config__.frozen


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_every_field(name: str) -> None:
    table = table_of(name)
    for kind in TABLES[name].values():
        for field in kind.__struct_fields__:
            assert f"`{field}: " in table, f"{kind.__name__}.{field}"
