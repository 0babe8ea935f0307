"""Modules and files that docstrings name exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from zmqrl.config.codec import names_of
from zmqrl.config.sections import Config

PACKAGE = Path(__file__).parents[1] / "zmqrl"
FILES = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")}
PACKAGES = {path.parts[0] for path in FILES if len(path.parts) > 1}
VALUES = frozenset(names_of(Config)) | {"config"}
"""Names of packages that are sections or variables too: `store.kind`, `config.learning_rate`."""
OTHER = ("json", "yaml", "jsonl")
"""Ends of names of files that are no modules, such as `drill.json`."""


def stale(text: str, folder: Path = Path()) -> Iterator[str]:
    """The modules `package.name` and the files `name.py` in `text` that are not in the package.

    `folder`: of the module whose docstring it is.
    """
    for found in re.findall(r"`([\w./]+)`", text):
        package, _, name = found.removeprefix("zmqrl.").partition(".")
        if found.endswith(".py"):
            if not {Path(found), folder / found} & FILES and not (PACKAGE.parent / found).exists():
                yield found
        elif package in PACKAGES - VALUES and name and name not in OTHER and "/" not in found:
            name = name.split(".")[0]
            is_module = bool({Path(package, f"{name}.py"), Path(package, name, "__init__.py")} & FILES)
            if not is_module and name not in (PACKAGE / package / "__init__.py").read_text():
                yield found


def docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def test_docstrings_name_modules_and_files_that_exist() -> None:
    found = {
        str(path): [name for text in docstrings(PACKAGE / path) for name in stale(text, path.parent)] for path in FILES
    }
    assert not {path: names for path, names in found.items() if names}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see `agent.child_process`, `zmqrl.agent.child_process.ChildProcess` and `agent/child_process.py`", []),
        ("`agent.former`, `zmqrl.agent.former.Name`", ["agent.former", "zmqrl.agent.former.Name"]),
        ("`agent/former.py` and `former.py`", ["agent/former.py", "former.py"]),
        ("`networks.kinds`, `store.kind`, `drill.json`, `child.former`", []),
    ],
)
def test_a_stale_reference_is_found(text: str, found: list[str]) -> None:
    assert list(stale(text)) == found
