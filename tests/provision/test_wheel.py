"""The wheel that is sent to hosts holds what runs here, whether that is a checkout or was installed."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.raising import raises
from tests.support.waiting import WAIT_S
from zmqrl.errors import ConfigError
from zmqrl.provision import wheel
from zmqrl.provision.wheel import Wheel, make_wheel

pytestmark = pytest.mark.whole
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built() -> Wheel:
    return make_wheel(ROOT / "zmqrl")


def names(made: Wheel) -> set[str]:
    with zipfile.ZipFile(io.BytesIO(made.content)) as archive:
        return set(archive.namelist())


def test_of_a_checkout(built: Wheel) -> None:
    files = {"zmqrl/constraints.txt", "zmqrl/presets/cartpole-ppo.yaml", "zmqrl/provision/remote_install.py"}
    assert files <= names(built)
    assert built.name == f"zmqrl-{built.version}-py3-none-any.whl"
    with zipfile.ZipFile(io.BytesIO(built.content)) as archive:
        assert archive.read("zmqrl/constraints.txt") == (ROOT / "constraints.txt").read_bytes()


def test_the_checkout_is_left_as_it_was() -> None:
    before = sorted(ROOT.iterdir())
    make_wheel(ROOT / "zmqrl")
    assert sorted(ROOT.iterdir()) == before


def test_of_an_installed_one_is_the_same_again(built: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed by pip, packed again, installed from that: the same files, and a command that starts."""
    first = installed(built, tmp_path / "first")
    monkeypatch.syspath_prepend(str(first))
    again = make_wheel(first / "zmqrl")
    assert (again.digest, again.version, again.name) == (built.digest, built.version, built.name)
    assert names(again) == names(built)
    second = installed(again, tmp_path / "second", "--no-compile")
    assert (second / "bin" / "zmqrl").exists()
    monkeypatch.syspath_prepend(str(second))
    assert make_wheel(second / "zmqrl").content == again.content


def test_a_changed_file_changes_the_digest(built: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = installed(built, tmp_path / "site", "--no-compile")
    with (folder / "zmqrl" / "entry.py").open("a") as file:
        file.write("# changed\n")
    monkeypatch.syspath_prepend(str(folder))
    changed = make_wheel(folder / "zmqrl")
    assert changed.digest != built.digest
    installed(changed, tmp_path / "other", "--no-compile")  # its RECORD goes with the changed file: pip checks it


def installed(made: Wheel, folder: Path, *flags: str) -> Path:
    file = folder.with_name(folder.name + "-wheel") / made.name
    file.parent.mkdir()
    file.write_bytes(made.content)
    pip = [sys.executable, "-I", "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--disable-pip-version-check"]
    subprocess.run([*pip, *flags, "--target", str(folder), str(file)], check=True, timeout=WAIT_S)
    return folder


def test_of_neither(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "zmqrl" / "presets", tmp_path / "zmqrl")
    with raises(ConfigError, fix="start zmqrl from one of these"):
        make_wheel(tmp_path / "zmqrl")


def test_a_failed_build_names_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "BUILD", "raise ImportError('no setuptools')")
    what = f"no wheel could be built from {ROOT}: ImportError: no setuptools"
    with raises(ConfigError, what=what, fix=f"try: {sys.executable} -m pip install 'setuptools>=77.0.3'"):
        make_wheel(ROOT / "zmqrl")
