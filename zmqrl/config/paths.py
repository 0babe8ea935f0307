"""Paths that a user wrote."""

from __future__ import annotations

import os
from pathlib import Path

from zmqrl.config.sections import CodeSection
from zmqrl.config.yaml_source import Branch, Leaf, Node, Source
from zmqrl.errors import ConfigError, key_of

SYNC = ("code", "sync")


def expanded(path: str | os.PathLike[str], key: str = "", source: str = "") -> Path:
    """`path` with the home directory in the place of `~` or `~user`.

    Args:
        path: As it was written.
        key: The key, option or argument that has it.
        source: Where it was written.

    Raises:
        ConfigError: This machine has no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        user = str(path)[1:].partition("/")[0]
        what = f"no user {user!r} on this machine" if user else "the home directory is unknown; set HOME"
        raise ConfigError(what, key=key_of(key) if key else (), value=repr(str(path)), source=source) from error


def with_absolute_paths(tree: Branch) -> Branch:
    """`code.sync` as absolute paths, while it is known where each was written; flags count from the current folder."""
    code = tree.children.get("code")
    sync = tree.at(SYNC)
    if not isinstance(code, Branch) or not isinstance(sync, Leaf) or not isinstance(sync.value, list):
        return tree
    paths = [absolute(path, sync.source, "code.sync") if isinstance(path, str) else path for path in sync.value]
    changed: dict[str, Node] = {**code.children, "sync": Leaf(paths, sync.source)}
    return Branch(tree.source, {**tree.children, "code": Branch(code.source, changed)})


def absolute(path: str, source: Source, key: str) -> str:
    """A path that was written at `source`, from the folder of that file; one of a flag from the current folder."""
    base_folder = Path(source.name).absolute().parent if source.line is not None else Path.cwd()
    # Links are not followed: a link's own name is the name of the module.
    return os.path.normpath(Path(base_folder, expanded(path, key, str(source))))


def check_code(code: CodeSection) -> None:
    """Raise `ConfigError` when something to send is not there, or two things have one name."""
    named: dict[str, str] = {}
    for path in code.sync:
        name = Path(path).name
        if not Path(path).exists():
            raise ConfigError("no such file or folder", key=SYNC, value=repr(path))
        if not name:
            raise ConfigError("set a folder or a file inside it", key=SYNC, value=repr(path))
        if named.setdefault(name, path) != path:
            both = f"{path!r} and {named[name]!r}"
            raise ConfigError(f"both would be imported as {name!r}", key=SYNC, value=both, fix="rename one")
