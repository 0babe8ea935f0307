"""The message tables of docs/protocol.md, from the types: `python -m generate.messages`.

The text between `<!-- NAME -->` and `<!-- end of NAME -->` is replaced; `TABLES` has the names.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct

from zmqrl.messages import agent, bus, check, command, doctor, doctor_requests, files, orchestrator, process
from zmqrl.messages.fields import kinds_of

PATH = Path(__file__).parents[1] / "docs" / "protocol.md"
FILES: Mapping[str, type[Struct]] = {
    "request": files.ScaleRequest,
    "answer": files.RequestAnswer,
    "connection file": files.ConnectionFile,
    "run.json": files.RunRecord,
    "published run": files.PublishedRun,
    "launcher ready": files.LauncherReady,
    "held file": files.HeldFile,
    "copy request": files.CopyRequest,
    "copied file": files.CopiedFile,
    "copied end": files.CopiedEnd,
    "not copied": files.NotCopied,
    "retired file": files.RetiredFile,
}
OF_AGENT = kinds_of(
    (agent.Started, agent.Exited, agent.Restarting, agent.RestartLimitReached, *get_args(agent.AgentEvent))
)
"""Events of an agent: of a process or of itself."""
TABLES: Mapping[str, Mapping[str, type[Struct]]] = {
    "bus": bus.KINDS,
    "process events": process.CHILD_EVENTS,
    "agent events": OF_AGENT,
    "launcher events": orchestrator.LAUNCHER_EVENTS,
    "commands": command.COMMANDS,
    "files": FILES,
    "doctor requests": doctor_requests.REQUESTS,
    "doctor replies": doctor.REPLIES,
    "check processes": check.MESSAGES,
}
"""The types of each table by their names on the wire."""
HEAD = "| name | what | from, to, when | fields | old or wrong |\n|---|---|---|---|---|\n"


def table_of(name: str) -> str:
    """A table of message types, and the rows that their fields are made of."""
    kinds = TABLES[name]
    modules = [sys.modules[module] for module in dict.fromkeys(kind.__module__ for kind in kinds.values())]
    nodes = [node for module in modules for node in ast.parse(inspect.getsource(module)).body]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    rows = [f"| `{tag}` | {' | '.join(_cells(kind, classes))} |\n" for tag, kind in kinds.items()]
    plain = [node for node in classes.values() if node.bases and ast.unparse(node.bases[0]) == "NamedTuple"]
    lists = [f"- `{node.name}`: `[{', '.join(name for name, _, _ in _own_fields(node))}]`\n" for node in plain]
    return HEAD + "".join(rows) + ("\nRows of fields:\n\n" + "".join(lists) if lists else "")


def paragraphs(kind: type[Struct]) -> Sequence[str]:
    """Paragraphs of a docstring: what it is; from whom to whom and when; what an old or a wrong one causes."""
    return [" ".join(paragraph.split()) for paragraph in inspect.cleandoc(kind.__doc__ or "").split("\n\n")]


def _cells(kind: type[Struct], classes: Mapping[str, ast.ClassDef]) -> Iterator[str]:
    what, when, wrong = paragraphs(kind)
    yield what
    yield when
    yield "; ".join(_field(*field) for field in _fields(kind, classes))
    yield wrong


def _fields(kind: type[Struct], classes: Mapping[str, ast.ClassDef]) -> Iterator[tuple[str, str, str]]:
    """Name, type and docstring of each field, those of its base classes first."""
    for base in reversed(kind.__mro__):
        if base.__name__ in classes:
            yield from _own_fields(classes[base.__name__])


def _own_fields(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    following: list[Any] = [*node.body[1:], None]
    for part, after in zip(node.body, following, strict=True):
        if isinstance(part, ast.AnnAssign):
            is_doc = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            yield ast.unparse(part.target), ast.unparse(part.annotation), str(after.value.value) if is_doc else ""


def _field(name: str, kind: str, text: str) -> str:
    escaped = f"`{name}: {kind}`".replace("|", "\\|")
    return f"{escaped} ({_lowered(' '.join(text.split()).rstrip('.'))})" if text else escaped


def _lowered(text: str) -> str:
    is_word = text[1:2] == " " or text[1:2].islower()
    return text[:1].lower() + text[1:] if is_word and not text.startswith("None") else text


def with_tables(page: str) -> str:
    """`page` with the text between each pair of marks as it has to be."""
    for name in TABLES:
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        places = pattern.findall(page)
        if len(places) != 1:
            raise ValueError(f"{len(places)} places between {begin!r} and {end!r}")
        page = page.replace(places[0], f"{begin}\n{table_of(name)}\n{end}")
    return page


if __name__ == "__main__":
    PATH.write_text(with_tables(PATH.read_text(encoding="utf-8")), encoding="utf-8")
