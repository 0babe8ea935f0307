"""Examine every host at once: a thread per host reads, this one decides; every wait is bounded."""

from __future__ import annotations

import base64
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from msgspec import structs

from zmqrl.config.codec import replace
from zmqrl.config.hosts import LOCAL
from zmqrl.config.sections import Config, HostSection
from zmqrl.doctor.examination import Examination, Requests
from zmqrl.doctor.host_requests import examined_hosts, host_requests
from zmqrl.doctor.links import HostLink, link_here
from zmqrl.doctor.measurement import Failure, Measurement
from zmqrl.errors import HostFailed, as_host_failed
from zmqrl.messages.doctor import Reply
from zmqrl.messages.doctor_requests import Reach, Request
from zmqrl.messages.orchestrator import Handshake
from zmqrl.orchestrators.access import HostAccess
from zmqrl.orchestrators.make import access_of
from zmqrl.ssh.code_sync import make_archive
from zmqrl.ssh.shell import ANSWER_S

MARGIN_S = 3.0
Opening: TypeAlias = Iterable[tuple[str, Callable[[], HostLink] | HostFailed]]


class Runner:
    """One run over all hosts. Made and used by one thread."""

    def __init__(
        self,
        examination: Examination,
        notify: Callable[[str], None],
        answer_s: float = ANSWER_S,
        prologue_s: float = ANSWER_S,
        abandon: Callable[[], None] = lambda: None,
    ) -> None:
        """`notify` receives text for the user: fingerprints of host keys that were accepted.

        `prologue_s`: how long the handshake of a host with a prologue may take. `abandon`: ends the wait for hosts that
        are still being opened.
        """
        self._abandon = abandon
        self._examination, self._notify, self._answer_s = examination, notify, answer_s
        self._prologue_s = max(prologue_s, ANSWER_S)
        self._first_s = min(answer_s, ANSWER_S)
        """For the handshake, which depends on no env."""
        self._events: queue.Queue[Callable[[], None]] = queue.Queue()
        """What threads have the main thread do."""
        self._links: dict[str, HostLink] = {}
        self._readers: list[threading.Thread] = []
        self._late_at: dict[str, float] = {}
        self._lock = threading.Lock()
        self._opened: list[HostLink] = []
        self._closing = False

    def run(self, opening: Opening) -> Mapping[str, Measurement]:
        """`opening` gives for each host how its link is made, or why there is none, as soon as it is known."""
        opener = threading.Thread(target=self._open, args=(opening,), name="open", daemon=True)
        opener.start()
        try:
            while not self._examination.done:
                self._step()
        finally:
            self._close(opener)
        return self._examination.measurements

    def _open(self, opening: Opening) -> None:
        try:
            self._open_each(opening)
        except Exception as error:  # noqa: BLE001 - the top of a thread: the main thread raises it
            self._put(self._raise, error)

    def _open_each(self, opening: Opening) -> None:
        for host, found in opening:
            if isinstance(found, HostFailed):
                self._put(self._end, host, Failure("ssh", found.cause, found.fix))
                continue
            reader = threading.Thread(target=self._read, args=(host, found), name=f"examiner of {host}", daemon=True)
            self._readers.append(reader)
            reader.start()

    def _read(self, host: str, make: Callable[[], HostLink]) -> None:
        """A reader thread. Whatever it raises is the failure of its host: nothing else ends the wait for it."""
        try:
            with as_host_failed(host):
                self._read_all(host, make())
        except HostFailed as error:
            self._put(self._end, host, Failure("ssh", error.cause, error.fix))

    def _read_all(self, host: str, link: HostLink) -> None:
        try:
            with self._lock:
                self._opened.append(link)
                closing = self._closing
            if closing:
                link.hang_up()
            if (unverified := self._not_verifiable(link)) is None:
                self._put(self._begin, host, link)
            else:
                self._put(self._end, host, unverified)
            for reply in link.replies():
                self._put(self._take, host, reply, time.time())
            failure = link.failure()
            self._put(self._extend, host)  # the agent did not start, and a shell looks for what there is in its place
            found = link.shell_handshake()
        finally:
            link.release()
        self._put(self._end, host, failure, found, link.refused.items())

    def _not_verifiable(self, link: HostLink) -> Failure | None:
        """A reader thread: a host whose run could not be shown to have ended is not examined further."""
        try:
            failure = link.reaper_failure()
        except HostFailed as error:
            failure = Failure("ssh", error.cause, error.fix)
        if failure is not None:
            link.hang_up()
        return failure

    def _put(self, handle: Callable[..., None], *arguments: object) -> None:
        """Any thread: have the main thread call `handle`."""
        self._events.put(partial(handle, *arguments))

    def _close(self, opener: threading.Thread) -> None:
        """Also what an interrupt finds half opened."""
        with self._lock:
            self._closing = True
            opened = list(self._opened)
        self._abandon()
        for link in opened:
            link.hang_up()
        opener.join()
        for reader in self._readers:
            reader.join()

    def _step(self) -> None:
        now = time.monotonic()
        late = [host for host, at in self._late_at.items() if at <= now and not self._examination.is_idle(host)]
        for host in late:
            waited_for = self._examination.measurements[host].waited_for
            link = self._links.get(host)
            limit_s = self._handshake_s(link) if link is not None and not link.has_handshake else self._answer_s
            cause = f"connected, but no answer within {limit_s:g} s to: {waited_for}"
            if link is not None and link.waits_for:
                cause += f"; {link.waits_for}"
            self._send(self._examination.fail(host, Failure("answer", cause)))
            del self._late_at[host]
        if self._examination.done:
            return
        ends = [at for host, at in self._late_at.items() if not self._examination.is_idle(host)]
        try:
            handle = self._events.get(timeout=max(0.0, min(ends) - now) if ends else None)
        except queue.Empty:
            return
        handle()

    def _raise(self, error: Exception) -> None:
        """No further host is reached: the command ends with the error."""
        raise error

    def _begin(self, host: str, link: HostLink) -> None:
        self._links[host] = link
        for line in link.accepted:
            self._notify(line)
        self._late_at[host] = time.monotonic() + self._handshake_s(link)

    def _take(self, host: str, reply: Handshake | Reply, at: float) -> None:
        """`at`: unix time of its arrival."""
        self._extend(host)
        self._send(self._examination.handle(host, reply, at))

    def _extend(self, host: str) -> None:
        """Wait as long again."""
        if host in self._late_at:
            self._late_at[host] = time.monotonic() + self._answer_s

    def _end(
        self, host: str, failure: Failure, found: Handshake | None = None, refused: Iterable[tuple[str, int]] = ()
    ) -> None:
        """No more messages, and why, if some were still due.

        `found`: handshake of the shell. `refused`: reasons of invalid lines with the mark of messages, and how many.
        """
        self._late_at.pop(host, None)
        for reason, count in refused:
            self._notify(f"{host}: rejected {count} lines of the probe ({reason})")
        self._send(self._examination.fail(host, failure, found))

    def _handshake_s(self, link: HostLink) -> float:
        return self._prologue_s if link.has_prologue else self._first_s

    def _send(self, requests: Requests) -> None:
        for host, request in requests:
            link = self._links.get(host)
            if link is None:
                continue
            try:
                link.send(self._forwarded(link, request))
                self._late_at[host] = time.monotonic() + self._answer_s
            except HostFailed as error:
                self._send(self._examination.fail(host, Failure("ssh", error.cause, error.fix)))

    def _forwarded(self, link: HostLink, request: Request) -> Request:
        if not isinstance(request, Reach):
            return request
        addresses, ports = link.forwarded(request.addresses, request.ports)
        return structs.replace(request, addresses=addresses, ports=ports)


def examine(
    config: Config, accept_new_hosts: bool, env_limit_s: float, notify: Callable[[str], None]
) -> Mapping[str, Measurement]:
    """Examine every host, in parallel.

    `accept_new_hosts`: unknown host keys are accepted and written down, a changed one never; `notify` is given a line
    with the fingerprint of each, at once. `env_limit_s`: how long each host looks at the env.
    """
    modules = make_archive(config.code)
    code = None if modules is None else base64.b64encode(modules.content).decode()
    hosts = examined_hosts(config)
    ssh = replace(config.ssh, host_keys="accept-new") if accept_new_hosts else config.ssh
    examination = Examination(host_requests(config, code, env_limit_s), config.learner.host)
    answer_s = max(ANSWER_S, env_limit_s + MARGIN_S)
    run, others = replace(config, ssh=ssh), [name for name in hosts if name != LOCAL]
    access = access_of(run, others)
    runner = Runner(examination, notify, answer_s, config.limits.start_s, access.abandon)
    return runner.run(_opening(run, hosts, others, access))


def _opening(run: Config, hosts: Mapping[str, HostSection], others: Sequence[str], access: HostAccess) -> Opening:
    if LOCAL in hosts:
        yield LOCAL, partial(link_here, hosts[LOCAL])
    if others:
        here = run.learner.host == LOCAL
        for name, found in access.shells(others):
            if isinstance(found, HostFailed):
                yield name, found
            else:
                yield name, partial(HostLink, name, found, hosts[name], here)
