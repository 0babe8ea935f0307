"""What the user sees: one table, one line per fault with its fix, warnings apart."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from zmqrl.config.codec import to_json
from zmqrl.config.hosts import ranges
from zmqrl.doctor.fault import HostFault
from zmqrl.doctor.measurement import Measurement
from zmqrl.logs.printable import printable
from zmqrl.supervision.gpus import brief
from zmqrl.views.base import UNKNOWN, aligned

_FIGURES = re.compile(r"\d+(\.\d+)?")
GB = 1e9
MANY_INODES = 100_000
"""So many are not shown."""


def as_json(measurements: Mapping[str, Measurement], faults: Sequence[HostFault], manual: Sequence[str]) -> str:
    """Everything, for programs; hosts in order."""
    hosts = {host: _without_host(to_json(measured)) for host, measured in measurements.items()}
    data = {
        "hosts": hosts,
        "manual": list(manual),
        "faults": [fault.data() for fault in faults if fault.severity == "error"],
        "warnings": [fault.data() for fault in faults if fault.severity == "warning"],
    }
    return json.dumps(data, indent=1)


def _without_host(data: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in data.items() if key != "host"}


def print_report(
    measurements: Mapping[str, Measurement],
    faults: Sequence[HostFault],
    manual: Sequence[str],
    out: TextIO,
    wide: Callable[[Sequence[str], Sequence[Sequence[str]]], None] | None,
) -> None:
    """`wide` draws a table on a terminal; None: plain columns."""
    rows = [[host, _state(host, faults), *(cell(m) for _, cell in COLUMNS)] for host, m in measurements.items()]
    rows += [[host, "manual", *([UNKNOWN] * len(COLUMNS))] for host in manual]
    heads, rows = _without_empty(["host", "state", *(head for head, _ in COLUMNS)], rows)
    if wide is not None:
        wide(heads, rows)
    else:
        print("\n".join(aligned([heads, *rows])), file=out)
    errors = [fault for fault in faults if fault.severity == "error"]
    for line in grouped(errors):
        print(line, file=out)
    warnings = [fault for fault in faults if fault.severity == "warning"]
    if warnings:
        print("warnings:", file=out)
    for line in grouped(warnings):
        print(line, file=out)
    print(_verdict(len(measurements), errors, warnings), file=out)


def grouped(faults: Sequence[HostFault]) -> list[str]:
    """A text for each finding, with all hosts that have it; the same one if only names and figures differ."""
    groups: dict[tuple[str, ...], list[HostFault]] = {}
    of_host: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for fault in faults:
        name = re.compile(rf"\b{re.escape(fault.host)}\b")
        key = (fault.check, *(_FIGURES.sub("0", name.sub("HOST", text)) for text in (fault.cause, fault.fix)))
        of_host[fault.host, key] += 1
        groups.setdefault((*key, str(of_host[fault.host, key])), []).append(fault)
    return [printable(_one(group)) for group in groups.values()]


def _one(group: Sequence[HostFault]) -> str:
    first = group[0]
    if len(group) == 1:
        return str(first)
    equal = all((fault.cause, fault.fix) == (first.cause, first.fix) for fault in group)
    where = "" if equal else f" ({first.host}; likewise the others)"
    return f"{ranges([fault.host for fault in group])}: {first.check}: {first.cause}{where}\n   {first.fix}"


def _without_empty(heads: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Columns in which nothing is known of any host are left out."""
    kept = [column for column in range(len(heads)) if any(row[column] != UNKNOWN for row in rows)]
    return [heads[column] for column in kept], [[row[column] for column in kept] for row in rows]


def _verdict(hosts: int, errors: Sequence[HostFault], warnings: Sequence[HostFault]) -> str:
    many = f"{hosts} host{'s' * (hosts != 1)} examined"
    warned = f", {len(warnings)} warning{'s' * (len(warnings) != 1)}"
    if not errors:
        return f"{many}{warned if warnings else ''}: no faults"
    return f"{many}: {len(errors)} fault{'s' * (len(errors) != 1)} preventing a launch{warned}"


def _state(host: str, faults: Sequence[HostFault]) -> str:
    mine = [fault.severity == "error" for fault in faults if fault.host == host]
    return "FAULT" if any(mine) else "warning" if mine else "ok"


def _versions(m: Measurement) -> str:
    if m.hello is None:
        return UNKNOWN
    return f"{m.hello.versions.get('python') or 'none'} {m.hello.versions.get('zmqrl') or 'none'}"


def _cores(m: Measurement) -> str:
    return f"{m.machine.cores} ({m.machine.load:.1f})" if m.machine else UNKNOWN


def _gpus(m: Measurement) -> str:
    """Used and whole memory of each, and who uses it."""
    return "; ".join(map(brief, m.machine.gpus)) or UNKNOWN if m.machine else UNKNOWN


def _memory(m: Measurement) -> str:
    return f"{m.machine.available_bytes / GB:.1f} GB" if m.machine else UNKNOWN


def _disk(m: Measurement) -> str:
    if m.folders is None:
        return UNKNOWN
    inodes, free = m.folders.workdir.free_inodes, f"{m.folders.workdir.free_bytes / GB:.1f} GB"
    return free if inodes is None or inodes >= MANY_INODES else f"{free}, {inodes} inodes"


def _clock(m: Measurement) -> str:
    return f"{m.clock.skew_s * 1000:+.0f} ms" if m.clock else UNKNOWN


def _ports(m: Measurement) -> str:
    if m.listening is not None:
        return "free" if m.listening.error is None else "in use"
    if m.reached is None:
        return UNKNOWN
    whole = [answer for answer in m.reached.answers if not any(answer.ports.values())]
    if not whole:
        return "unreachable"
    best = min(whole, key=lambda answer: answer.round_trip_ms or 0.0)
    more = f" +{len(whole) - 1}" if len(whole) > 1 else ""
    return f"{best.address}{more} {best.round_trip_ms or 0.0:.1f} ms"


def _curve(m: Measurement) -> str:
    if m.curve is None:
        return UNKNOWN
    return f"{m.curve.mb_per_s:.0f} MB/s" if m.curve.mb_per_s else "none"


def _store(m: Measurement) -> str:
    if m.store is None:
        return UNKNOWN
    if not m.store.seen:
        return "not shared"
    return f"{m.store.visible_s * 1000:.0f} ms" if m.store.visible_s is not None else "shared"


def _env(m: Measurement) -> str:
    if m.env is None:
        return UNKNOWN
    if m.env.error is not None:
        return "fails"
    return f"{m.env.steps_per_s:.0f}/s" if m.env.steps_per_s else m.env.stage


def _repeats(m: Measurement) -> str:
    texts = {True: "yes", False: "no", None: UNKNOWN}
    return texts[m.env.repeats if m.env else None]


def _lock(m: Measurement) -> str:
    if m.locks is None:
        return UNKNOWN
    return ", ".join(f"{lock.user} {lock.run_id}" for lock in m.locks.held) or "free"


COLUMNS: tuple[tuple[str, Callable[[Measurement], str]], ...] = (
    ("python zmqrl", _versions),
    ("cores (load)", _cores),
    ("memory", _memory),
    ("GPUs", _gpus),
    ("disk", _disk),
    ("clock", _clock),
    ("learner's ports", _ports),
    ("CURVE", _curve),
    ("store", _store),
    ("env", _env),
    ("env repeats", _repeats),
    ("used by", _lock),
)
