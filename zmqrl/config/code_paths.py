"""`code.sync`: paths are relative to the file that names them, and must be there."""

from __future__ import annotations

import os
from pathlib import Path

from zmqrl.config.sections import CodeSection
from zmqrl.config.yaml_source import Branch, Leaf, Node, Source
from zmqrl.errors import ConfigError


def with_absolute_paths(tree: Branch) -> Branch:
    """`code.sync` as absolute paths, while it is known where each was written; flags count from the current folder."""
    code = tree.children.get("code")
    sync = tree.at(("code", "sync"))
    if not isinstance(code, Branch) or not isinstance(sync, Leaf) or not isinstance(sync.value, list):
        return tree
    paths = [_absolute(path, sync.source) if isinstance(path, str) else path for path in sync.value]
    changed: dict[str, Node] = {**code.children, "sync": Leaf(paths, sync.source)}
    return Branch(tree.source, {**tree.children, "code": Branch(code.source, changed)})


def _absolute(path: str, source: Source) -> str:
    beside = Path(source.name).absolute().parent if source.line is not None else Path.cwd()
    # Links are not followed: a link's own name is the name of the module.
    return os.path.normpath(Path(beside, Path(path).expanduser()))


def check_code(code: CodeSection) -> None:
    """Raise `ConfigError` when something to send is not there, or two things have one name."""
    named: dict[str, str] = {}
    for path in code.sync:
        name = Path(path).name
        if not Path(path).exists():
            raise ConfigError(f"code.sync: {path!r}: no such file or folder")
        if not name:
            raise ConfigError(f"code.sync: {path!r}: set a folder or a file inside it")
        if named.setdefault(name, path) != path:
            raise ConfigError(f"code.sync: {path!r} and {named[name]!r}: both would be imported as {name!r}")
