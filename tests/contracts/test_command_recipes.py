"""The suite of orchestrators over the recipes of docs/hosts/commands.md that can run on one machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contracts.suites import name_of
from tests.contracts.test_orchestrators import Check
from tests.lab import Lab, lab_or_skip
from tests.support.marks import long
from tests.support.running import ROOT, RUN_S, environment
from tests.support.waiting import WAIT_S, until
from zmqrl.orchestrators.command import CommandConfig
from zmqrl.testing import orchestrator
from zmqrl.testing.deployed import Hosts
from zmqrl.testing.orchestrator import ORCHESTRATOR

pytestmark = pytest.mark.whole
PAGE = (ROOT / "docs" / "hosts" / "commands.md").read_text(encoding="utf-8")
CONTAINERS = """
[containers]
netns = "host"
cgroupns = "host"
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
"""
"""For a container within a container: other limits, and another control group, need more rights."""
VOLUMES = ("/usr", "/etc", "/tmp", str(ROOT), sys.prefix, sys.base_prefix, str(Path(sys.executable).parent))


def recipe(title: str) -> dict[str, Any]:
    """The section `orchestrator` below a heading of the page."""
    section = PAGE.partition(f"### {title}\n")[2].partition("\n### ")[0]
    found = re.search(r"```yaml\n(.*?)```", section, re.DOTALL)
    assert found is not None, title
    kind: dict[str, Any] = yaml.safe_load(found[1])["orchestrator"]
    return kind


def needs(command: Sequence[str]) -> None:
    """Skip where a command does not work."""
    done = subprocess.run(["sh", "-c", '"$@" </dev/null', "sh", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{command[0]}: {done.stderr.strip()[-300:]}")


def hosts_of(kind: Mapping[str, Any], folder: Path, host: str = "far") -> Hosts:
    section = {"workers": 1, "python": sys.executable, "workdir": str(folder / "far"), "env": {"PYTHONPATH": str(ROOT)}}
    return Hosts(folder, {"orchestrator": kind, "hosts": {"local": {"workers": 0}, host: section}})


def with_long(*default: Check) -> list[Any]:
    return [check if check in default else long(check) for check in ORCHESTRATOR]


@pytest.mark.parametrize("check", with_long(orchestrator.down_ends_a_run_and_reports_it), ids=name_of)
def test_namespaces(check: Check, tmp_path: Path) -> None:
    kind = recipe("Pid namespaces")
    needs([*kind["run"], "true"])
    needs(["sh", "-c", "pgrep -f sh"])
    hosts = hosts_of(kind, tmp_path)
    check(lambda: hosts)


@pytest.fixture
def mpi(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    kind = recipe("MPI")
    needs([word.replace("{host}", "localhost") for word in [*kind["run"], "true"]])
    return kind


@pytest.mark.parametrize("check", with_long(), ids=name_of)
def test_mpi(check: Check, mpi: dict[str, Any], tmp_path: Path) -> None:
    hosts = hosts_of(mpi, tmp_path, "localhost")
    check(lambda: hosts)


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of an engine; docker has a daemon of its own, which exists before the tests look for leaks."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "docker":
            with docker(tmp_path_factory.mktemp("docker")) as address:
                patch.setenv("DOCKER_HOST", address)
                yield request.param
        else:
            yield request.param


@contextlib.contextmanager
def docker(folder: Path) -> Iterator[str]:
    """Address of a daemon."""
    if shutil.which("dockerd") is None or os.getuid():
        pytest.skip("needs root, and dockerd: apt-get install docker.io")
    words = ["--iptables=false", "--bridge=none", "--storage-driver=vfs", f"--host=unix://{folder}/socket"]
    places = [f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(["dockerd", *words, *places], stdout=log, stderr=log)
    try:
        until(lambda: daemon.poll() is not None or b"API listen on" in (folder / "log").read_bytes(), "dockerd")
        if daemon.poll() is not None:
            pytest.skip(f"dockerd: {(folder / 'log').read_text()[-300:]}")
        yield f"unix://{folder}/socket"
    finally:
        daemon.terminate()
        daemon.wait(WAIT_S)
        for place in filter(os.path.ismount, (folder / "exec" / "netns").glob("*")):  # it leaves them
            subprocess.run(["umount", place], check=True)


@pytest.fixture
def image(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[str]]:
    """An engine, and arguments for a container with the folders of this machine that Python needs."""
    root = tmp_path / "root"
    volumes = sorted({path for path in VOLUMES if Path(path).is_dir()}, key=len)
    for path in [*volumes, "/proc", "/sys", "/dev"]:
        (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for link in ("bin", "lib", "lib64", "sbin"):
        (root / link).symlink_to(f"usr/{link}")
    options = [part for path in volumes for part in ("-v", f"{path}:{path}")]
    if engine == "docker":
        tar = subprocess.run(["tar", "-C", root, "-c", "."], capture_output=True, check=True).stdout
        subprocess.run(["docker", "import", "-", "here"], input=tar, capture_output=True, check=True)
        return engine, [*options, "here"]
    config = tmp_path / "containers.conf"
    config.write_text(CONTAINERS)
    monkeypatch.setenv("CONTAINERS_CONF", str(config))
    monkeypatch.setenv("STORAGE_DRIVER", "vfs")
    needs([engine, "run", "--rm", *options, "--rootfs", str(root), sys.executable, "-c", "import zmq"])
    return engine, [*options, "--rootfs", str(root)]


def of_engine(kind: Mapping[str, Any], image: tuple[str, list[str]]) -> dict[str, Any]:
    """A recipe for `docker` and IMAGE, for another engine and image."""
    values = {"docker": [image[0]], "IMAGE": image[1]}
    words = {key: [part for word in kind[key] for part in values.get(word, [word])] for key in kind if key != "kind"}
    return {"kind": kind["kind"], **words}


@pytest.mark.parametrize("engine", ["docker", "podman"], indirect=True)
@pytest.mark.parametrize("check", with_long(), ids=name_of)
def test_a_container_per_host(check: Check, image: tuple[str, list[str]], tmp_path: Path) -> None:
    hosts = hosts_of(of_engine(recipe("A container per host"), image), tmp_path)
    check(lambda: hosts)
    assert subprocess.run([image[0], "ps", "-a", "-q"], capture_output=True, check=True).stdout == b""


@pytest.mark.parametrize("engine", ["docker", "podman"], indirect=True)
@pytest.mark.parametrize("check", with_long(), ids=name_of)
def test_running_containers(check: Check, image: tuple[str, list[str]], tmp_path: Path) -> None:
    engine, arguments = image
    name = f"far-{tmp_path.stat().st_ino}"
    start = [engine, "run", "-d", "--network=host", "--name", name, *arguments, "sleep", "infinity"]
    subprocess.run(start, capture_output=True, check=True)
    try:
        hosts = hosts_of(of_engine(recipe("Running containers and pods"), image), tmp_path, name)
        check(lambda: hosts)
    finally:
        subprocess.run([engine, "rm", "-f", name], capture_output=True, check=True)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with lab_or_skip(2) as lab:
        yield lab


@pytest.mark.parametrize("check", with_long(), ids=name_of)
def test_openssh(check: Check, lab: Lab) -> None:
    """Over a connection that the user has opened before, in a process that has the lab's network and ~/.ssh."""
    kind, folder = recipe("OpenSSH"), tempfile.mkdtemp(dir=lab.shared)
    ((host, section),) = lab.hosts_yaml(1, workers=1).items()
    section = {key: value for key, value in section.items() if key in ("workers", "python", "workdir", "env")}
    settings = {"orchestrator": kind, "hosts": {"local": {"workers": 0}, host: section}}
    path = next(word for word in kind["run"] if word.startswith("ControlPath"))
    script = f'ssh -fNM -o {path} {host} || exit; trap "ssh -O exit -o {path} {host}" EXIT; "$@"'
    words = [sys.executable, "-m", "tests.contracts.one_check", check.__name__, folder, json.dumps(settings)]
    argv = ["sh", "-c", script, "sh", *words]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with lab.run_here(argv, cwd=ROOT, env=environment(), **pipes) as process:
        try:
            out, _ = process.communicate(timeout=RUN_S)
        finally:
            process.kill()
    assert process.returncode == 0, out


def test_every_recipe_is_valid() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) > 6
    for block in blocks:
        keys = {key: tuple(value) for key, value in yaml.safe_load(block)["orchestrator"].items() if key != "kind"}
        assert CommandConfig(**keys).run
