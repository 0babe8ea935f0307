"""Measurements in, faults out. Pure: faults that prevent a launch, warnings, and the fix of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from zmqrl.doctor import judge_between, judge_host
from zmqrl.doctor.case import Case
from zmqrl.doctor.fault import Complaints, Fault
from zmqrl.doctor.measurement import Measurement
from zmqrl.doctor.needs import Needs

CHECKS: tuple[Callable[[Case], None], ...] = (
    judge_host.judge_failure,
    judge_host.judge_locks,
    judge_host.judge_versions,
    judge_host.judge_folders,
    judge_host.judge_memory,
    judge_host.judge_processors,
    judge_between.judge_ports,
    judge_between.judge_store,
    judge_host.judge_curve,
    judge_host.judge_env,
    judge_host.judge_clock,
)


def judge(measured: Measurement, needs: Needs) -> list[Fault]:
    """Everything that is wrong with one host."""
    case = Case(measured, needs.hosts[measured.host], needs, Complaints(measured.host))
    for check in CHECKS:
        check(case)
    return case.complaints.found


def judge_all(measurements: Mapping[str, Measurement], needs: Needs) -> list[Fault]:
    """Of all hosts; faults that prevent a launch first, else in the order of the hosts."""
    found = [fault for measured in measurements.values() for fault in judge(measured, needs)]
    found += judge_between.judge_envs(measurements, needs)
    if needs.refusal is not None:
        fix = "`zmqrl launch` reports the same error; fix it on this machine"
        found.append(Fault("launcher", "configuration", needs.refusal, fix))
    return sorted(found, key=lambda fault: not fault.grave)
