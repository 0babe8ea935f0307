"""Which worker is to step which vector env, as hosts come and go. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set


class Membership:
    """sync: vector envs are spread evenly, and a change moves as few as it can. async: each worker has its own."""

    def __init__(self, sync: bool, vector_envs: int) -> None:
        """`vector_envs`: those of the run in sync; in async what the stream table has room for."""
        self._sync, self._vector_envs = sync, vector_envs
        self._host_of: dict[int, str | None] = {}
        self._members: set[int] = set()
        self._owner: dict[int, int] = {}
        self.given_up: set[int] = set()
        self._told = False
        """Whether any host has reported which workers it holds."""
        self._awaited = False
        """Whether hosts may be about to say it to this broker, as they did to the one before."""

    @property
    def members(self) -> Set[int]:
        """Indexes of the workers that are there, or will be again; not a copy."""
        return self._members

    def has_left(self, index: int) -> bool:
        """Whether its host no longer holds it."""
        return index in self._host_of and index not in self._members

    def is_of(self, index: int, host: str) -> bool:
        """Whether `host` may send for the worker."""
        return self._host_of.get(index, host) in (host, None)

    def await_hosts(self) -> None:
        """Until `end_wait` a worker of which no host has spoken is a member: its agent may come later than it does."""
        self._awaited = True

    def end_wait(self) -> bool:
        """Remove members that no host has confirmed. True when there were any."""
        self._awaited = False
        return self._told and self._drop_unnamed()

    def greet(self, index: int) -> None:
        """A worker that reports itself. It counts only while no host has reported its workers, or may still do so."""
        if (self._awaited or not self._told) and index not in self._host_of:
            self._host_of[index] = None
            self._members.add(index)

    def _drop_unnamed(self) -> bool:
        unnamed = [index for index, host in self._host_of.items() if host is None]
        for index in unnamed:
            del self._host_of[index]  # its host may speak after this one: it has not left
            self._members.discard(index)
        return bool(unnamed)

    def hear(self, host: str, workers: Sequence[int], given_up: Iterable[int], alive: Iterable[int] = ()) -> bool:
        """A host's complete state; `alive` may name processes that must leave. True when it changed anything."""
        before = set(self._members)
        self._told = True
        if not self._awaited:
            self._drop_unnamed()
        own = {index for index in workers if self.is_of(index, host)}
        lost = {index for index in given_up if self.is_of(index, host)} - self.given_up
        self.given_up |= lost
        self._members -= {index for index, of in self._host_of.items() if of == host}
        self._members |= own
        self._members -= self.given_up
        leaving = {index for index in alive if self.is_of(index, host)}
        self._host_of.update(dict.fromkeys((*own, *lost, *leaving), host))
        return before != self._members or bool(lost)

    def owner(self, vector_env: int) -> int | None:
        """Who is to step it; None: no process is there."""
        if self._sync:
            return self._owner.get(vector_env)
        return vector_env if vector_env in self._members else None

    def leave_with(self, vector_env: int, index: int) -> None:
        """This worker steps it already: `balance` moves it only if it has to."""
        self._owner[vector_env] = index

    def balance(self) -> None:
        """sync: give every vector env an owner; afterwards no two members differ by more than one."""
        loads: dict[int, list[int]] = {index: [] for index in sorted(self._members)}
        homeless: list[int] = []
        for vector_env in range(self._vector_envs if self._sync else 0):
            loads.get(self._owner.get(vector_env, -1), homeless).append(vector_env)
        if not loads:
            self._owner = {}
            return
        for vector_env in homeless:
            min(loads.values(), key=len).append(vector_env)
        while len(most := max(loads.values(), key=len)) - len(least := min(loads.values(), key=len)) > 1:
            least.append(most.pop())
        self._owner = {vector_env: index for index, load in loads.items() for vector_env in load}
