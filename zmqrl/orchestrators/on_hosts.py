"""`workers: auto`, `down` and `runs --lab` on hosts, over the shells of any kind of orchestrator, in parallel."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from zmqrl.config.sections import HostSection
from zmqrl.errors import HostFailed, WireError, ZmqrlError, as_host_failed, unusable
from zmqrl.messages.lines import handshake, reaped
from zmqrl.messages.orchestrator import Handshake, Reaped
from zmqrl.orchestrators.agent import HostEnd
from zmqrl.orchestrators.agents_orchestrator import in_parallel
from zmqrl.orchestrators.handshake import SENTINEL
from zmqrl.orchestrators.host_commands import (
    REMOTE_RUNS,
    cli_command,
    for_login_shell,
    handshake_command,
    quoted,
    reaper_command,
)
from zmqrl.orchestrators.host_start import start_fault
from zmqrl.ssh.shell import HostShell, after_mark, printed

if TYPE_CHECKING:
    from zmqrl.orchestrators.access import HostAccess

T = TypeVar("T")
Shells: TypeAlias = Iterable[tuple[str, HostShell | HostFailed]]
Sections: TypeAlias = Mapping[str, HostSection]
ANSWER_S = 15.0
REAP_S = 40.0
"""What a Python and the reaper may take beyond the grace."""
REMOVE_S = 10.0
CANCEL_S, CANCEL_AGAIN_S = 10.0, 0.1
MOST_AT_ONCE = 32
TAIL_CHARACTERS = 300
"""Characters of what a host reported that go into a message."""


def cores_over(shells: Shells, sections: Sections) -> dict[str, int]:
    """Cores of each host that no other run holds.

    A host that does not answer is left out: the reason is reported when it joins.
    """
    found = handshakes_over(shells, sections)
    return {host: answer.free_cores for host, answer in found if isinstance(answer, Handshake) and answer.cores}


def handshakes_over(shells: Shells, sections: Sections) -> Iterator[tuple[str, Handshake | ZmqrlError]]:
    """The handshake of an agent on each host, as it is received, or why there is none. Nothing stays there."""

    def request(host: str, shell: HostShell) -> Handshake:
        shell.check_answer()
        done = shell.run(handshake_command(sections[host], host), ANSWER_S)
        lines = done.stdout.decode(errors="replace").splitlines()
        text = next((text for text in (after_mark(line, SENTINEL) for line in lines) if text is not None), None)
        if text is not None:
            return handshake(text)
        stderr = done.stderr.decode(errors="replace")
        fault = start_fault(host, sections[host], stderr)
        if fault is not None:
            raise fault.of(host)
        cause = f"the Python of zmqrl there ended with exit code {done.code} before its handshake"
        tail = printed([*lines, *stderr.splitlines()])
        fix = f"zmqrl setup HOSTS.yaml --limit {host}, or set hosts.{host}.python ({sections[host].python})"
        raise HostFailed(host, f"{cause}: {tail}" if tail else cause, fix)

    yield from _on_each(shells, request)


def printed_over(shells: Shells, sections: Sections, words: Sequence[str]) -> Iterator[tuple[str, bytes | ZmqrlError]]:
    """The stdout of `zmqrl WORDS` on each host, as it is received, or why there is none."""

    def request(host: str, shell: HostShell) -> bytes:
        shell.check_answer()
        done = shell.run(cli_command(sections[host], words), ANSWER_S)
        if done.code == 0:
            return done.stdout
        stderr = done.stderr.decode(errors="replace")
        fault = start_fault(host, sections[host], stderr)
        if fault is not None:
            raise fault.of(host)
        cause = f"`zmqrl {' '.join(words)}` ended there with exit code {done.code}: {printed(stderr.splitlines())}"
        fix = f"zmqrl setup HOSTS.yaml --limit {host}, or set hosts.{host}.python ({sections[host].python})"
        raise HostFailed(host, cause, fix)

    yield from _on_each(shells, request)


def reap_over(
    shells: Shells, sections: Sections, run_id: str, grace_s: float, learner: str
) -> Iterator[tuple[str, Reaped | HostFailed]]:
    """End what is left of a run; each host with what became of it, or why it is unreachable.

    The run's folder on a host other than the learner's is removed: it has no results.
    """

    def request(host: str, shell: HostShell) -> Reaped:
        shell.check_answer()
        section = sections[host]
        command = reaper_command(section, run_id, host, grace_s)
        done = shell.run(command, REAP_S + grace_s)
        found = report_in(done.stdout)
        if found is None:
            tail = " ".join((done.stderr or done.stdout).decode(errors="replace").split())[-TAIL_CHARACTERS:]
            cause = f"the reaper gave no valid report (exit code {done.code}): {tail}"
            raise HostFailed(host, cause, f"check: {command}")
        if not found.left and host != learner:
            folder = f"{quoted(section.workdir)}/{REMOTE_RUNS}/{quoted(run_id)}"
            script = f"rm -rf -- {folder}/{quoted(host)}; rmdir -- {folder} 2>/dev/null"
            shell.run(for_login_shell(script), REMOVE_S)
        return found

    for host, found in _on_each(shells, request):
        if isinstance(found, (Reaped, HostFailed)):
            yield host, found
        else:
            yield host, HostFailed(host, str(found), "log in and check")


def ended_over(shell: HostShell, section: HostSection, run_id: str, host: str) -> HostEnd:
    """What the reaper found and killed of a run after the end of its agent."""
    try:
        done = shell.run(reaper_command(section, run_id, host), REAP_S)
    except HostFailed as error:
        return HostEnd(left=(f"{host}/? (unreachable: {error.cause})",))
    found = report_in(done.stdout)
    if found is None:
        why = printed(done.stderr.decode(errors="replace").splitlines()) or f"exit code {done.code}"
        return HostEnd(left=(f"{host}/? (unreachable: {why})",))
    return _end_of(host, found)


def ended_by_engine(access: HostAccess, host: str, run_id: str) -> HostEnd:
    """What the engine listed and cancelled of a run after the end of its agent. HostFailed."""
    ((_, found),) = end_jobs(access, [host], run_id, access.records_end_s)
    if isinstance(found, HostFailed):
        raise found
    return _end_of(host, found)


def end_jobs(
    access: HostAccess, hosts: Sequence[str], run_id: str, grace_s: float
) -> Iterator[tuple[str, Reaped | HostFailed]]:
    """Cancel what the engine still lists of a run after `grace_s`, and look again. Bounded.

    However long the answers take, what is listed is cancelled at least once.
    """
    cancel_at, until, cause = time.monotonic() + grace_s, math.inf, ""
    seen: dict[str, set[str]] = {host: set() for host in hosts}
    killed: dict[str, set[str]] = {host: set() for host in hosts}
    while True:
        left: dict[str, set[str]] = {}
        calls = [partial(_remaining, access, host, run_id) for host in seen]
        for host, found in zip(list(seen), in_parallel(calls, MOST_AT_ONCE), strict=True):
            if isinstance(found, HostFailed):
                del seen[host]
                yield host, found
            else:
                left[host] = found
        now = time.monotonic()
        for host, names in left.items():
            seen[host] |= names
            killed[host] |= names if now >= cancel_at else set()
        if not any(left.values()) or now >= until:
            break
        if now >= cancel_at:
            until = min(until, now + CANCEL_S)
            cause = _cancel(access, sorted(set().union(*left.values())))
        time.sleep(CANCEL_AGAIN_S)  # an engine has no event for the end of a job
    for host, names in left.items():
        ended = seen[host] - killed[host] - names
        yield host, Reaped(_jobs(ended), _jobs(killed[host] - names), _jobs(names, cause))


def _remaining(access: HostAccess, host: str, run_id: str) -> set[str] | HostFailed:
    try:
        with as_host_failed(host):
            return set(access.remaining(host, run_id))
    except HostFailed as error:
        return error


def _cancel(access: HostAccess, names: Sequence[str]) -> str:
    """What failed; it counts only for those that stay. Empty: nothing."""
    try:
        access.cancel(names)
    except HostFailed as error:
        return error.cause
    return ""


def _jobs(names: set[str], why_left: str = "") -> tuple[str, ...]:
    return tuple(f"job {name} ({why_left})" if why_left else f"job {name}" for name in sorted(names))


def _end_of(host: str, found: Reaped) -> HostEnd:
    return HostEnd(tuple(f"{host}/{who}" for who in found.killed), tuple(f"{host}/{who}" for who in found.left))


def report_in(stdout: bytes) -> Reaped | None:
    """The reaper's report, its last line; before it a login shell may have printed other text."""
    lines = stdout.decode(errors="replace").strip().splitlines()
    try:
        return reaped(lines[-1])
    except (IndexError, WireError):
        return None


def _on_each(shells: Shells, request: Callable[[str, HostShell], T]) -> Iterator[tuple[str, T | ZmqrlError]]:
    """The result of each host as it is known; its shell is closed."""

    def run(host: str, shell: HostShell) -> T:
        try:
            return request(host, shell)
        finally:
            shell.close()

    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        running: dict[Future[T], str] = {}
        for host, found in shells:
            if isinstance(found, HostFailed):
                yield host, found
            else:
                running[pool.submit(run, host, found)] = host
        for future in as_completed(running):
            try:
                yield running[future], future.result()
            except ZmqrlError as error:
                yield running[future], error
            except Exception as error:  # noqa: BLE001 - one host may not end the work for the others
                yield running[future], unusable(running[future], error)
