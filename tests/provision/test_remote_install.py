"""What `zmqrl setup` does on a host, here on this one: a shell takes the place of the SSH connection."""

from __future__ import annotations

import fcntl
import http.server
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import pytest

from tests.provision.setup_parts import ROOT, bundle, requirements
from tests.support.running import RUN_S
from tests.support.waiting import WAIT_S
from zmqrl.config.codec import replace
from zmqrl.config.sections import HostSection
from zmqrl.errors import HostFailed
from zmqrl.provision import remote_install
from zmqrl.provision.install import InstallBundle, Installed, _script, _Setup
from zmqrl.provision.remote_install import NEWEST, OLDEST, STAMP
from zmqrl.ssh.connection import Connection

pytestmark = pytest.mark.whole


@dataclass
class Done:
    code: int
    stdout: bytes
    stderr: bytes


@dataclass
class Shell:
    """A login shell in a home of its own, with no Python but what `path` has."""

    home: Path
    path: str
    sent: list[str] = field(default_factory=list)
    accepted: tuple[str, ...] = ()
    jump_accepted: tuple[str, ...] = ()

    def check_answer(self) -> None:
        """It answers."""

    def run(self, command: str, timeout_s: float, input: bytes = b"") -> Done:
        env = {"HOME": str(self.home), "PATH": self.path, "PIP_CONFIG_FILE": os.devnull}
        done = subprocess.run(
            command, shell=True, input=input, capture_output=True, env=env, cwd=self.home, timeout=RUN_S
        )
        return Done(done.returncode, b"Welcome!\n" + done.stdout, done.stderr)

    def put(self, content: bytes | Path, path: str) -> None:
        self.sent.append(Path(path).name)
        assert path.startswith(str(self.home))
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_bytes(content.read_bytes() if isinstance(content, Path) else content)


@pytest.fixture(scope="module")
def goods(tmp_path_factory: pytest.TempPathFactory) -> InstallBundle:
    return bundle(tmp_path_factory.mktemp("goods") / "wheels")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A host with this test's Python under the name python3."""
    (tmp_path / "programs").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "programs" / "python3").symlink_to(os.path.realpath(sys.executable))
    return Shell(tmp_path / "home", f"{tmp_path}/programs:/usr/sbin:/sbin:{only_tools(tmp_path)}")


@pytest.fixture(scope="module")
def empty_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With pip alone: making one is slow."""
    folder = tmp_path_factory.mktemp("venv") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=WAIT_S)
    return folder


@pytest.fixture
def with_venv(shell: Shell, empty_venv: Path) -> None:
    """The host has one that is empty."""
    shutil.copytree(empty_venv, shell.home / "venvs" / "zmqrl", symlinks=True)


def only_tools(tmp_path: Path) -> Path:
    """A /usr/bin without a Python in it."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("sh", "cat", "tail", "tr"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    return folder


HOST = HostSection(python="~/venvs/zmqrl/bin/python", workdir="~/zmqrl")


def set_up(shell: Shell, goods: InstallBundle, python: str = str(HOST.python), **section: Any) -> Installed:
    host = replace(HOST, python=python, **section)
    return _Setup("node7", "ssh node7", cast(Connection, shell), host, goods).run()


def refused(shell: Shell, goods: InstallBundle, python: str = str(HOST.python)) -> str:
    with pytest.raises(HostFailed) as failed:
        set_up(shell, goods, python)
    return str(failed.value)


@pytest.mark.long
def test_a_bare_host_gets_a_venv_with_this_very_version(shell: Shell, goods: InstallBundle) -> None:
    done = set_up(shell, goods)
    python = shell.home / "venvs" / "zmqrl" / "bin" / "python"
    assert (done.python, done.made_venv, done.was_there, done.version) == (
        str(python),
        True,
        False,
        goods.wheel.version,
    )
    code = "import zmqrl; print(zmqrl.__file__)"
    said = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True).stdout
    assert said.startswith(str(shell.home / "venvs" / "zmqrl" / "lib"))
    assert os.listdir(shell.home / "zmqrl") == []  # what was sent is gone again
    assert sorted(os.listdir(shell.home)) == ["venvs", "zmqrl"]
    changed_later(shell, goods, python)


def changed_later(shell: Shell, goods: InstallBundle, python: Path) -> None:
    """The second setup sends nothing; one of other code with the same version number installs that."""
    sent = len(shell.sent)
    again = set_up(shell, goods)
    assert (again.was_there, len(shell.sent)) == (True, sent)
    assert "already installed" in str(again)
    entry = next((shell.home / "venvs" / "zmqrl" / "lib").glob("python*/site-packages/zmqrl/entry.py"))
    entry.write_text("broken = True\n")
    mended = set_up(shell, goods)
    assert (mended.was_there, mended.made_venv) == (False, False)
    assert entry.read_bytes() == (ROOT / "zmqrl" / "entry.py").read_bytes()
    other_pins = replace(goods, constraints=goods.constraints + b"absent==1\n")
    assert not _Setup("node7", "ssh", cast(Connection, shell), HOST, other_pins)._run_step("check", 30.0)["current"]


UV = shutil.which("uv", path=str(Path(sys.executable).parent))


@pytest.mark.long
@pytest.mark.skipif(UV is None, reason="uv is not installed")
def test_uv_does_it_where_it_is_installed_also_without_ensurepip(shell: Shell, goods: InstallBundle) -> None:
    assert UV is not None
    without_ensurepip(shell)
    (shell.home / ".local" / "bin").mkdir(parents=True)
    (shell.home / ".local" / "bin" / "uv").symlink_to(UV)
    done = set_up(shell, goods)
    assert (done.made_venv, done.version) == (True, goods.wheel.version)
    assert not list((shell.home / "venvs" / "zmqrl" / "lib").glob("python*/site-packages/pip"))
    changed_later(shell, goods, shell.home / "venvs" / "zmqrl" / "bin" / "python")


@pytest.mark.long
@pytest.mark.usefixtures("with_venv")
def test_pip_does_it_where_uv_cannot(shell: Shell, goods: InstallBundle) -> None:
    uv = shell.home.parent / "programs" / "uv"
    uv.write_text('#!/bin/sh\necho "$@" >>$HOME/uv.log\nexit 2\n')
    uv.chmod(0o755)
    assert set_up(shell, goods).version == goods.wheel.version
    assert (shell.home / "uv.log").read_text().startswith("pip install --python")


@pytest.fixture
def index() -> Iterator[tuple[str, list[str]]]:
    """The address of a package index that has nothing, and what it was asked for."""
    request: list[str] = []

    class Empty(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            request.append(self.path)
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Empty) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/simple", request
        server.shutdown()
        thread.join(WAIT_S)


@pytest.mark.long
@pytest.mark.usefixtures("with_venv")
def test_the_hosts_own_index_has_not_got_it(shell: Shell, goods: InstallBundle, index: tuple[str, list[str]]) -> None:
    address, request = index
    with pytest.raises(HostFailed) as failed:
        set_up(shell, replace(goods, wheels=None), env={"PIP_INDEX_URL": address})
    assert request[0] == f"/simple/{requirements()[0]}/"
    cause, fix = failed.value.cause, failed.value.fix
    assert cause.startswith(f"pip found no {requirements()[0]}==") and "in the package index of the host" in cause
    assert "zmqrl setup hosts.yaml --limit node7 --wheels DIR" in fix


@pytest.mark.long
@pytest.mark.usefixtures("with_venv")
def test_without_an_index_and_without_a_wheel_that_is_needed(shell: Shell, goods: InstallBundle) -> None:
    assert goods.wheels is not None
    without = replace(goods, wheels=tuple(w for w in goods.wheels if not w.name.startswith("torch-")))
    pin = f"torch=={version('torch')}"
    assert refused(shell, without).startswith(
        f"node7: pip found no {pin} compatible with the other pins in the wheel folder"
    )
    message = refused(shell, replace(without, constraints=b""))
    assert "pip: No matching distribution found for torch>=2.4" in message
    assert "add it: python -m pip download -d DIR torch; for other pins" in message
    assert os.listdir(shell.home / "zmqrl") == []


@pytest.mark.parametrize(
    ("script", "cause", "fix"),
    [
        ("exit 1", "no Python 3.10 to 3.13 was found to create ~/venvs/zmqrl/bin/python", "apt install python3"),
        ('echo "Python 3.8.1"; exit 1', ", found Python 3.8.1", "set hosts.node7.python"),
        ('case "$*" in *sys.exit*) exit 0;; esac; exit 3', "no answer from setup: exit code 3", "ssh node7 sh -c true"),
    ],
)  # fmt: skip
def test_a_host_whose_python_will_not_do(shell: Shell, goods: InstallBundle, script: str, cause: str, fix: str) -> None:
    python = shell.home.parent / "programs" / "python3"
    python.unlink()
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    message = refused(shell, goods)
    assert cause in message
    assert fix in message
    assert os.listdir(shell.home) == []


def test_a_host_without_any_python(shell: Shell, goods: InstallBundle) -> None:
    (shell.home.parent / "programs" / "python3").unlink()
    assert refused(shell, goods).startswith(
        "node7: no Python 3.10 to 3.13 was found to create ~/venvs/zmqrl/bin/python\n"
    )


HIDDEN = """import sys, importlib.util as u
find = u.find_spec
u.find_spec = lambda name, *more: None if name == "ensurepip" else find(name, *more)
exec(compile(sys.argv.pop(1), "program", "exec"))
"""


def without_ensurepip(shell: Shell) -> None:
    (shell.home.parent / "hidden.py").write_text(HIDDEN)
    python = shell.home.parent / "programs" / "python3"
    python.unlink()
    hidden = f'exec {sys.executable} -I -c "$(cat {shell.home.parent}/hidden.py)"'
    python.write_text(f'#!/bin/sh\n[ "$1 $2" = "-I -c" ] || exit 1\nshift 2\n{hidden} "$@"\n')
    python.chmod(0o755)


def test_debian_without_python3_venv(shell: Shell, goods: InstallBundle) -> None:
    """Its Python has the module venv and no ensurepip."""
    without_ensurepip(shell)
    message = refused(shell, goods)
    minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"the host's Python {minor} cannot create ~/venvs/zmqrl/bin/python: venv or ensurepip is missing" in message
    assert f"sudo apt install python{minor}-venv" in message
    assert not (shell.home / "venvs" / "zmqrl").exists()


def test_it_installs_into_venvs_alone(shell: Shell, goods: InstallBundle) -> None:
    python = os.path.realpath(sys.executable)
    assert f"{python} is not in a venv; setup installs into venvs only" in refused(shell, goods, python)
    assert "python9 was not found" in refused(shell, goods, "python9")
    assert "/opt/none/python9x does not exist and is not of the form VENV/bin/python" in refused(
        shell, goods, "/opt/none/python9x"
    )
    assert os.listdir(shell.home) == []


def test_an_editable_zmqrl_is_the_users_own(shell: Shell, goods: InstallBundle) -> None:
    source = shell.home / "src"
    (source / "zmqrl").mkdir(parents=True)
    (source / "zmqrl" / "__init__.py").write_text("")
    (source / "setup.cfg").write_text("[metadata]\nname = zmqrl\nversion = 9\n[options]\npackages = zmqrl\n")
    (source / "setup.py").write_text("from setuptools import setup; setup()")
    venv = shell.home / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=RUN_S)
    site = next((venv / "lib").glob("python*/site-packages"))
    (site / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "install", "-q", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "-e", source], check=True, timeout=RUN_S)
    message = refused(shell, goods, "~/venv/bin/python")
    assert f"has an editable zmqrl, whose files in {source} differ from those on this machine" in message
    assert "-m pip uninstall -y zmqrl" in message


def test_a_venv_whose_python_is_gone(shell: Shell, goods: InstallBundle) -> None:
    (shell.home / "venvs" / "zmqrl" / "bin").mkdir(parents=True)
    (shell.home / "venvs" / "zmqrl" / "bin" / "python").symlink_to("/nowhere/python3.9")
    message = refused(shell, goods)
    assert f"{shell.home}/venvs/zmqrl exists, but its Python does not start" in message
    assert f"ssh node7 rm -r {shell.home}/venvs/zmqrl" in message


def test_a_workdir_that_cannot_be_made(shell: Shell, goods: InstallBundle) -> None:
    (shell.home / "zmqrl").write_text("a file")
    message = refused(shell, goods)
    assert "File exists" in message
    assert "set hosts.node7.workdir" in message


@pytest.fixture
def waiting(shell: Shell, goods: InstallBundle) -> Iterator[subprocess.Popen[bytes]]:
    """An install step that waits for the lock that this test holds."""
    upload = shell.home / "upload"
    upload.mkdir()
    (shell.home / "venvs").mkdir()
    with (shell.home / "venvs" / "zmqrl.setup-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        nothing = dict.fromkeys(("digest", "stamp", "wheel"), "")
        request = {"step": "install", "python": "~/venvs/zmqrl/bin/python", "workdir": "~", "env": {}, **nothing}
        request |= {"extras": [], "no_index": True, "timeout_s": RUN_S, "upload": str(upload)}
        env = {"HOME": str(shell.home), "PATH": shell.path}
        process = subprocess.Popen(["sh", "-s"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(_script(request, HostSection()).encode())
        process.stdin.close()
        assert process.stdout.readline() == b".\n"  # it waits, and says so
        yield process
    process.kill()
    process.wait(WAIT_S)
    process.stdout.close()


def test_hosts_that_share_a_home_take_turns(waiting: subprocess.Popen[bytes]) -> None:
    assert waiting.stdout is not None
    assert [waiting.stdout.readline() for _ in range(3)] == [b".\n"] * 3
    assert waiting.poll() is None


def test_it_ends_when_no_client_waits_any_more(waiting: subprocess.Popen[bytes], shell: Shell) -> None:
    assert waiting.stdout is not None
    waiting.stdout.close()
    waiting.wait(WAIT_S)
    assert not (shell.home / "upload").exists()


def test_a_venv_half_made_is_removed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next setup would take it for one that is broken."""
    venv = shell.home / "venv"

    def begun(command: list[str], deadline: float) -> tuple[int, str]:
        (venv / "bin").mkdir(parents=True)
        raise BrokenPipeError

    monkeypatch.setattr(remote_install, "_run", begun)
    with pytest.raises(BrokenPipeError):
        remote_install._make_venv(str(venv), 0.0)
    assert not venv.exists()


@pytest.mark.usefixtures("with_venv")
def test_leftovers_of_an_interrupted_setup_are_removed(shell: Shell, goods: InstallBundle) -> None:
    for name, age_s in (("setup-old", 100_000), ("setup-new", 60), ("runs", 100_000)):
        (shell.home / "zmqrl" / name).mkdir(parents=True)
        os.utime(shell.home / "zmqrl" / name, (time.time() - age_s,) * 2)
    with pytest.raises(HostFailed):
        set_up(shell, replace(goods, wheels=()))
    assert sorted(os.listdir(shell.home / "zmqrl")) == ["runs", "setup-new"]


def test_the_versions_of_python_are_those_of_the_package() -> None:
    text = (ROOT / "setup.cfg").read_text()
    assert f"python_requires = >={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}\n" in text
    assert requirements()
    assert STAMP.startswith(".")
