"""The reaper on other hosts: one SSH connection each, side by side, every wait bounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

from zmqrl.agent.reaper import KILL_WAIT_S as REAPER_KILL_S
from zmqrl.agent.reaper import ROUNDS
from zmqrl.config.hosts import filled
from zmqrl.config.sections import Config, HostSection
from zmqrl.errors import HostFailed, WireError, ZmqrlError
from zmqrl.launch.boots import FAR_RUNS
from zmqrl.messages.agent import Reaped
from zmqrl.messages.lines import reaped
from zmqrl.orchestrators.ssh_commands import far, reaper_command
from zmqrl.orchestrators.ssh_config import Target, resolve
from zmqrl.orchestrators.ssh_connection import Connection, open_all

START_S = 20.0
"""What a python of another host may take to come up."""
REMOVE_S = 10.0
MOST_AT_ONCE = 32
SAID = 300
"""Characters of what a host reported that go into a message."""


def reap_far(config: Config, hosts: Sequence[str], run_id: str, grace_s: float) -> Iterator[tuple[str, Reaped | str]]:
    """End what is left of the run on `hosts`; each with what became of it, or why it is unreachable."""
    targets: list[Target] = []
    for host in hosts:
        try:
            targets.append(resolve(host, _section(config, host), config.defaults))
        except ZmqrlError as error:
            yield host, str(error)
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        asked: dict[Future[Reaped], str] = {}
        for host, found in open_all(targets, config.ssh):
            if isinstance(found, HostFailed):
                yield host, str(found)
            else:
                asked[pool.submit(_reap, found, config, host, run_id, grace_s)] = host
        for future in as_completed(asked):
            try:
                yield asked[future], future.result()
            except ZmqrlError as error:
                yield asked[future], str(error)


def _section(config: Config, host: str) -> HostSection:
    return config.hosts.get(host, HostSection())


def _reap(connection: Connection, config: Config, host: str, run_id: str, grace_s: float) -> Reaped:
    """A pool's thread: run the reaper, read its report, and remove the run's folder if it has no results."""
    section = filled(_section(config, host), config.defaults)
    try:
        command = reaper_command(section, run_id, host, grace_s)
        done = connection.run(command, START_S + grace_s + ROUNDS * REAPER_KILL_S)
        found = _answer(done.stdout)
        if found is None:
            said = " ".join((done.stderr or done.stdout).decode(errors="replace").split())[-SAID:]
            mend = f"check: {command}"
            raise HostFailed(host, f"the reaper gave no valid report (exit code {done.code}): {said}", mend)
        if not found.left and host != config.learner.host:
            folder = f"{far(section.workdir)}/{FAR_RUNS}/{far(run_id)}"
            connection.run(f"rm -rf -- {folder}/{far(host)}; rmdir -- {folder} 2>/dev/null", REMOVE_S)
        return found
    finally:
        connection.close()


def _answer(stdout: bytes) -> Reaped | None:
    """The last line; before it a login shell may have printed other text."""
    lines = stdout.decode(errors="replace").strip().splitlines()
    try:
        return reaped(lines[-1])
    except (IndexError, WireError):
        return None
