"""Mutants of a source file: each is one changed expression or statement, named by its function and its text."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
}  # fmt: skip
LEAST_TEXT = 12
"""A shorter expression is named by the one that it is in."""


@dataclass(frozen=True)
class Mutant:
    """One change. The rest of the file may change without it: it has no line number."""

    part: str
    file: str
    function: str
    before: str
    after: str
    nth: int
    """Of those with the same text in the function, from 0."""

    def __str__(self) -> str:
        where = f"{self.file} {self.function}".rstrip()
        return f"{where}: {self.before} -> {self.after}" + (f" #{self.nth}" if self.nth else "")


class Change(NamedTuple):
    """A mutant of a file, and how its source becomes that of the mutant."""

    mutant: Mutant
    lines: range
    """Of the source, that are executed where the change takes effect: the statement, or its head."""
    at_import: bool
    source: str


class _Place(NamedTuple):
    node: ast.AST
    statement: ast.stmt
    parents: tuple[ast.AST, ...]
    """From the statement on, without it where it is the node."""
    holder: ast.AST
    function: str
    in_function: bool


def changes_of(part: str, path: Path, root: Path) -> Iterator[Change]:
    """Every mutant of a file: comparisons, operators, constants and conditions changed, calls left out.

    Not in annotations, and not in texts with values in them, whose only effect is what a message states.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    file, seen = str(path.relative_to(root)), Counter[tuple[str, str, str]]()
    for place in list(_places(tree)):
        shown = next((node for node in (place.node, *reversed(place.parents)) if _is_long(node)), place.statement)
        before = _head(shown)
        for changed in _changes(place.node):
            ast.copy_location(changed, place.node)
            if ast.unparse(changed) == ast.unparse(place.node):
                continue
            _replace(place.holder, place.node, changed)
            after = _head(changed if shown is place.node else shown)
            source = ast.unparse(ast.fix_missing_locations(tree))
            _replace(place.holder, changed, place.node)
            key = place.function, before, after
            mutant = Mutant(part, file, *key, seen[key])
            seen[key] += 1
            yield Change(mutant, _lines(place.statement), not place.in_function, source)


def _places(tree: ast.Module) -> Iterator[_Place]:
    def visit(node: ast.AST, holder: ast.AST, above: _Place | None, function: str, inside: bool) -> Iterator[_Place]:
        if isinstance(node, ast.JoinedStr):
            return
        parents = (*above.parents, above.node) if above is not None and not isinstance(node, ast.stmt) else ()
        statement = node if isinstance(node, ast.stmt) else above.statement if above is not None else None
        place = None
        if statement is not None:
            place = _Place(node, statement, parents, holder, function, inside)
            yield place
        is_function = isinstance(node, ast.FunctionDef)
        name = f"{function}.{node.name}".lstrip(".") if isinstance(node, ast.ClassDef | ast.FunctionDef) else function
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child, node, place, name, inside or (is_function and field == "body"))

    yield from visit(tree, tree, None, "", False)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            yield ast.Compare(node.left, [SWAPS[type(op)]()], node.comparators)
        case ast.BoolOp():
            yield ast.BoolOp(SWAPS[type(node.op)](), node.values)
        case ast.BinOp() if type(node.op) in SWAPS:
            yield ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield ast.Constant(node.value + 1)
            yield ast.Constant(node.value - 1)
        case ast.If() | ast.While() if not _is_negated_by_part(node.test):
            yield type(node)(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        case ast.IfExp() if not _is_negated_by_part(node.test):
            yield ast.IfExp(node.test, node.orelse, node.body)
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Delete(targets=[ast.Subscript()]):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.Return(value=ast.Constant()):
            return
        case ast.Return(value=ast.expr()):
            yield ast.Return(ast.Constant(None))
        case ast.With():
            yield ast.If(ast.Constant(True), node.body, [])


def _is_negated_by_part(test: ast.expr) -> bool:
    """Whether a change of an operator in it is the same mutant as that of the whole."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return isinstance(test.ops[0], ast.Eq | ast.NotEq | ast.Is | ast.IsNot | ast.In | ast.NotIn)
    is_not = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    return isinstance(test, ast.Constant) or is_not or ast.unparse(test) == "TYPE_CHECKING"


def _replace(holder: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for field, value in ast.iter_fields(holder):
        if value is old:
            setattr(holder, field, new)
        elif isinstance(value, list):
            value[:] = [new if item is old else item for item in value]


def _is_long(node: ast.AST) -> bool:
    return isinstance(node, ast.stmt | ast.expr) and len(_head(node)) >= LEAST_TEXT


def _head(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0]


def _lines(statement: ast.stmt) -> range:
    match statement:
        case ast.Match():
            first = statement.cases[0].pattern.lineno
        case ast.If() | ast.While() | ast.For() | ast.With() | ast.FunctionDef() | ast.ClassDef() | ast.Try():
            first = statement.body[0].lineno
        case _:
            first = (statement.end_lineno or statement.lineno) + 1
    return range(statement.lineno, max(first, statement.lineno + 1))
