"""A copy of the checkout in which mutants are tested, by the tests that execute the changed line."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import select
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from benchmarks.mutations import Change

ROOT = Path(__file__).resolve().parent.parent
UNIT = "not whole and not timed and not long"
SLACK, SLACK_S = 5.0, 10.0
"""A test hangs that runs for longer than so many times the longest one without a change, and these seconds."""
LONGEST_S = 1800.0
"""Of all tests of a part, without a change."""
MOST_BYTES = 4 << 30
"""Of memory: a loop that does not end may fill it."""
PRELOADED = ("numpy", "torch", "zmq", "msgspec", "msgpack", "pydantic", "yaml", "gymnasium", "hypothesis.stateful")
"""What takes seconds to import; each pytest is a fork of a process that has it."""


class Baseline:
    """Plugin of pytest: seconds and executed lines of each test that passes."""

    def __init__(self, sources: Collection[str], out: Path, longest_s: float) -> None:
        """`sources`: absolute paths. `longest_s`: what a test executes later is not traced: that is slow."""
        self._sources, self._out, self._longest_s = frozenset(sources), out, longest_s
        self._until = float("inf")
        self._seen: set[tuple[str, int]] = set()
        self._shared: dict[str, set[tuple[str, int]]] = defaultdict(set)
        """By test file: of its fixtures, which may serve other tests than the first. Key "": at import."""
        self._own: dict[str, set[tuple[str, int]]] = {}
        self._seconds: Counter[str] = Counter()
        self._failed: set[str] = set()
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if time.monotonic() > self._until:
            sys.settrace(None)
            return None
        return self._line if frame.f_code.co_filename in self._sources else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def _pop(self) -> set[tuple[str, int]]:
        seen, self._seen = self._seen, set()
        return seen

    def pytest_collection_finish(self) -> None:
        self._shared[""] |= self._pop()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        self._until = time.monotonic() + self._longest_s
        sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            self._shared[_file_of(item.nodeid)] |= self._pop()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if not report.passed:
            self._failed.add(report.nodeid)
        if report.when == "teardown":
            self._own[report.nodeid] = self._pop()

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        reached = {
            test: [self._seconds[test], sorted(own | self._shared[_file_of(test)] | self._shared[""])]
            for test, own in self._own.items()
            if test not in self._failed
        }
        self._out.write_text(json.dumps({"tests": reached, "failed": sorted(self._failed)}), encoding="utf-8")


class Selection:
    """Plugin of pytest: only these tests, in this order; the first that fails is written to a file."""

    def __init__(self, tests: Sequence[str], out: Path) -> None:
        self._order, self._out = {test: place for place, test in enumerate(tests)}, out

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._order), key=lambda item: self._order[item.nodeid]
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._out.write_text(report.nodeid, encoding="utf-8")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._out.write_text(f"import of {report.nodeid}", encoding="utf-8")


class Reach(NamedTuple):
    """A test that passes: how long it takes, and which lines it executes."""

    test: str
    seconds: float
    lines: Mapping[str, frozenset[int]]


class Copy:
    """A copy of the checkout, in which one mutant after the other is tested."""

    def __init__(self, root: Path) -> None:
        """Also prepares this process, which is forked for each pytest."""
        os.environ.update(CI="1", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # CI: hypothesis repeats its examples
        for name in PRELOADED:
            importlib.import_module(name)
        self.root = root
        root.mkdir()
        for name in ("zmqrl", "tests", "examples", "docs", "pyproject.toml", "setup.cfg"):
            copied = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copied(ROOT / name, root / name)

    def baseline(self, sources: Sequence[Path], tests: Sequence[str], longest_s: float) -> list[Reach]:
        """Each of `tests` that passes without a change; with all its lines if it takes `longest_s` at most."""
        out = self.root / "baseline.json"
        paths = [str(self.root / path.relative_to(ROOT)) for path in sources]
        status = self._pytest(tests, lambda: Baseline(paths, out, longest_s), LONGEST_S, True)
        found = json.loads(out.read_text(encoding="utf-8"))
        if found["failed"]:
            print(f"left out, as they fail or are skipped without a change: {', '.join(found['failed'])}")
        assert status is not None and found["tests"], f"no test of {tests} passes"
        reaches = []
        for test, (seconds, lines) in found["tests"].items():
            by_file: dict[str, set[int]] = defaultdict(set)
            for file, line in lines:
                by_file[str(Path(file).relative_to(self.root))].add(line)
            reaches.append(Reach(test, seconds, {file: frozenset(lines) for file, lines in by_file.items()}))
        return reaches

    def outcome(self, change: Change, reaches: Sequence[Reach], longest_s: float) -> str:
        """`found: TEST`, or `survived`, and whether any test executes it."""
        chosen = [
            reach
            for reach in reaches
            if reach.seconds <= longest_s
            and (change.at_import or not reach.lines.get(change.mutant.file, frozenset()).isdisjoint(change.lines))
        ]
        if not chosen:
            return "survived: no test executes it"
        by_file: Counter[str] = Counter()
        for reach in chosen:
            by_file[_file_of(reach.test)] += reach.seconds
        chosen.sort(key=lambda reach: (by_file[_file_of(reach.test)], _file_of(reach.test), reach.seconds))
        tests = [reach.test for reach in chosen]
        source, out = self.root / change.mutant.file, self.root / "failed"
        source.write_text(change.source, encoding="utf-8")
        out.unlink(missing_ok=True)
        files = list(dict.fromkeys(map(_file_of, tests)))
        try:
            status = self._pytest(files, lambda: Selection(tests, out), max(reach.seconds for reach in chosen), False)
        finally:
            shutil.copy2(ROOT / change.mutant.file, source)
        if status == 0:
            return f"survived: {len(tests)} tests"
        failed = out.read_text(encoding="utf-8") if out.exists() else f"pytest ended with {status}"
        return "found: it hangs" if status is None else f"found: {failed}"

    def _pytest(self, files: Sequence[str], plugin: Any, longest_s: float, whole: bool) -> int | None:
        """Exit code of pytest in a fork of this process; None when it was killed because it hangs.

        Args:
            files: To be collected.
            plugin: Makes the plugin, in the fork.
            longest_s: What the longest test takes.
            whole: Whether it is the run without a change: all tests run, and the byte code is kept for later calls.
        """
        test_s = SLACK_S + SLACK * longest_s
        runtime = tempfile.mkdtemp(prefix="zmqrl-mutant-")
        pid = os.fork()
        if not pid:
            try:
                os._exit(self._in_fork(files, plugin, runtime, test_s, whole))
            except BaseException as error:  # noqa: BLE001 - the end of the fork
                print(f"{type(error).__name__}: {error}", file=sys.__stderr__, flush=True)
                os._exit(70)
        descriptor = os.pidfd_open(pid)
        try:
            ended, _, _ = select.select([descriptor], [], [], LONGEST_S if whole else 3 * test_s)
            if not ended:
                os.killpg(pid, 9)
            _, status = os.waitpid(pid, 0)
            return os.waitstatus_to_exitcode(status) if ended else None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, 9)  # what it has left behind
            os.close(descriptor)
            shutil.rmtree(runtime, ignore_errors=True)

    def _in_fork(self, files: Sequence[str], plugin: Any, runtime: str, test_s: float, whole: bool) -> int:
        os.setsid()
        log = os.open(self.root / "pytest.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(self.root)
        os.environ.update(PYTHONPATH=str(self.root), ZMQRL_RUNTIME_DIR=runtime)
        sys.path[:] = [str(self.root), *(path for path in sys.path if path not in ("", str(ROOT)))]
        sys.dont_write_bytecode = not whole
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
        options = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", "-m", UNIT]
        options += [f"--timeout={test_s:.0f}"] if whole else [f"--timeout={test_s:.0f}", "-x"]
        return int(pytest.main([*options, *files], plugins=[plugin()]))


def _file_of(test: str) -> str:
    return test.partition("::")[0]
