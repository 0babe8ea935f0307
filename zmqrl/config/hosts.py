"""The hosts of a run: ranges such as `node[01:16]`, which of them `--limit` leaves, and how many workers each has."""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from zmqrl.capacity import usable_cores
from zmqrl.config.codec import names_of, replace
from zmqrl.config.overrides import RESET
from zmqrl.config.sections import Config, DefaultsSection, HostSection
from zmqrl.config.yaml_source import Branch, Leaf, Node, shown
from zmqrl.errors import ConfigError

LOCAL = "local"
AUTO = "auto"
MOST_HOSTS = 1024
_LAST_DIGITS = re.compile(r"\d+$")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:[:-](\d+))?")
_BETWEEN = re.compile(r",(?![^\[]*\])")


def expand(hosts: Node | None) -> Node | None:
    """`node[01:03]` becomes node01, node02, node03 (the last one too, with the zeros of the first)."""
    if not isinstance(hosts, Branch):
        return hosts
    children: dict[str, Node] = {}
    for key, node in hosts.children.items():
        if key in names_of(HostSection) and isinstance(node, Leaf) and node.value not in (None, RESET):
            what, fix = f"{key!r} is read as the name of a host", f"indent the key below its host (hosts.NAME.{key})"
            source = str(node.source)
            raise ConfigError(what, key=("hosts", key), value=shown(node.value), fix=fix, source=source)
        try:
            names = names_of_range(key)
        except ConfigError as error:
            raise error.replaced(key=("hosts", key), source=str(node.source)) from error.__cause__
        for name in names:
            if name in children:
                raise ConfigError(f"host {name!r} is listed twice", key=("hosts", key), source=str(node.source))
            children[name] = node
    return Branch(hosts.source, children)


def names_of_range(key: str) -> list[str]:
    """The names in the range `node[01:16]`, in Slurm's notation `node[01-16,20]`; a name without brackets is itself.

    Several brackets are all combinations: `rack[1-2]node[1-8]`. ConfigError for anything else.
    """
    fixed, ranges = _BRACKETS.split(key)[::2], [_numbers(key, part) for part in _BRACKETS.findall(key)]
    if any("[" in part or "]" in part for part in fixed):
        raise _no_range(key)
    count = math.prod(map(len, ranges))
    if not 1 <= count <= MOST_HOSTS:
        raise ConfigError(f"the range has {count} hosts; 1 to {MOST_HOSTS} are allowed", key=(key,))
    return [
        "".join(itertools.chain.from_iterable(itertools.zip_longest(fixed, numbers, fillvalue="")))
        for numbers in itertools.product(*ranges)
    ]


def _numbers(key: str, part: str) -> Sequence[str]:
    """Numbers of one pair of brackets, with the zeros of the first of each range."""
    found: list[str] = []
    for term in part.split(","):
        match = _RANGE.fullmatch(term.strip())
        if match is None:
            raise _no_range(key)
        first, last = match[1], match[2] or match[1]
        count = int(last) - int(first) + 1
        if count < 1:
            raise ConfigError(f"{first} is greater than {last}", key=(key,), fix="write the smaller number first")
        if count > MOST_HOSTS:
            raise ConfigError(f"the range has {count} hosts; 1 to {MOST_HOSTS} are allowed", key=(key,))
        found += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return found


def _no_range(key: str) -> ConfigError:
    return ConfigError("write a range as node[01:16], or as Slurm does: node[01-16,20]", key=(key,))


def filled(host: HostSection, defaults: DefaultsSection) -> HostSection:
    """`host` with what it leaves open taken from `defaults`; values set in neither (user, port ...) stays None.

    The address of a host also depends on ~/.ssh/config, which ranks between the two.
    """
    unset = [name for name in names_of(DefaultsSection) if getattr(host, name) in (None, "")]
    return replace(host, **{name: getattr(defaults, name) for name in unset})


def is_remote(name: str, host: HostSection) -> bool:
    """Whether the orchestrator reaches the host: neither this machine nor one that joins manually."""
    return name != LOCAL and not host.manual


def near(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'? ` when something known is spelled alike, else nothing."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {found[0]!r}? " if found else ""


def limited(config: Config, terms: Sequence[str]) -> Config:
    """Only the hosts that `--limit` names: names, ranges, patterns (`node0*`) or groups, separated by commas.

    The learner's host stays, without workers when it is not named itself.

    Raises:
        ConfigError: A term names nothing; the message lists the hosts and groups there are.
    """
    if not terms:
        return config
    chosen = chosen_hosts(config.hosts, terms)
    learner = config.learner.host
    hosts = {name: host for name, host in config.hosts.items() if name in chosen}
    if learner not in chosen:
        host = config.hosts.get(learner, HostSection())
        hosts = {learner: replace(host, workers=0), **hosts}
    return replace(config, hosts=hosts)


def chosen_hosts(hosts: Mapping[str, HostSection], terms: Sequence[str]) -> set[str]:
    """The hosts that `--limit` names. ConfigError when one of its terms names none."""
    chosen: set[str] = set()
    for term in (part.strip() for given in terms for part in _BETWEEN.split(given)):
        named = _named(hosts, term)
        if not named:
            fix = _there_are(hosts, term)
            raise ConfigError("unknown host or group", key=("--limit",), value=term or repr(term), fix=fix)
        chosen |= named
    return chosen


def _named(hosts: Mapping[str, HostSection], term: str) -> set[str]:
    """Hosts of a group, a range, or, where these name none, a pattern with character classes such as `node0[14]`."""
    try:
        patterns = names_of_range(term)
    except ConfigError:
        patterns = []
    chosen = {name for name, host in hosts.items() if term in host.groups or _matches(name, patterns)}
    return chosen or {name for name in hosts if _matches(name, [term])}


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _there_are(hosts: Mapping[str, HostSection], term: str) -> str:
    groups = sorted({group for host in hosts.values() for group in host.groups})
    return f"{near(term, [*hosts, *groups])}hosts: {shortened(hosts) or 'none'}; groups: {shortened(groups) or 'none'}"


def shortened(names: Iterable[str], most: int = 20) -> str:
    """Names for a message of one line, and how many were left out of it."""
    known = list(names)
    left_out = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + left_out


def with_numbers(config: Config, held: int = 0) -> Config:
    """`workers` of every host from `defaults`, and this machine's `auto` as a number; other hosts keep `auto`.

    In sync each worker needs a vector env: this machine takes no more than its share of them. `held`: workers of
    other runs on this machine.
    """
    workers = {name: filled(host, config.defaults).workers for name, host in config.hosts.items()}
    if workers.get(LOCAL) == AUTO:
        free = max(1, (config.hosts[LOCAL].cores or usable_cores() - held) - 1)
        workers[LOCAL] = free
        if config.mode.deterministic:
            fixed = sum(count for name, count in workers.items() if name != LOCAL and isinstance(count, int))
            sharing = 1 + sum(count == AUTO for count in workers.values())
            share = max(1, (config.env.vector_envs - fixed) // sharing)
            workers[LOCAL] = min(free, share)
    return _with_workers(config, workers)


def is_auto_here(config: Config, limit: Sequence[str]) -> bool:
    """Whether this machine is one of the hosts that `--limit` leaves, with `workers: auto`."""
    here = limited(config, limit).hosts.get(LOCAL)
    return here is not None and filled(here, config.defaults).workers == AUTO


def with_cores(config: Config, cores: Mapping[str, int]) -> Config:
    """`workers: auto` of the hosts in `cores` (physical cores of each) as numbers: all cores but one, at least one.

    `hosts.NAME.cores` of the configuration goes before.

    In sync the vector envs that other workers leave are dealt out host by host, so that none is idle while
    another has two; a host for which none is left gets 0. A host whose cores are not known keeps `auto`.
    """
    known = {**cores, **{name: host.cores for name, host in config.hosts.items() if host.cores is not None}}
    open_hosts = [n for n, host in config.hosts.items() if host.workers == AUTO and n in known]
    most = {name: max(1, known[name] - 1) for name in open_hosts}
    if config.mode.deterministic:
        most = _dealt(most, config.env.vector_envs - least_workers(config, without=open_hosts))
    return _with_workers(config, most)


def least_workers(config: Config, without: Iterable[str] = ()) -> int:
    """Workers of all hosts but some; `auto` that no process has resolved yet counts as one."""
    skipped = set(without)
    counts = (host.workers for name, host in config.hosts.items() if name not in skipped)
    return sum(count if isinstance(count, int) else 1 for count in counts)


def _dealt(most: Mapping[str, int], left: int) -> dict[str, int]:
    given = dict.fromkeys(most, 0)
    while left > 0 and any(given[name] < most[name] for name in most):
        for name in most:
            if left > 0 and given[name] < most[name]:
                given[name] += 1
                left -= 1
    return given


def _with_workers(config: Config, workers: Mapping[str, int | Literal["auto"] | None]) -> Config:
    hosts = {name: replace(host, workers=workers.get(name, host.workers)) for name, host in config.hosts.items()}
    return replace(config, hosts=hosts)


def ranges(names: Sequence[str]) -> str:
    """The names with ranges for those that follow each other: `gpu1, node[01:16]`."""
    runs: list[list[str]] = []
    for name in names:
        if runs and _next(runs[-1][-1]) == name:
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(_range(run) for run in runs)


def _next(name: str) -> str | None:
    digits = _LAST_DIGITS.search(name)
    return None if digits is None else f"{name[: digits.start()]}{int(digits[0]) + 1:0{len(digits[0])}}"


def _range(run: Sequence[str]) -> str:
    first, last = _LAST_DIGITS.search(run[0]), _LAST_DIGITS.search(run[-1])
    if first is None or last is None or len(run) < 3:
        return ", ".join(run)
    return f"{run[0][: first.start()]}[{first[0]}:{last[0]}]"
