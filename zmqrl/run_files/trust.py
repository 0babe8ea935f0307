"""A run of another user is opened without executing what its files name, unless this user trusts it."""

from __future__ import annotations

import logging
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from zmqrl.config.codec import replace, to_json
from zmqrl.config.hosts import LOCAL, shortened
from zmqrl.config.sections import Config, DefaultsSection, HostSection
from zmqrl.errors import UntrustedRun
from zmqrl.logs.printable import printable
from zmqrl.run_files.stored_config import read_config
from zmqrl.run_files.trusted_places import NOT_COMPARED, canonical, is_trusted, other_owner, trust

OF_ZMQRL = ("zmqrl", "minatar", "ale_py", "mpe2")
"""Packages that the presets name."""
NAMES_CODE = re.compile(r"(.*\.)?(env\.id|env\.wrappers|kind|activation|python)")
"""Keys whose value names a module wherever it has a colon; in others `module:Name` is one."""
MODULE_AND_NAME = re.compile(r"[^\W\d][\w.]*:[^\W\d].*", re.DOTALL)
MOST_SHOWN, LONGEST_SHOWN = 100, 200
_log = logging.getLogger(__name__)
_allowed: set[tuple[str, tuple[str, ...]]] = set()
"""What was allowed once: a command reads a configuration several times, and asks the first time."""


def opened(
    run_dir: Path, example: Callable[[str], str] = shlex.quote, trusted: bool | None = None, to_resume: bool = False
) -> Config:
    """Configuration, as of `read_config`, of a run whose code will be imported: this user made it, or trusts it."""
    read_config(run_dir, example)  # its messages have the path as it was given
    place = run_dir.resolve()  # a link may lead elsewhere by the time that its owner is looked at
    return allowed(read_config(place), place, trusted, to_resume)


def allowed(config: Config, place: Path | str, trusted: bool | None = None, to_resume: bool = False) -> Config:
    """The configuration of a run, of which this user allows what it names to be imported.

    `place`: run directory without links, or the URL of a copy. `trusted`: by the caller; None: ask on a terminal.
    `to_resume`: hosts and programs are used too.

    Returns:
        `config`; without `on_end` and `webhook` if the run is of another user or at a URL.

    Raises:
        UntrustedRun: It names code, and this user has not allowed it.
    """
    owner = other_owner(place) if isinstance(place, Path) else "is a copy at a URL"
    if owner is None:
        return config
    named = (f"{key}: {text}" for key, text in modules_of(config))
    names = tuple(dict.fromkeys([*named, *(_programs(config) if to_resume else ())]))
    if names and not trusted and (str(place), names) not in _allowed and not is_trusted(place):
        error = _untrusted(str(place), owner, names)
        if trusted is False or not _is_answered(error, NOT_COMPARED in owner):
            raise error
        _allowed.add((str(place), names))
    shown = printable(str(place))
    for key in ("on_end", "webhook"):
        if to_resume and getattr(config, key) is not None:
            _log.warning("the stored %s is not used, as %s %s; to set one: --set %s=...", key, shown, owner, key)
    return replace(config, on_end=None, webhook=None)


def modules_of(config: Config) -> Iterator[tuple[str, str]]:
    """Each key that names a module which is not of zmqrl, and the `module:Name` there."""
    return _modules("", to_json(config))


def _modules(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _modules(key, name)  # a wrapper with arguments is a key
            yield from _modules(key if ":" in name else f"{key}.{name}".strip("."), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _modules(key, inner)
    elif isinstance(value, str) and re.split("[.:]", value)[0] not in OF_ZMQRL:
        is_named = ":" in value if NAMES_CODE.fullmatch(key) else MODULE_AND_NAME.fullmatch(value)
        yield from [(key, value)] if is_named else ()


def _programs(config: Config) -> Iterator[str]:
    """What a resume uses in addition to modules: other hosts, programs on a host, and files that are sent to it."""
    for key in ("python", "prologue", "wrap"):
        if getattr(config.defaults, key) != getattr(DefaultsSection(), key):
            yield f"defaults.{key}: {getattr(config.defaults, key)}"
    for name, host in config.hosts.items():
        plain = to_json(HostSection(workers=host.workers, nice=host.nice))
        changed = {key: value for key, value in to_json(host).items() if value != plain[key]}
        if changed or name != LOCAL:
            yield f"hosts.{name}: {changed}"
    yield from (f"code.sync: {path}" for path in config.code.sync)
    yield from (f"orchestrator.{key}: {value}" for key, value in config.orchestrator.options.items())


def _untrusted(place: str, owner: str, names: tuple[str, ...]) -> UntrustedRun:
    shown = [printable(name).replace("\n", "\\n")[:LONGEST_SHOWN] for name in names]
    known = canonical(place)
    command = "" if known is None else f"zmqrl trust {shlex.quote(known)}, or "
    message = f"{printable(place)} {owner}, and its configuration names code: {shortened(shown, MOST_SHOWN)}"
    return UntrustedRun(f"{message}; to trust it: {command}trust=True in Python", place, names)


def _is_answered(error: UntrustedRun, is_kept: bool) -> bool:
    """Whether the user allows it, on a terminal. `is_kept`: also an answer for once."""
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    known = canonical(error.place)
    above = None if known is None else canonical(known.rpartition("/")[0] or "/")
    if above is None or ("://" in error.place) != ("://" in above):
        above = known
    always = "" if above is None else f", always for {above} (a)"
    print(f"{error}\nAllow it: once (y){always}, no (n)? ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline().strip().lower()
    if answer not in ("y", "yes", "a", "always"):
        return False
    prefix = above if answer.startswith("a") else known if is_kept else None
    if prefix is not None:
        trust(prefix)
    return True
