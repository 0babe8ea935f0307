"""The examples of docs/extending/ and examples/: their tests pass, they run, and they import stable modules only."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import zmqrl.testing
from tests.support.raising import raises
from tests.support.running import ROOT, environment
from zmqrl.data_stores.base import DataStore, Full
from zmqrl.errors import StoreError
from zmqrl.memory_backends.base import MemoryBackend
from zmqrl.networks.kinds.base import LayerKind
from zmqrl.orchestrators.access import HostAccess
from zmqrl.orchestrators.base import Orchestrator
from zmqrl.orchestrators.shell_orchestrator import ShellOrchestrator
from zmqrl.replay.samplers.base import Sampler
from zmqrl.types import Version

pytestmark = pytest.mark.whole
PAGES = [ROOT / "docs" / "extending.md", *sorted((ROOT / "docs" / "extending").glob("*.md"))]
TEXT = "".join(page.read_text() for page in PAGES)
BLOCK = re.compile(
    r"^```(?:python|yaml)\n# (?P<name>[\w./]+\.(?:py|yaml))\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL
)
STABLE = re.compile(r"`(zmqrl(?:\.\w+)+)`")
TEST_S, RUN_S, END_S = 600, 300, 120
PARTS = 6


def blocks() -> Mapping[str, str]:
    """File name to content, of each block of the pages whose first line names a file."""
    return {block["name"]: block["text"] for block in BLOCK.finditer(TEXT)}


BLOCKS = blocks()
TESTS = sorted(name for name in BLOCKS if name.startswith("test_"))
ORCHESTRATOR = "test_my_orchestrator.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the pages and of examples/ in one directory, as a user has them."""
    path = tmp_path_factory.mktemp("extending")
    for example in (ROOT / "examples").iterdir():
        if example.is_file():
            shutil.copy(example, path)
    for name, text in BLOCKS.items():
        (path / name).write_text(text)
    return path


def command(folder: Path, *words: str, limit_s: float = RUN_S, path: str = "") -> subprocess.CompletedProcess[str]:
    """`path` is put before PYTHONPATH. One thread, as `tests/conftest.py` sets it."""
    argv, variables = [sys.executable, "-m", *words], environment()
    variables = {**variables, "PYTHONPATH": path + variables["PYTHONPATH"], "OMP_NUM_THREADS": "1"}
    return subprocess.run(argv, cwd=folder, env=variables, capture_output=True, text=True, timeout=limit_s, check=False)


def test_every_suite_is_on_a_page() -> None:
    used = {name for test in TESTS for name in re.findall(r"zmqrl\.testing\.([A-Z_]+)\b", BLOCKS[test])} - {"KEEP"}
    assert used == {name for name in zmqrl.testing.__all__ if isinstance(getattr(zmqrl.testing, name), tuple)}


def check_tests(folder: Path, *tests: str) -> None:
    """`TEST_S` is for a deadlock: beside busy processes, 6 s become more than 110 s."""
    done = command(folder, "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", *tests, limit_s=TEST_S)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_the_suites_pass_over_the_examples(folder: Path) -> None:
    """In one process, which imports torch once."""
    check_tests(folder, *(name for name in TESTS if name != ORCHESTRATOR))


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, PARTS))])
def test_the_suite_passes_over_the_orchestrator(folder: Path, part: int) -> None:
    """In parts, since each check starts real processes; `tests/contracts` runs all of them over three other kinds."""
    checks = [check.__name__ for check in zmqrl.testing.ORCHESTRATOR[part::PARTS]]
    check_tests(folder, *(f"{ORCHESTRATOR}::test_contract[{name}]" for name in checks))


def test_a_run_with_all_of_them_and_its_resume(folder: Path, tmp_path: Path) -> None:
    """As the page has it, with another folder; node1 has the PYTHONPATH of the launcher."""
    assert "/tmp/own_parts/" in BLOCKS["hosts.yaml"] and "python: python3" in BLOCKS["hosts.yaml"]
    text = BLOCKS["hosts.yaml"].replace("/tmp/own_parts", str(tmp_path)).replace("python3", sys.executable)
    (folder / "run.yaml").write_text(text)
    run_dir = str(tmp_path / "run")
    for words in (("--run-dir", run_dir), ("--resume", run_dir, "--set", "run.total_env_steps=4000")):
        words = (*words, "--plain", "--set", "evaluator.episodes=0")
        done = command(folder, "zmqrl", "launch", "run.yaml", *words, path=f"{folder}:")
        assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(Path(run_dir, "summary.json").read_text())
    assert summary["env_steps"] >= 4000
    assert summary["ledger"]["balanced"]
    (database,) = (tmp_path / "checkpoints").glob("*.sqlite")
    assert database.stat().st_size > 0


def test_the_store_does_not_start_from_scratch_over_damaged_fulls(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    my_store = importlib.import_module("my_store")
    config = my_store.SqliteConfig(str(tmp_path))
    store = my_store.SqliteStore(my_store.SqliteStore.place(config, tmp_path, "a"), zmqrl.testing.KEEP, config)
    for n in range(2):
        store.save_full(Full(Version(0, n), {}, {}), durable=True)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as database:
        database.execute("UPDATE checkpoints SET content = X'00' WHERE n = 1")
        assert store.newest_full().version == Version(0, 0)
        database.execute("UPDATE checkpoints SET content = X'00'")
    with raises(StoreError, what=f"{store.path}: all full checkpoints are damaged: full 0-1, full 0-0"):
        store.newest_full()


def opened(together: threading.Barrier, store: DataStore) -> None:
    together.wait()
    assert store.newest() is None


def test_several_open_the_store_at_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    my_store = importlib.import_module("my_store")
    for n in range(100):  # with the journal mode set at each opening, 6 of 100 found the database locked
        config = my_store.SqliteConfig(str(tmp_path / str(n)))
        stores = [my_store.SqliteStore(my_store.SqliteStore.place(config, tmp_path, "a"), 4, config) for _ in range(4)]
        together = threading.Barrier(len(stores), timeout=END_S)
        with ThreadPoolExecutor(len(stores)) as pool:
            list(pool.map(opened, [together] * len(stores), stores))


def test_a_wrong_key_of_an_example_is_named(folder: Path) -> None:
    text = BLOCKS["hosts.yaml"].replace("folder: /tmp", "foldr: /tmp")
    (folder / "wrong.yaml").write_text(text)
    done = command(folder, "zmqrl", "launch", "wrong.yaml", "--dry-run")
    assert done.returncode == 2
    assert "wrong.yaml:4" in done.stderr and "'folder'" in done.stderr, done.stderr


def test_the_first_commands_of_the_pages_are_accepted(folder: Path) -> None:
    lines = [line.partition("#")[0] for line in TEXT.splitlines() if line.startswith("zmqrl train ")]
    assert len(lines) > 5
    for line in lines:
        done = command(folder, *line.split(), "--dry-run")
        assert done.returncode == 0, line + done.stderr


def imports(source: str) -> Iterator[tuple[str, str]]:
    """(module, name) of what is imported from zmqrl."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "zmqrl":
            for alias in node.names:
                yield node.module or "", alias.name
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "zmqrl")


SEAMS = {
    "Data store": DataStore,
    "A shell of a host": ShellOrchestrator,
    "Other engines": Orchestrator,
    "Hosts without a run": HostAccess,
    "Memory backend": MemoryBackend,
    "Layer": LayerKind,
    "Sampler": Sampler,
}


@pytest.mark.parametrize("title", SEAMS)
def test_the_tables_have_every_method_and_mark_those_that_are_required(title: str) -> None:
    base = SEAMS[title]
    section = re.split(r"^##+ ", TEXT.partition(f"# {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    named = {name: row[1] for row in rows for name in re.findall(r"`(\w+)", row[0])}
    required: frozenset[str] = getattr(base, "__abstractmethods__", frozenset())
    if base is not ShellOrchestrator:  # the others are those of Orchestrator, or its own
        own = {name for name in vars(base) if not name.startswith("_")} - {"Config"}
        assert own <= named.keys(), own - named.keys()
    assert {name for name in required if not named.get(name, "").startswith("yes")} == set()


def stable_modules() -> set[str]:
    page = ROOT / "docs" / "extending" / "stable-modules.md"
    return {"zmqrl", *STABLE.findall(page.read_text())}


def examples() -> dict[str, str]:
    own = {path.name: path.read_text() for path in (ROOT / "examples").glob("*.py")}
    return {**own, **{name: text for name, text in BLOCKS.items() if name.endswith(".py")}}


def test_examples_import_stable_modules_only() -> None:
    stable, found = stable_modules(), []
    for name, text in examples().items():
        assert not re.search(r"zmqrl\.\S*\._", text), f"{name} uses a private module"
        for module, imported in imports(text):
            is_module = f"{module}.{imported}" in stable
            if imported.startswith("_") or not (is_module or module in stable):
                found.append(f"{name}: {module} {imported}")
    assert not found, found


def test_stable_modules_exist() -> None:
    assert len(stable_modules()) > 20
    assert [name for name in stable_modules() if importlib.util.find_spec(name) is None] == []
