"""Two hosts with kernels of their own, whose runs and store lie on one NFS mount."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.nfs import MOUNT, Guest
from tests.lab.skipping import nfs_or_skip
from tests.support.running import RUN_S
from tests.support.runs.command_runs import PLAIN, ROOT

"""A guest has one slow CPU: a training of 4,000 env steps takes half a minute in it."""
SHELL = Path(__file__).parents[2] / "lab" / "guest_shell.py"
SETS = [word for pair in (f"store.path={MOUNT}/store", *PLAIN) for word in ("--set", pair)]
SLOW = ("env.id=tests.stand_ins.slow_envs:Slow", "env.kwargs.step_s=0.01", "env.max_episode_steps=50")
End = tuple[int, str]


class Site:
    """The export, seen from this machine as `folder` and from both hosts as `MOUNT`."""

    def __init__(self, folder: Path, hosts: list[Guest]) -> None:
        self.folder, self.hosts = folder, hosts

    def start(self, host: int, *commands: tuple[object, ...]) -> None:
        """`zmqrl` commands side by side on a host."""
        argvs = [[sys.executable, "-m", "zmqrl", *map(str, words)] for words in commands]
        env = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        request = {"cwd": MOUNT, "env": env, "timeout_s": RUN_S, "commands": argvs}
        self.hosts[host].say(json.dumps(request))

    def ends(self, host: int) -> list[End]:
        """Exit code and output of each command that was started last."""
        return [(code, output) for code, output in json.loads(self.hosts[host].hear("SHELL"))]

    def run(self, host: int, *words: object) -> str:
        """One command that succeeds; its output."""
        self.start(host, words)
        ((code, output),) = self.ends(host)
        assert code == 0, output
        return output

    def json(self, *parts: str) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.folder.joinpath(*parts).read_text())
        return loaded

    def owner(self, run: str) -> dict[str, Any]:
        return self.json("store", self.json(run, "run.json")["lineage"], "owner.json")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with nfs_or_skip(f"{sys.executable} {SHELL}", "SHELL") as (folder, _, guests):
        yield Site(folder, guests)


def train(name: str, seed: int, steps: int) -> tuple[object, ...]:
    budget = ("--set", f"run.total_env_steps={steps}")
    return ("train", "cartpole-ppo", "--mode", "single", *SETS, "--run-dir", name, "--seed", seed, *budget, "--plain")


@pytest.mark.long
def test_runs_of_two_hosts_share_a_store_and_one_continues_on_the_other_host(site: Site) -> None:
    site.start(0, train("a", 1, 2000))
    site.start(1, train("b", 2, 1500))
    for host in (0, 1):
        ((code, output),) = site.ends(host)
        assert code == 0, output
    names = [site.owner(name)["host"] for name in "ab"]
    assert len(set(names)) == 2
    before = site.json("a", "summary.json")
    played = {name: site.run(1, "eval", name, "--episodes", 2) for name in "ab"}
    site.run(1, "train", "--resume", "a", "--set", "run.total_env_steps=3000", "--plain")
    owner, after = site.owner("a"), site.json("a", "summary.json")
    assert (owner["host"], owner["attempt"]) == (names[1], 2)
    assert after["resumed_from"]["env_steps"] == before["env_steps"]
    assert after["env_steps"] == before["env_steps"] + after["ledger"]["stored"] >= 3000
    assert site.run(0, "eval", "b", "--episodes", 2) == played["b"]
    assert site.run(0, "eval", "a", "--episodes", 2) != played["a"]
    assert len([path for path in (site.folder / "store").iterdir() if path.is_dir()]) == 2


@pytest.mark.long
def test_of_two_seeds_each_keeps_its_own_checkpoints(site: Site) -> None:
    words = ("--set", "run.total_env_steps=2000", "--plain", "--run-dir", "both", "--seeds", 2)
    site.run(0, "train", "cartpole-ppo", "--mode", "single", *SETS, *words)
    runs = sorted(path.parent.name for path in (site.folder / "both").glob("*/run.json"))
    assert len(runs) == 2
    lineages = {site.json("both", run, "run.json")["lineage"] for run in runs}
    assert len(lineages) == 2
    for lineage in lineages:
        assert any((site.folder / "store" / lineage).glob("full-*"))


@pytest.mark.long
def test_one_of_two_hosts_that_resume_at_the_same_time_trains(site: Site) -> None:
    """The one trains for no less than 35 s, however fast the machine is: the other finds it at work."""
    slow = [word for pair in SLOW for word in ("--set", pair)]
    site.run(0, *train("c", 3, 512), *slow)
    before = site.json("c", "summary.json")["env_steps"]
    for host in (0, 1):
        site.start(host, ("train", "--resume", "c", "--set", "run.total_env_steps=4000", "--plain"))
    ends = [end for host in (0, 1) for end in site.ends(host)]
    assert sorted(code for code, _ in ends) == [0, 2], ends
    assert site.owner("c")["attempt"] == 2
    assert site.json("c", "summary.json")["resumed_from"]["env_steps"] == before
