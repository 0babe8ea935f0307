"""Figures of the structure: files, functions, imports, comparisons with the name of a mode or the text of an error.

`python -m benchmarks.structure [--json] [ROOT]` prints them; ROOT is a checkout, by default this one.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from zmqrl.config.codec import names_of
from zmqrl.config.sections import Config
from zmqrl.types import MODES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SMALL_LINES = 50
CLASS_LINES, CLASS_METHODS = 250, 25
FILE_LINES, FUNCTION_LINES = 300, 40
SECTIONS, REFUSALS = frozenset(names_of(Config)), ("ConfigError", "HostUnreachable")
TEXTS, ERRORS = ("err", "stderr"), ("error", "caught", "failed", "refused", "exception")
"""Names in tests of what an error prints, and of errors."""
OF_ERROR, TEXTS_OF = re.compile(r"(Error|Exception|Fault|Failed)\b"), ("str({})", "f'{}'", "{}.args")
"""Annotations of arguments that are errors, and forms of their text (`_form`)."""
SEARCHES, SHOWING = ("search", "match", "fullmatch", "sub", "findall"), ("strip", "splitlines", "encode", "join")
"""Functions that read a text, and methods that only show it."""
Modules = Mapping[str, ast.Module]


@dataclass(frozen=True)
class Structure:
    """Of the package of one checkout; tests are counted for `text_comparisons` alone."""

    files: int
    lines: int
    median_file: float
    largest_file: tuple[str, int]
    long_files: list[str]
    """Files of more than `FILE_LINES` lines."""
    largest_package: tuple[str, int]
    """The folder with most files, each `__init__.py` without code left out."""
    functions: int
    function_p90: int
    function_max: tuple[str, int]
    long_functions: list[str]
    """Functions of more than `FUNCTION_LINES` lines."""
    repeated_classes: list[str]
    """Names of classes that two or more modules define."""
    large_classes: list[str]
    """Classes of more than `CLASS_LINES` lines or `CLASS_METHODS` methods."""
    small_with_one_importer: list[str]
    """Files below `SMALL_LINES` lines that one other file imports."""
    fan_out: tuple[str, int]
    """The module that imports most others of the package, also within functions."""
    cycles: list[list[str]]
    """Of packages that import each other."""
    file_cycles: list[list[str]]
    """Of modules that import each other; imports within functions, which wait for a first use, are left out."""
    imports_up: list[str]
    """Imports of a higher layer of `pyproject.toml`, also those for type checkers alone."""
    mode_comparisons: list[str]
    lines_per_package: dict[str, int]
    sentences_with_a_key: list[str]
    """`ConfigError("SECTION.KEY: ...")` where the error has a field for the key."""
    texts_read: list[str]
    """Modules that search or cut the text of an exception."""
    text_comparisons: list[str]
    """Tests that compare the text of an error: `match=` of `raises`, and comparisons with `str(error)` or stderr."""


@functools.cache
def _nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes below, which a dozen rules look at."""
    return tuple(ast.walk(tree))


def measure(root: Path) -> Structure:
    """Read every module of `root/zmqrl`."""
    paths = {_name(root, path): path for path in sorted((root / "zmqrl").rglob("*.py"))}
    modules = {name: ast.parse(path.read_text()) for name, path in paths.items()}
    lines = {name: len(path.read_text().splitlines()) for name, path in paths.items()}
    files = {name: count for name, count in lines.items() if paths[name].name != "__init__.py"}
    functions = dict(_functions(modules))
    imports = {name: set(_imports(_nodes(tree), modules, name)) for name, tree in modules.items()}
    at_once = {name: set(_imports(_at_import(tree), modules, name)) for name, tree in modules.items()}
    importers = {name: {user for user, found in imports.items() if name in found} for name in modules}
    packages: dict[str, int] = defaultdict(int)
    for name, count in lines.items():
        packages[_package(name)] += count
    lengths = sorted(functions.values())
    return Structure(
        files=len(files),
        lines=sum(lines.values()),
        median_file=statistics.median(files.values()),
        largest_file=max(files.items(), key=lambda item: item[1]),
        long_files=sorted(name for name, count in files.items() if count > FILE_LINES),
        largest_package=max(_files_per_folder(paths, lines).items(), key=lambda item: item[1]),
        functions=len(functions),
        function_p90=lengths[int(0.9 * len(lengths))],
        function_max=max(functions.items(), key=lambda item: item[1]),
        long_functions=[name for name, count in functions.items() if count > FUNCTION_LINES],
        repeated_classes=_repeated_classes(modules),
        large_classes=list(_large_classes(modules)),
        small_with_one_importer=[n for n, c in files.items() if c < SMALL_LINES and len(importers[n]) == 1],
        fan_out=max(((name, len(found)) for name, found in imports.items()), key=lambda item: item[1]),
        cycles=_cycles(_of_packages(imports)),
        file_cycles=_cycles(at_once),
        imports_up=list(_imports_up(root, imports)),
        mode_comparisons=list(_mode_comparisons(modules)),
        lines_per_package=dict(sorted(packages.items())),
        sentences_with_a_key=[f"{name}:{node.lineno}" for name, node in _calls(modules) if _has_key_in_sentence(node)],
        texts_read=[name for name, tree in modules.items() if _reads_text(tree)],
        text_comparisons=list(_text_comparisons(root)),
    )


def _name(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _package(name: str) -> str:
    return name.split(".")[1] if name.count(".") > 1 else "zmqrl"


def _files_per_folder(paths: Mapping[str, Path], lines: Mapping[str, int]) -> Mapping[str, int]:
    counted = [name for name, path in paths.items() if lines[name] or path.name != "__init__.py"]
    return Counter(name if paths[name].name == "__init__.py" else name.rpartition(".")[0] for name in counted)


def _repeated_classes(modules: Modules) -> list[str]:
    names = Counter(node.name for tree in modules.values() for node in tree.body if isinstance(node, ast.ClassDef))
    return sorted(name for name, count in names.items() if count > 1)


def _functions(modules: Modules) -> Iterator[tuple[str, int]]:
    for name, tree in modules.items():
        for node in _nodes(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.end_lineno is not None
                yield f"{name}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1


def _large_classes(modules: Modules) -> Iterator[str]:
    for name, tree in modules.items():
        for node in _nodes(tree):
            if isinstance(node, ast.ClassDef):
                assert node.end_lineno is not None
                methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
                if node.end_lineno - node.lineno >= CLASS_LINES or methods > CLASS_METHODS:
                    yield f"{name}.{node.name}"


def _imports(nodes: Iterable[ast.AST], modules: Modules, name: str) -> Iterator[str]:
    """The modules of the package that a module imports; `from zmqrl import errors` imports `zmqrl.errors` alone."""
    for node in nodes:
        named: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            named = [other if other in modules else node.module for other in named]
        elif isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        yield from (other for other in named if other in modules and other != name)


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes outside functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from _at_import(child)


def _of_packages(imports: Mapping[str, set[str]]) -> Mapping[str, set[str]]:
    edges: dict[str, set[str]] = defaultdict(set)
    for name, found in imports.items():
        for other in found:
            if _package(other) != _package(name) and "zmqrl" not in (_package(other), _package(name)):
                edges[_package(name)].add(_package(other))
    return edges


def _imports_up(root: Path, imports: Mapping[str, set[str]]) -> Iterator[str]:
    with (root / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    depth = {f"zmqrl.{name.strip(' ()')}": i for i, layer in enumerate(layers) for name in layer.split(":")}
    for name, found in imports.items():
        for other in sorted(found):
            above, own = (depth.get(".".join(each.split(".")[:2])) for each in (other, name))
            if above is not None and own is not None and above < own:
                yield f"{name} -> {other}"


def _cycles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Sets of nodes each of which can reach the others (Tarjan 1972, by two searches: there are few)."""
    reach = {node: _reachable(node, edges) for node in edges}
    groups = {frozenset(o for o in reach[p] if p in reach.get(o, ())) for p in reach if p in reach[p]}
    return sorted(sorted(group) for group in groups)


def _reachable(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    todo, seen = [start], set[str]()
    while todo:
        for package in edges.get(todo.pop(), ()):
            if package not in seen:
                seen.add(package)
                todo.append(package)
    return seen


def _mode_comparisons(modules: Modules) -> Iterator[str]:
    for name, tree in modules.items():
        compared = [node for node in _nodes(tree) if isinstance(node, ast.Compare)]
        for node in sorted(compared, key=lambda node: node.lineno):
            constants = [n.value for n in _nodes(node) if isinstance(n, ast.Constant)]
            if any(value in MODES for value in constants if isinstance(value, str)):
                yield f"{name}:{node.lineno}"


def _calls(modules: Modules) -> Iterator[tuple[str, ast.Call]]:
    for name, tree in modules.items():
        yield from ((name, node) for node in _nodes(tree) if isinstance(node, ast.Call))


def _has_key_in_sentence(call: ast.Call) -> bool:
    if ast.unparse(call.func) not in REFUSALS or len(call.args) != 1 or call.keywords:
        return False
    text = ast.unparse(call.args[0]).lstrip("f'\"")
    section = re.match(r"[a-z_]+", text)
    return section is not None and section[0] in SECTIONS and re.match(r"[\w.{}]+: ", text) is not None


def _reads_text(tree: ast.Module) -> bool:
    """Whether it searches, cuts or compares the text of an exception: `str(error)`, `error.args`, or a name for it."""
    texts = _texts_of_errors(tree)
    return any(_reads_one_of(texts, node) for node in _nodes(tree))


def _texts_of_errors(tree: ast.Module) -> Collection[str]:
    """Forms (`_form`) of expressions whose value is the text of an exception."""
    errors = set(ERRORS)
    for node in _nodes(tree):
        if isinstance(node, ast.ExceptHandler) and node.name is not None:
            errors.add(node.name)
        elif (
            isinstance(node, ast.arg) and node.annotation is not None and OF_ERROR.search(ast.unparse(node.annotation))
        ):
            errors.add(node.arg)
    texts = {form.format(name) for name in errors for form in TEXTS_OF}
    for node in _nodes(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_one_of(texts, node.value):
            texts.add(node.targets[0].id)
    return texts


def _is_one_of(texts: Collection[str], node: ast.expr) -> bool:
    """Whether it is such a text, or what a chain of its methods returns: `str(error).strip().lower()`."""
    while _form(node) not in texts:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            return False
        node = node.func.value
    return True


def _form(node: ast.expr) -> str:
    """`str(NAME)`, `f'{NAME}'`, `NAME.args` or `NAME`, where NAME may be an attribute; else empty."""
    match node:
        case ast.Call(func=ast.Name("str"), args=[of]):
            return f"str({_last_name(of)})"
        case ast.JoinedStr([ast.FormattedValue(of)]):
            return f"f'{_last_name(of)}'"
        case ast.Subscript(ast.Attribute(of, "args")):
            return f"{_last_name(of)}.args"
    return node.id if isinstance(node, ast.Name) else ""


def _reads_one_of(texts: Collection[str], node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        is_empty = all(isinstance(each, ast.Constant) and each.value in (None, "") for each in node.comparators)
        return not is_empty and any(_is_one_of(texts, each) for each in (node.left, *node.comparators))
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    is_search = node.func.attr in SEARCHES and any(_is_one_of(texts, each) for each in node.args)
    return is_search or (node.func.attr not in SHOWING and _is_one_of(texts, node.func.value))


def _text_comparisons(root: Path) -> Iterator[str]:
    for path in sorted((root / "tests").rglob("*.py")):
        nodes = [node for node in _nodes(ast.parse(path.read_text())) if _compares_text(node)]
        yield from sorted({f"{path.relative_to(root)}:{node.lineno}" for node in nodes})  # type: ignore[attr-defined]


def _compares_text(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr in ("startswith", "endswith"):
            return _is_text_of_error(function.value)
        return ast.unparse(function).endswith("raises") and any(each.arg == "match" for each in node.keywords)
    if not isinstance(node, ast.Compare):
        return False
    if all(isinstance(each, ast.NotIn) for each in node.ops):
        return False  # what is absent, such as a secret
    sides = [node.left, *node.comparators]
    is_of_words = not any(isinstance(side, ast.Constant) and side.value in (None, "") for side in sides)
    return is_of_words and any(map(_is_text_of_error, sides))


def _is_text_of_error(node: ast.expr) -> bool:
    """Whether it is `str(caught.value)`, `ended.err` or `err`."""
    return _is_str_of_error(node, (*ERRORS, "value")) or _last_name(node) in TEXTS


def _is_str_of_error(node: ast.expr, errors: Collection[str] = ERRORS) -> bool:
    is_str = isinstance(node, ast.Call) and ast.unparse(node.func) == "str" and bool(node.args)
    return is_str and _last_name(node.args[0]) in errors  # type: ignore[attr-defined]


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = asdict(measure(arguments.root))
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        shown = f"{len(value)}: {', '.join(map(str, value))}" if isinstance(value, list) else value
        print(f"{name.replace('_', ' ')}: {shown}")


if __name__ == "__main__":
    main()
