"""Lines of each kind of algorithm, and the private names that it uses: `python -m benchmarks.kinds`.

Counted are the lines of its module with code: blank lines, comments and docstrings are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from zmqrl.algorithms.base import Algorithm
from zmqrl.plugins import modules

FOLDER = Path(__file__).parents[1] / "zmqrl" / "algorithms"
OWN = ("self", "cls")


def kinds() -> Mapping[str, str]:
    """The text of the module of each kind."""
    paths = {path.stem: path for path in FOLDER.rglob("*.py")}
    return {kind: paths[kind].read_text() for kind in modules("zmqrl.algorithms", Algorithm)}


def code_lines(text: str) -> int:
    """Lines of a module without blank lines, comments and docstrings."""
    described: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            described |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = (line.strip() for number, line in enumerate(text.splitlines(), 1) if number not in described)
    return sum(bool(line) and not line.startswith("#") for line in lines)


def private_names(text: str) -> list[str]:
    """Names with a leading underscore that a module imports, or uses of anything but `self` and `cls`."""
    return [name for name in _foreign_names(ast.parse(text)) if any(map(_is_private, name.split(".")))]


def _foreign_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id in OWN):
            yield node.attr


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def main() -> int:
    """Print a line per kind, the shortest first."""
    rows = sorted((code_lines(text), kind, private_names(text)) for kind, text in kinds().items())
    for lines, kind, private in rows:
        print(f"{kind:12} {lines:4}  {', '.join(private)}".rstrip())
    total, count = sum(lines for lines, _, _ in rows), sum(len(private) for _, _, private in rows)
    print(f"{len(rows)} kinds, {total} lines, {count} private names")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
