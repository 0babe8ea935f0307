"""What is wrong between a host and the learner's. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from zmqrl.doctor.fault import HostCheck, HostFault
from zmqrl.doctor.measurement import Measurement
from zmqrl.doctor.needs import Needs
from zmqrl.messages.doctor import Answer
from zmqrl.orchestrators.handshake import other_bits
from zmqrl.types import MODES
from zmqrl.wire.probe import FULL_PACKETS, MTU_FIX

SLOW_STORE_S = 1.0
SLOW_ROUND_TRIP_MS = 100.0


def judge_ports(host: HostCheck) -> None:
    """Ports of the learner's host that cannot be bound, or cannot be reached from this host."""
    listening, reached = host.measured.listening, host.measured.reached
    if listening is not None and listening.error is not None:
        fix = "stop the process on that port, or set another learner.port (auto: free ports)"
        host.findings.fault("ports", f"cannot listen: {listening.error}", fix)
    if reached is None:
        return
    if not reached.answers:
        cause = f"the learner's host {host.needs.learner} has only loopback addresses"
        host.findings.fault("ports", cause, "set learner.address to an address that other hosts reach")
        return
    whole = [answer for answer in reached.answers if not any(answer.ports.values())]
    if not whole:
        tried = _tried(reached.answers)
        fix = MTU_FIX if FULL_PACKETS in tried else _opening(host)
        host.findings.fault("ports", f"cannot connect to the learner's host: {tried}", fix)
        return
    fastest = min(answer.round_trip_ms or 0.0 for answer in whole)
    if fastest > SLOW_ROUND_TRIP_MS:
        cause = f"{fastest:.0f} ms round trip to the learner's host"
        host.findings.warning("round trip", cause, "no action required; in mode sync each round takes this much longer")


def _tried(answers: tuple[Answer, ...]) -> str:
    """`10.0.0.5 ports 27100-27102: no answer; 10.1.0.5 port 27101: connection refused`."""
    parts = []
    for answer in answers:
        by_cause: dict[str, list[str]] = {}
        for port, cause in answer.ports.items():
            if cause is not None:
                by_cause.setdefault(cause, []).append(port)
        for cause, ports in by_cause.items():
            parts.append(f"{answer.address} port{'s' * (len(ports) > 1)} {', '.join(ports)}: {cause}")
    return "; ".join(parts)


def _opening(host: HostCheck) -> str:
    port, without = host.needs.port, f"hosts.{host.name}.tunnel"
    if host.need.tunnel:
        return f"the ports are forwarded by SSH: set AllowTcpForwarding yes on the host, or {without}: false"
    first = f"open ports {port}-{port + 2}" if port is not None else "set learner.port: 27100 and open 27100-27102"
    return f"{first} on {host.needs.learner}, set learner.address, or set {without}: true"


def judge_store(host: HostCheck) -> None:
    """Another directory under the same name, or a slow one. The run continues: versions come from the broker."""
    store = host.measured.store
    if store is None or host.needs.store is None:
        return
    if not store.seen:
        cause = f"{host.needs.store} is not shared with the learner's host: {store.cause}; the broker sends the weights"
        host.findings.warning("store", cause, f"mount it as on {host.needs.learner}: {host.there('df -h; mount')}")
    elif store.visible_s is not None and store.visible_s > SLOW_STORE_S:
        cause = f"files written on {host.needs.learner} are visible here after {store.visible_s:.1f} s"
        host.findings.warning("store", cause, "mount it with lookupcache=positive or actimeo=1")


def judge_envs(measurements: Mapping[str, Measurement], needs: Needs) -> list[HostFault]:
    """Envs that are not the same on every host; the learner's host is the measure."""
    learner = measurements.get(needs.learner)
    model = learner.env if learner is not None else None
    if model is None:
        return []
    found = []
    for host, measured in measurements.items():
        env = measured.env
        if env is None or host == needs.learner:
            continue
        if None not in (env.spaces, model.spaces) and env.spaces != model.spaces:
            cause = f"env spaces differ: {env.spaces}, on {needs.learner} {model.spaces}"
            found.append(HostFault(host, "env", cause, f"install the same versions: {_setup(host, needs)}"))
        elif env.repeats and model.repeats and env.digest != model.digest and MODES[needs.mode].deterministic:
            cause = f"results differ from {needs.learner} with the same seed and actions"
            fix = f"use the same CPU type and the same versions: {_setup(host, needs)}"
            found.append(HostFault(host, "env", cause, fix, severity="warning"))
    return found


def judge_acting(measurements: Mapping[str, Measurement], needs: Needs) -> list[HostFault]:
    """Processors or versions with which acting computes other bits: of all hosts with workers, in one warning."""
    found = {
        host: measured.machine.acting.get("numpy", "")
        for host, measured in measurements.items()
        if measured.machine is not None and needs.hosts[host].workers != 0
    }
    differ = other_bits(found)
    if not differ or not MODES[needs.mode].deterministic:
        return []
    cause = (
        f"{differ}: vector envs are spread evenly between these hosts, and the weights depend on which host steps them"
    )
    fix = "use the same CPU type and the same version of numpy, or exclude hosts with --limit"
    return [HostFault("hosts", "acting", cause, fix, severity="warning")]


def _setup(host: str, needs: Needs) -> str:
    return f"zmqrl setup {needs.hosts_file} --limit {host}"
