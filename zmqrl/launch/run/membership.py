"""Which hosts may connect to the broker, and are sent there. Derived from the records. Pure."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from zmqrl.config.codec import replace
from zmqrl.config.sections import Config
from zmqrl.launch.run import actions as act
from zmqrl.launch.run.state import RunState
from zmqrl.launch.run.worker_changes import moves_vector_envs
from zmqrl.messages.agent import BrokerAddresses
from zmqrl.messages.command import Join, SetAllowList
from zmqrl.types import AllowList
from zmqrl.wire.admission import digest_of


class Membership:
    """The allow-list of the broker, invitations of hosts that SSH does not reach, and commands to join."""

    def __init__(self, config: Config, state: RunState, new_token: Callable[[], str]) -> None:
        """`new_token`: a one-time token for a connection file."""
        self._config, self._state, self._new_token = config, state, new_token
        self._allowed = AllowList()
        """Allow list, as the learner's host has it."""

    def follow(self) -> list[act.Action]:
        """After each change of the records. A host that joins has to be on the list that the broker follows."""
        return [*self._invite(), *self._allow(), *self._join()]

    def _invite(self) -> list[act.Action]:
        """Connection files of hosts that are not reached by SSH, each once: its token admits one host."""
        if self._state.hosts.listening is None:
            return []
        actions: list[act.Action] = []
        for record in sorted(self._state.hosts, key=lambda record: record.host):
            if record.is_uninvited:
                record.is_uninvited, join = False, self._join_command(self._state.hosts.listening)
                if join.server is not None:
                    join = structs.replace(join, enrolment=self._new_token())
                    record.invitation = digest_of(str(join.enrolment))
                actions.append(act.WriteInvitation(replace(record.boot, workers=record.held), join))
        return actions

    def _allow(self) -> list[act.Action]:
        """The allow-list, and whether the run is paused, when it has changed.

        Not at the end of the run: every agent leaves in its own time.
        The broker removes the workers of a host that leaves the list: with its next agent they have other indexes.
        """
        hosts, before = self._state.hosts, self._allowed
        if not hosts.learner.public or hosts.ending:
            return []
        # in sync, where a move would end episodes, a broker waits for the hosts of the start
        waits = not moves_vector_envs(self._config)
        absent = sorted(record.host for record in hosts if record.is_gone or record.away) if waits else ()
        newest = AllowList(before.serial, hosts.keys, hosts.tokens, self._state.paused, tuple(absent))
        if newest == before:
            return []
        for host in {key.host for key in before.hosts.values()} - {key.host for key in newest.hosts.values()}:
            hosts[host].is_revoked = True
        self._allowed = structs.replace(newest, serial=before.serial + 1)
        for record in hosts:
            if record.public in newest.hosts and record.public not in before.hosts:
                record.listed_at = self._allowed.serial
        return [act.Send(hosts.learner.host, SetAllowList(self._allowed))]

    def _join(self) -> list[act.Action]:
        """Hosts whose key is on the list that the broker follows receive its addresses, once unless they change."""
        listening, actions = self._state.hosts.listening, list[act.Action]()
        if listening is None:
            return actions
        join = self._join_command(listening)
        for record in self._state.hosts:
            is_listed = record.public in self._allowed.hosts and record.listed_at <= listening.serial
            is_joining = record.state == "joining" and not record.section.manual and (is_listed or not record.public)
            if is_joining and record.joins != join:
                record.joins = join
                actions.append(act.Send(record.host, join))
        return actions

    def _join_command(self, listening: BrokerAddresses) -> Join:
        named = self._config.learner.address
        server = None if self._config.security.curve == "off" else self._state.hosts.learner.public
        return Join([named] if named else listening.addresses, listening.ports, listening.token, server, None)
