"""`config keys`: the configuration keys, from the types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import TYPE_CHECKING

import click

from zmqrl.errors import ConfigError

if TYPE_CHECKING:
    from zmqrl.config.keys import Key


@click.group("config")
def config_command() -> None:
    """List the configuration keys."""


@config_command.command("keys")
@click.argument("pattern", required=False)
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list.")
def keys_command(pattern: str | None, as_data: bool) -> None:
    """Show the type, default and meaning of each key.

    With PATTERN, only the keys that match it are shown. PATTERN is a part of a name, or a pattern such as `run.*`. A
    name that another library uses, such as `lr`, shows the corresponding keys of zmqrl.
    """
    found = _matching(pattern)
    if as_data:
        names = ("type", "default", "bounds", "meaning")
        rows = [{"key": key.name, "kinds": kinds, **{n: getattr(key, n) for n in names}} for key, kinds in found]
        click.echo(json.dumps(rows))
        return
    for key, kinds in found:
        default = "required" if key.default == "required" else f"default {key.default}"
        head = ", ".join(filter(None, (key.type.replace("`", ""), key.bounds, default)))
        of_kinds = f" ({', '.join(kinds)})" if kinds else ""
        click.echo(f"{key.name}{of_kinds}: {head}\n    {key.meaning}")


def _matching(pattern: str | None) -> list[tuple[Key, list[str]]]:
    """Keys with the kinds that have them: by name, else by the names of other libraries, else by meaning."""
    keys = _merged()
    if pattern is None:
        return keys
    from zmqrl.config.foreign.aliases import KEYS, NO_KEYS, alias

    text = pattern.lower()
    by_name = [pair for pair in keys if text in pair[0].name.lower() or fnmatch(pair[0].name.lower(), text)]
    meant = KEYS.get(alias(pattern), ((), ""))[0]
    by_alias = [pair for pair in keys if pair[0].name.replace("hosts.NAME", "hosts.local") in meant]
    by_meaning = [pair for pair in keys if text in pair[0].meaning.lower()]
    found = by_name or by_alias or by_meaning
    if not found:
        what = "not found in the name or meaning of any key"
        fix = NO_KEYS.get(alias(pattern), "`zmqrl config keys` lists all keys")
        raise ConfigError(what, key=(), value=repr(pattern), fix=fix)
    return found


def _merged() -> list[tuple[Key, list[str]]]:
    """Every key once: kinds that have the same one are listed together."""
    from zmqrl.config.keys import all_keys
    from zmqrl.planning.configure import kinds

    found: dict[Key, list[str]] = {}
    for part in all_keys(kinds()):
        kind = part.title.partition(", kind: ")[2]
        for key in part.keys:
            if not key.is_section or key.default != "below":
                found.setdefault(key, []).extend([kind] if kind else [])
    return list(found.items())


def names() -> Iterator[str]:
    """Every key, for shell completion."""
    yield from dict.fromkeys(key.name.replace("hosts.NAME", "hosts.local") for key, _ in _merged())
