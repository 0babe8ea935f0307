"""Mutants: which changes a source has, and that a survivor is reported as long as it has no reason."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks import mutants
from benchmarks.mutations import Change, changes_of

SOURCE = """\
LIMIT = 2


class Queue:
    def take(self, most: int = 3) -> "int | None":
        if not self.items or self.size == 0:
            raise ValueError(f"{self.size + 1} of {most}")
        with self.lock:
            self.size -= 1
        return self.items.pop()
"""


@pytest.fixture
def changes(tmp_path: Path) -> list[Change]:
    path = tmp_path / "queue.py"
    path.write_text(SOURCE)
    return list(changes_of("part", path, tmp_path))


def test_each_change_is_named_by_its_function_and_text(changes: list[Change]) -> None:
    head = "def take(self, most: int={}) -> 'int | None':"
    take = {
        f"{head.format(3)} -> {head.format(4)}",
        f"{head.format(3)} -> {head.format(2)}",
        "not self.items or self.size == 0 -> not self.items and self.size == 0",
        "if not self.items or self.size == 0: -> if not (not self.items or self.size == 0):",
        "not self.items -> self.items",
        "self.size == 0 -> self.size != 0",
        "self.size == 0 -> self.size == 1",
        "self.size == 0 -> self.size == -1",
        "raise ValueError(f'{self.size + 1} of {most}') -> pass",
        "with self.lock: -> if True:",
        "self.size -= 1 -> pass",
        "self.size -= 1 -> self.size -= 2",
        "self.size -= 1 -> self.size -= 0",
        "return self.items.pop() -> return None",
    }
    names = [str(change.mutant) for change in changes]
    assert len(set(names)) == len(names)
    expected = {"queue.py: LIMIT = 2 -> LIMIT = 3", "queue.py: LIMIT = 2 -> LIMIT = 1"}
    assert {*names} == expected | {f"queue.py Queue.take: {text}" for text in take}


def test_each_change_is_one_source(changes: list[Change]) -> None:
    plain = ast.unparse(ast.parse(SOURCE))
    sources = {ast.unparse(ast.parse(change.source)) for change in changes}
    assert len(sources) == len(changes) and plain not in sources


def test_a_test_has_to_execute_the_statement_or_its_head(changes: list[Change]) -> None:
    lines = {str(change.mutant).partition(": ")[2].partition(" -> ")[0]: change for change in changes}
    assert lines["self.size == 0"].lines == range(6, 7)
    assert lines["with self.lock:"].lines == range(8, 9)
    assert [change.at_import for change in (lines["LIMIT = 2"], lines["self.size -= 1"])] == [True, False]


def test_a_survivor_without_a_reason_is_reported(
    changes: list[Change], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mutants, "PARTS", {"part": (["queue.py"], [])})
    monkeypatch.setattr(mutants, "REASONS", tmp_path / "reasons")
    first, second, third, *_ = (change.mutant for change in changes)
    (tmp_path / "reasons").write_text(f"a limit\n    {first}\n    queue.py: LIMIT = 7 -> LIMIT = 8\n    {third}\n")
    known = {first: "survived: 2 tests", second: "survived: no test executes it", third: "found: test_queue"}
    assert mutants.report(known, {"part": {change.mutant: change for change in changes}}) == 1
    counts, reason, unexplained, *outdated = capsys.readouterr().out.splitlines()
    assert counts.endswith(f"{len(changes)} mutants, 3 run, 1 found, 2 survived, 1 of them without a reason")
    assert reason == "    1 a limit"
    assert unexplained == f"  {second}  [survived: no test executes it]"
    assert outdated == [
        "reasons: delete the line, the code has no such mutant: queue.py: LIMIT = 7 -> LIMIT = 8",
        f"reasons: delete the line, a test finds it: {third}",
    ]


def test_each_reason_is_of_a_file_of_a_part() -> None:
    files = {str(path.relative_to(mutants.ROOT)) for part in mutants.PARTS for path in mutants.sources_of(part)}
    assert {name.partition(".py")[0] + ".py" for name in mutants.reasons()} <= files
