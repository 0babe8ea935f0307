"""The one way in for every process of a run: `python -m zmqrl.entry zmqrl.<role> RUN INDEX`.

Sets what must be set before numpy loads, binds the process's life to its parent's, reads the boot line from
stdin and hands over to the role's `main(boot)`. It imports no heavy module.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import resource
import select
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zmqrl.config.codec import replace
from zmqrl.debugging import set_hook
from zmqrl.errors import ENDED_BY_USER_CODE, ConfigError
from zmqrl.inherited import set_right, working_directory
from zmqrl.loading import add_own_paths, limit_threads, loading, prepare
from zmqrl.logs.standard_output import lossy

if TYPE_CHECKING:
    from zmqrl.config.plan import Keys

MODULES: Mapping[str, str] = {
    "zmqrl.agent": "zmqrl.agent.process",
    "zmqrl.broker": "zmqrl.broker.process",
    "zmqrl.learner": "zmqrl.learner.process",
    "zmqrl.worker": "zmqrl.rollout.worker",
    "zmqrl.evaluator": "zmqrl.evaluator.process",
}
AGENT, LEARNER, WORKER, TEMPLATE = "zmqrl.agent", "zmqrl.learner", "zmqrl.worker", "zmqrl.template"
EXAMINER = "zmqrl.doctor.examiner"
"""What an agent runs whose first line is the command `examine`."""
PARENT_VARIABLE = "ZMQRL_PARENT"
STDIN, STDOUT = 0, 1
EXIT_S = 5.0
"""Time limit of the end of the interpreter."""
MOST_DESCRIPTORS = 65_536
"""Some programs close every descriptor up to the limit: one of 2^30, as in some containers, takes them minutes."""


def die_with_parent() -> None:
    """Have the kernel SIGKILL this process when the parent's starting thread ends, also if it already has."""
    named = os.environ.get(PARENT_VARIABLE)
    if named is not None:
        from zmqrl.supervision.own_session import die_with

        die_with(int(named))


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open descriptors to the hard one, at most to `MOST_DESCRIPTORS`.

    The usual soft limit of 1,024 is less than the connections of some hundred workers take.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def introduce_agent() -> Keys | None:
    """A remote launcher sends no command before the handshake shows the version of this agent, and its public key.

    Returns:
        Its pair; None where libzmq was built without encryption, which `zmqrl doctor` reports.
    """
    import zmq

    from zmqrl.orchestrators.handshake import handshake_line
    from zmqrl.wire.sockets import make_keys

    keys = make_keys() if zmq.has("curve") else None
    os.write(STDOUT, handshake_line("" if keys is None else keys.public).encode())
    return keys


def read_line(fd: int) -> bytes:
    """One line, byte by byte: what follows stays in the pipe for the role to read. Empty at end of file."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            return b""
        line += byte
    return bytes(line)


def begun_line() -> tuple[bytes | None, str | None]:
    """The first line where it is there before the handshake, and what keeps this process from being a host agent.

    Behind the command line of a host a launcher sends nothing before the handshake: a stdin that can be read is at
    its end, since `hosts.NAME.wrap` has replaced it.
    """
    from zmqrl.supervision import host_mark

    if host_mark.HOST_VARIABLE not in os.environ:
        return None, None
    if not host_mark.has_own_proc():
        return None, host_mark.FOREIGN_PROC
    line = read_line(STDIN) if select.select([STDIN], [], [], 0.0)[0] else None
    return line, host_mark.STDIN_ENDED if line == b"" else None


def is_examine(line: bytes) -> bool:
    """Whether the first line of an agent is the command `examine`; else it is a boot."""
    from zmqrl.errors import WireError
    from zmqrl.messages.command import BeginExamination
    from zmqrl.messages.lines import command

    try:
        return isinstance(command(line), BeginExamination)
    except WireError:
        return False


def report_fault(role: str, boot: Mapping[str, Any], error: BaseException) -> None:
    """The `fault` event: the agent's events are its stdout, a child's go to the inherited pipe."""
    from zmqrl.logs.events import EventPipe
    from zmqrl.messages.lines import shown
    from zmqrl.messages.process import ProcessFault

    lines = "".join(traceback.format_exception(error)).splitlines()[-20:]
    detail = getattr(error, "detail", None)
    fd = STDOUT if role == AGENT else boot.get("fds", {}).get("events")
    is_sentence = role == AGENT and isinstance(error, ConfigError)  # about the host, as the launcher shows it
    text = str(shown(error)) if is_sentence else f"{type(error).__name__}: {shown(error)}"
    if not isinstance(error, Exception):
        from zmqrl.plugins import described

        text = f"{described(error)}: user code may not end a process of a run; return, or raise an Exception"
    EventPipe(fd).send(ProcessFault(text, shown(detail) if isinstance(detail, dict) else {}, shown(lines)))


def run(role: str, modules: Mapping[str, str] = MODULES, run_id: str | None = None) -> int:
    """Boot and run one role. `run_id`: of a host agent that has a template.

    Returns:
        The exit code: the role's own; an error's `exit_code`; 1 for any other `Exception`; `ENDED_BY_USER_CODE`.
    """
    role, code = _apart(role, run_id)
    if code is not None:
        return code
    _set_up(role)
    keys = line = None
    if role == AGENT:
        line, fault = begun_line()
        if fault is not None:
            print(fault, file=sys.stderr)
            return 1
        with loading():
            keys = introduce_agent()
    line = read_line(STDIN) if line is None else line
    if not line:
        return 1
    if role == AGENT and is_examine(line):
        return int(importlib.import_module(EXAMINER).main())
    boot = json.loads(line)
    limit_threads()
    try:
        with loading():
            from zmqrl.config.codec import from_json
            from zmqrl.config.plan import Boot

            own = from_json(Boot, boot)
            if role == AGENT and keys is None:
                raise ConfigError("libzmq was built without encryption (CURVE); install a pyzmq wheel")
            module = importlib.import_module(modules[role])
        return int(module.main(replace(own, keys=keys) if keys else own))
    except BaseException as error:  # user code may raise SystemExit
        if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            raise  # user code has installed a handler: the signal may have raised it
        return _failed(role, boot, error)


def _apart(role: str, run_id: str | None) -> tuple[str, int | None]:
    """Make a host agent the leader of a session, and fork its template.

    Returns:
        The role of this process, which its template may have forked; the exit code of one that has waited for an agent.
    """
    if role != AGENT:
        return role, None
    from zmqrl.supervision.host_template import with_template
    from zmqrl.supervision.own_session import lead_session

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = lead_session()
    return role if code is not None else with_template(role, run_id), code


def _set_up(role: str) -> None:
    """Signals, limits and output of this process, before it reads or writes anything."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    die_with_parent()
    raise_descriptor_limit()
    if role != AGENT:  # which passes the variable on
        set_hook(role == LEARNER)
    sys.stdout, sys.stderr = lossy(sys.stdout), lossy(sys.stderr)
    if role != WORKER:  # there can be many; it writes no lines of its own
        from zmqrl.logs.process_log import VARIABLE, log_to_stderr

        log_to_stderr(os.environ.get(VARIABLE))


def _failed(role: str, boot: Mapping[str, Any], error: BaseException) -> int:
    """Exit code of a process that `error` ends, once it is reported."""
    if isinstance(error, ConfigError):
        print(f"ConfigError: {error}", file=sys.stderr)
    else:
        traceback.print_exc()
    report_fault(role, boot, error)
    return int(getattr(error, "exit_code", 1)) if isinstance(error, Exception) else ENDED_BY_USER_CODE


def main(arguments: Sequence[str]) -> int:
    """`arguments`: role, run id, index. The index matters in `ps` alone."""
    if len(arguments) != 3 or arguments[0] not in (*MODULES, TEMPLATE):
        print(f"usage: python -m zmqrl.entry {{{'|'.join(MODULES)}}} RUN INDEX", file=sys.stderr)
        return 2
    set_right()
    with contextlib.suppress(ConfigError):  # it may have been removed
        add_own_paths(working_directory())
    prepare()
    if arguments[0] == TEMPLATE:
        raise_descriptor_limit()
        limit_threads()
        run_id = importlib.import_module("zmqrl.supervision.template").main()
        return 0 if run_id is None else run(AGENT, run_id=run_id)
    return run(arguments[0], run_id=arguments[1])


def end_within(limit_s: float, code: int) -> None:
    """End this process with `code` where its normal end takes longer, as with a thread of the user's that waits."""

    def end() -> None:
        print(f"a thread or an exit handler has not ended within {limit_s:g} s", file=sys.stderr, flush=True)
        os._exit(code)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    given = sys.argv[1:]
    del sys.argv[1:]  # `parse_args()` at the top of a user's module finds no arguments of zmqrl
    exit_code = main(given)
    end_within(EXIT_S, exit_code)
    sys.exit(exit_code)
