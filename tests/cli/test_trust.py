"""A run of another user, or at a URL, is opened without importing what its files name, unless this user trusts it."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import zmqrl as api
from tests.cli.commands import Command
from tests.support.raising import compare, raises
from tests.support.running import environment
from tests.support.stored_runs import begun, store_run
from tests.support.waiting import WAIT_S
from zmqrl.config.presets import presets
from zmqrl.errors import ConfigError, UntrustedRun
from zmqrl.planning.configure import load, load_config
from zmqrl.run_files.trust import modules_of
from zmqrl.run_files.trusted_places import canonical, is_trusted, other_owner, prefixes, trust
from zmqrl.run_files.url_mirror import fetch

OTHER, UNMAPPED = 4_711, 65_534
MODULE = "of_somebody_else"
CODE = """
from pathlib import Path
import gymnasium as gym
Path(__file__).with_suffix(".imported").touch()

class Walk(gym.Wrapper):
    def __init__(self, env=None, **kwargs):
        super().__init__(env or gym.make("CartPole-v1"))
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="files of another user need root")
pytestmark = needs_root


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this user's configuration, and no memory of other tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("zmqrl.run_files.trust._allowed", set())
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    return tmp_path / "config"


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the import of `MODULE`, which is in the working directory, leaves behind."""
    (tmp_path / f"{MODULE}.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / f"{MODULE}.imported"


def give(run_dir: Path, uid: int = OTHER) -> Path:
    """Make another user the owner of all of it."""
    for path in (run_dir, *run_dir.rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)
    return run_dir


def stored(run_dir: Path, changes: Mapping[str, Any] | None = None, uid: int = OTHER, **overrides: Any) -> Path:
    """A run of another user; `changes`: dotted keys of `config.json`."""
    store_run("cartpole-ppo", run_dir, **overrides)
    change(run_dir, changes or {})
    (run_dir / "run.json").write_text(
        '{"run_id": "run-1", "pid": 1, "start_time": 1, "host": "elsewhere", "started_at": 1.0, "preset": null,'
        ' "ended_at": 2.0}'
    )
    return give(run_dir, uid)


def change(run_dir: Path, changes: Mapping[str, Any]) -> None:
    path = run_dir / "config.json"
    data = json.loads(path.read_text())
    for key, value in changes.items():
        *sections, name = key.split(".")
        section = data["config"]
        for part in sections:
            section = section[part]
        section[name] = value
    path.write_text(json.dumps(data))


NAMED: Mapping[str, Any] = {
    "env.id": f"{MODULE}:Walk",
    "env.wrappers": [{f"{MODULE}:Walk": {}}],
    "env.kwargs": {"render_fps": {"python": f"{MODULE}:Walk"}},
    "algorithm.kind": f"{MODULE}:Ppo",
    "network.kind": f"{MODULE}:Net",
    "network.activation": f"{MODULE}:Kind",
    "store.kind": f"{MODULE}:Store",
    "memory_backend.kind": f"{MODULE}:Memory",
    "orchestrator.kind": f"{MODULE}:Orchestrator",
}


@pytest.mark.parametrize("key", NAMED)
def test_each_key_that_names_a_module_is_named_before_it_is_imported(
    key: str, zmqrl: Command, mark: Path, tmp_path: Path
) -> None:
    run = stored(tmp_path / "run", {key: NAMED[key]})
    ended = zmqrl("eval", run)
    assert (ended.code, ended.out) == (2, "")
    assert f"zmqrl trust {run}" in ended.err and "trust=True" in ended.err and f"(uid {OTHER})" in ended.err
    assert ended.err.count("\n") == 1
    with raises(UntrustedRun, place=str(run)) as caught:
        load(stored=run, trusted=False)
    (named,) = caught.value.names
    assert named.startswith(key) and f"{MODULE}:" in named
    compare(ended.error, place=str(run), names=(named,))
    assert not mark.exists()


COMMANDS: Mapping[str, Callable[[Path], tuple[object, ...]]] = {
    "eval": lambda run: ("eval", run),
    "watch": lambda run: ("watch", run),
    "record": lambda run: ("record", run, "out"),
    "export": lambda run: ("export", run, "out", "--to", "numpy"),
    "--resume": lambda run: ("train", "--resume", run, "--for", "100"),
    "--resume auto": lambda run: ("train", "cartpole-ppo", "--run-dir", run, "--resume", "auto"),
    "--resume --detach": lambda run: ("train", "--resume", run, "--detach"),
    "--init-from": lambda run: ("train", "cartpole-ppo", "--init-from", run, "--run-dir", "new"),
    "run.init_from": lambda run: ("train", "cartpole-ppo", "--set", f"run.init_from={run}", "--run-dir", "new"),
    "eval URL": lambda run: ("eval", f"file://{run}"),
    "export URL": lambda run: ("export", f"file://{run}", "out", "--to", "numpy"),
    "--resume URL": lambda run: ("train", "--resume", f"file://{run}", "--run-dir", "new"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_imports_what_a_run_of_another_user_names(
    name: str, zmqrl: Command, mark: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    uid = 0 if name.endswith("URL") else OTHER  # what is at a URL has no owner
    run = stored(tmp_path / "run", NAMED, uid)
    before = sorted(run.rglob("*"))
    ended = zmqrl(*COMMANDS[name](run))
    place = f"file://{run}" if name.endswith("URL") else str(run)
    assert ended.code == 2 and f"zmqrl trust {place}," in ended.err, ended.err
    assert not mark.exists() and not (tmp_path / "new").exists() and not (tmp_path / "out").exists()
    assert sorted(run.rglob("*")) == before


@pytest.mark.parametrize(
    "call",
    [
        api.load_policy,
        lambda run: api.resume(run, for_env_steps=100),
        lambda run: api.start(resume=run),
        lambda run: api.train("cartpole-ppo", init_from=run, run_dir="new"),
    ],
)
def test_python_raises_and_never_prompts(
    call: Callable[[Path], object], mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stored(tmp_path / "run", NAMED)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with pytest.raises(UntrustedRun):
        call(run)
    assert not mark.exists()


def test_python_trusts_by_an_argument(mark: Path, tmp_path: Path) -> None:
    run = stored(tmp_path / "run", {"env.id": f"{MODULE}:Walk"})
    policy = api.load_policy(run, trust=True)
    assert mark.exists() and policy([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    with pytest.raises(UntrustedRun):
        api.load_policy(run)


def test_a_run_of_built_in_kinds_needs_no_trust(zmqrl: Command, tmp_path: Path) -> None:
    run = stored(tmp_path / "run")
    assert zmqrl("eval", run, "--episodes", "1").code == 0
    for path in (run / "checkpoints").iterdir():
        path.rename(run / path.name)
    assert zmqrl("eval", f"file://{run}", "--episodes", "1").code == 0
    assert not list(load(stored=run, trusted=False).config.hosts.keys() - {"local"})


def test_the_presets_name_no_code_of_others() -> None:
    assert {preset: [*modules_of(load_config(preset))] for preset in presets()} == {preset: [] for preset in presets()}


def test_a_run_of_this_user_needs_no_trust(zmqrl: Command, mark: Path, tmp_path: Path) -> None:
    run = stored(tmp_path / "run", {"env.id": f"{MODULE}:Walk"}, os.geteuid())
    assert zmqrl("eval", run, "--episodes", "1").code == 0
    assert mark.exists()


@pytest.mark.parametrize("name", [".", "config.json", "run.json"])
@pytest.mark.parametrize("how", ["owner", "mode"])
def test_each_file_that_decides_is_looked_at(name: str, how: str, tmp_path: Path) -> None:
    run = stored(tmp_path / "run", {}, os.geteuid())
    assert other_owner(run) is None
    os.chown(run / name, OTHER, -1) if how == "owner" else (run / name).chmod(0o777)
    assert other_owner(run) is not None


def test_a_link_of_another_user_is_not_of_this_user(tmp_path: Path) -> None:
    run = stored(tmp_path / "run", {}, os.geteuid())
    (run / "config.json").rename(tmp_path / "mine.json")
    (run / "config.json").symlink_to(tmp_path / "mine.json")
    assert other_owner(run) is None
    os.chown(run / "config.json", OTHER, OTHER, follow_symlinks=False)
    assert other_owner(run) is not None


def test_trust_of_a_folder(zmqrl: Command, mark: Path, configuration: Path, tmp_path: Path) -> None:
    run = stored(tmp_path / "lab" / "runs" / "run", {"env.id": f"{MODULE}:Walk"})
    beside = stored(tmp_path / "lab" / "runs-of-others" / "run", {"env.id": f"{MODULE}:Walk"})
    assert zmqrl("trust", "lab/runs").code == 0
    assert (configuration / "zmqrl").stat().st_mode & 0o777 == 0o700
    assert (configuration / "zmqrl" / "trusted").stat().st_mode & 0o777 == 0o600
    assert zmqrl("eval", beside).code == 2 and not mark.exists()
    assert zmqrl("eval", run, "--episodes", "1").code == 0 and mark.exists()
    assert zmqrl("trust", "--list").out == f"{tmp_path}/lab/runs\n"
    outside = tmp_path / "lab" / "runs" / "link"
    outside.symlink_to(beside)
    assert zmqrl("eval", outside).code == 2
    assert zmqrl("trust", "--remove", tmp_path / "lab" / "runs").code == 0
    assert zmqrl("trust", "--list").out == "" and zmqrl("eval", run).code == 2
    refused = zmqrl("trust", "--remove", "lab")
    assert refused.code == 2
    compare(refused.error, value=f"{tmp_path}/lab", what="is not a prefix that is trusted")


@pytest.mark.parametrize("arguments", [(), ("--list", "lab"), ("nowhere",), ("s3://",), ("s3://lab/../x",)])
def test_an_invalid_trust_argument(arguments: tuple[str, ...], zmqrl: Command, configuration: Path) -> None:
    assert zmqrl("trust", *arguments).code == 2
    assert not configuration.exists()


def test_prefixes_are_compared_by_whole_names(tmp_path: Path) -> None:
    trust("s3://lab/runs", "https://lab.example.org/runs")
    for place in ("s3://lab/runs", "S3://LAB/runs/x/", "https://lab.example.org/runs/1"):
        assert is_trusted(place), place
    for place in (
        *("s3://lab/runs-evil", "s3://lab", "s3://lab//runs", "s3://lab/Runs/x", "gs://lab/runs/x"),
        *("s3://lab/runs/../x", "s3://lab/runs/./../x", "s3://lab/runs/%2e%2e/x", "s3://lab/runs\\..\\x"),
        *(
            "https://lab.example.org.evil.org/runs/1",
            "https://u@lab.example.org/runs/1",
            "https://lab.example.org:1/runs",
        ),
        *("s3:/lab/runs/x", "/lab/runs", tmp_path),
    ):
        assert not is_trusted(place), place
    assert canonical(f"{tmp_path}/a\n/b") is None, "a line of its own"


@pytest.mark.parametrize("how", ["owner", "mode", "link", "bytes"])
def test_a_file_of_prefixes_that_others_can_write_is_refused(
    how: str, zmqrl: Command, mark: Path, configuration: Path, tmp_path: Path
) -> None:
    run = stored(tmp_path / "run", {"env.id": f"{MODULE}:Walk"})
    trust(str(tmp_path))
    file = configuration / "zmqrl" / "trusted"
    if how == "owner":
        os.chown(file, OTHER, OTHER)
    elif how == "mode":
        file.chmod(0o620)
    elif how == "bytes":
        file.write_bytes(b"\xff\n")
    else:
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    ended = zmqrl("eval", run)
    assert ended.code == 2 and str(file) in ended.err and not mark.exists()
    assert zmqrl("trust", tmp_path / "run").code == 2


class Terminal:
    """A command whose stdin and stderr are a terminal."""

    def __init__(self, *arguments: object) -> None:
        self._fd, slave = pty.openpty()
        command = [sys.executable, "-m", "zmqrl", *map(str, arguments)]
        self._process = subprocess.Popen(
            command, stdin=slave, stdout=subprocess.PIPE, stderr=slave, env=environment(), text=True
        )
        os.close(slave)
        self._shown = ""

    def answer(self, question: str, answer: str) -> tuple[int, str, str]:
        """Exit code, stdout, and what was shown."""
        self._read(lambda: question in self._shown)
        os.write(self._fd, f"{answer}\n".encode())
        self._read(lambda: False)
        out, _ = self._process.communicate(timeout=WAIT_S)
        os.close(self._fd)
        return self._process.returncode, out, self._shown

    def _read(self, is_over: Callable[[], bool]) -> None:
        until = time.monotonic() + WAIT_S
        while not is_over():
            assert select.select([self._fd], [], [], max(0.0, until - time.monotonic()))[0], self._shown
            try:
                self._shown += os.read(self._fd, 4096).decode()
            except OSError:  # the last process has closed it
                return


@pytest.mark.whole
def test_a_question_on_a_terminal(zmqrl: Command, mark: Path, tmp_path: Path) -> None:
    run = stored(tmp_path / "lab" / "run", {"env.id": f"{MODULE}:Walk", "env.wrappers": [f"{MODULE}:\x1b[2JX"]})
    code, out, shown = Terminal("eval", run).answer("no (n)? ", "n")
    assert (code, out) == (2, "") and f"env.id: {MODULE}:Walk" in shown and f"always for {tmp_path}/lab (a)" in shown
    assert not mark.exists() and "\x1b" not in shown and "\\x1b[2JX" in shown
    change(run, {"env.wrappers": []})
    code, out, _ = Terminal("eval", run, "--episodes", "1", "--json").answer("no (n)? ", "y")
    assert code == 0 and json.loads(out)["episodes"] == 1 and mark.exists()
    assert prefixes() == []
    code, _, _ = Terminal("eval", run, "--episodes", "1").answer("no (n)? ", "a")
    assert code == 0 and prefixes() == [f"{tmp_path}/lab"]
    assert zmqrl("eval", run, "--episodes", "1").code == 0


@pytest.mark.parametrize("uid", [OTHER, UNMAPPED])
def test_an_owner_that_cannot_be_compared_is_queried_once(
    uid: int, mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stored(tmp_path / "run", {"env.id": f"{MODULE}:Walk"}, uid)
    asked: list[str] = []
    for name in ("stdin", "stderr"):
        monkeypatch.setattr(f"sys.{name}.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin.readline", lambda: asked.append("y") or "y\n", raising=False)
    for _ in range(2):
        assert load(stored=run).config.env.id == f"{MODULE}:Walk"
    assert asked == ["y"], "one process asks once"
    monkeypatch.setattr("zmqrl.run_files.trust._allowed", set())
    load(stored=run)
    assert len(asked) == (1 if uid == UNMAPPED else 2)


def test_a_run_that_was_made_on_squashed_nfs_is_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.agent.plans import stand_in_plan
    from zmqrl.data_stores import files

    whole = files.replace

    def squashed(path: str, *arguments: Any) -> int:
        written = whole(path, *arguments)
        os.chown(path, UNMAPPED, UNMAPPED)
        return written

    monkeypatch.setattr(files, "replace", squashed)
    begun(stand_in_plan(tmp_path / "squashed")).release()
    monkeypatch.setattr(files, "replace", whole)
    begun(stand_in_plan(tmp_path / "plain")).release()
    assert prefixes() == [str(tmp_path / "squashed")]


NOTICES = {"on_end": "touch ended", "webhook": "https://evil.example.org/$HOME"}


@pytest.mark.parametrize("trusted", [True, False])
def test_notices_of_a_run_of_another_user_are_off_unless_given_again(
    trusted: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = stored(tmp_path / "run", NOTICES)
    if trusted:
        trust(str(run))
    config = load(stored=run, trusted=trusted).config
    assert (config.on_end, config.webhook) == (None, None)
    assert [record.args[0] for record in caplog.records] == ["on_end", "webhook"]  # type: ignore[index]
    assert load(stored=run, overrides=["on_end=date"]).config.on_end == "date"
    mine = stored(tmp_path / "mine", NOTICES, os.geteuid())
    assert load(stored=mine).config.on_end == NOTICES["on_end"]


def test_a_copy_that_is_fetched_has_no_notices(tmp_path: Path) -> None:
    run = stored(tmp_path / "run", {**NOTICES, "env.wrappers": []}, os.geteuid())
    fetch(f"file://{run}", tmp_path / "new", to_resume=True)
    config = load(stored=tmp_path / "new").config
    assert (config.on_end, config.webhook, config.run.total_env_steps) == (None, None, 250_000)


@pytest.mark.parametrize(
    "changes",
    [
        {"hosts": {"local": {"workers": 1, "wrap": "sh -c 'touch x' --"}}},
        {"hosts": {"local": {"workers": 1, "env": {"LD_PRELOAD": "/tmp/x.so"}}}},
        {"hosts": {"gpu1": {"workers": 1}}},
        {"defaults": {"python": "/tmp/x"}},
        {"code": {"sync": ["/root/.ssh"]}},
    ],
)
def test_a_resume_names_programs_and_hosts_too(changes: Mapping[str, Any], zmqrl: Command, tmp_path: Path) -> None:
    run = stored(tmp_path / "run", changes)
    with pytest.raises(UntrustedRun) as caught:
        load(stored=run, trusted=False)
    assert caught.value.names[0].startswith(next(iter(changes)))
    assert zmqrl("eval", run, "--episodes", "1").code == 0
    assert load(stored=stored(tmp_path / "plain", {"hosts": {"local": {"workers": 3}}}), trusted=False).config


def test_a_damaged_configuration_of_another_user_gives_one_message(zmqrl: Command, tmp_path: Path) -> None:
    run = stored(tmp_path / "run")
    (run / "config.json").write_text("[" * 100_000)
    assert zmqrl("eval", run).code == 2
    with pytest.raises(ConfigError):
        load("cartpole-ppo", init_from=str(run))
