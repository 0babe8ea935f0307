"""Every kind is short and written on the public seam; what is counted, and what is found."""

from __future__ import annotations

import pytest

from benchmarks.kinds import code_lines, kinds, private_names

MOST_LINES = 120
LONGER = {"sac": 175}
"""Two algorithms: for continuous and for discrete actions."""
TEXT = '''"""Docstring
of two lines."""

import a._b
from c import _d, e  # a comment
from .f import g

# A comment.
class H:
    """Docstring."""

    _field = e("""text
    of two lines""")

    def h(self):
        return self._field + e()._other + g.__name__
'''


def test_lines_of_code_are_counted_and_private_names_found() -> None:
    assert code_lines(TEXT) == 8
    assert private_names(TEXT) == ["a._b", "c._d", "_other"]


@pytest.mark.parametrize("kind", kinds())
def test_a_kind_is_short_and_uses_public_names(kind: str) -> None:
    text = kinds()[kind]
    assert code_lines(text) <= LONGER.get(kind, MOST_LINES)
    assert private_names(text) == []
