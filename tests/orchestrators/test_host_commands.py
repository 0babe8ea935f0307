"""The command line of a host: every login shell, a prologue that fails or hangs, and wraps; with real processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.plans import stand_in_plan
from tests.lab.kernel import LabUnavailable
from tests.lab.systemd import own_systemd
from tests.support.waiting import WAIT_S, until
from zmqrl.config.codec import replace
from zmqrl.config.kinds import NO_KEYS
from zmqrl.config.plan import Boot
from zmqrl.config.sections import HostSection, LimitsSection
from zmqrl.messages.orchestrator import Reaped
from zmqrl.orchestrators.access import HostAccess
from zmqrl.orchestrators.agent import HostEnd
from zmqrl.orchestrators.handshake import SENTINEL
from zmqrl.orchestrators.host_commands import (
    agent_command,
    examiner_command,
    for_login_shell,
    handshake_command,
    reaper_command,
)
from zmqrl.orchestrators.host_start import silent_end, start_fault, unended_prologue
from zmqrl.orchestrators.on_hosts import report_in
from zmqrl.orchestrators.piped import PipedShell
from zmqrl.orchestrators.shell_orchestrator import ShellAgent
from zmqrl.supervision.host_mark import NO_RUN

RUN = f"r-{os.getpid()}"
"""Of this process of pytest: a reaper ends whatever else has the marks of its run, another reaper too."""

NAMESPACE = "unshare -p -f --mount-proc"
SHELLS = ("dash", "bash", "zsh", "tcsh", "fish")
SYSTEMD_RUN = """#!/bin/sh
while :; do
  case $1 in
    -p) shift 2 ;;
    --user|--scope|--quiet) shift ;;
    *) exec "$@" ;;
  esac
done
"""
"""As far as `--scope` is concerned: systemd registers the process, which then executes the command."""
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="a pid namespace needs root")


@pytest.fixture
def section(tmp_path: Path) -> HostSection:
    return HostSection(python=sys.executable, workdir=str(tmp_path))


@pytest.fixture
def start() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """A command as a login shell would start it."""
    started: list[subprocess.Popen[str]] = []
    pipe = subprocess.PIPE

    def begin(command: str) -> subprocess.Popen[str]:
        words = ["sh", "-c", command]
        started.append(subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait(WAIT_S)
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def written(process: subprocess.Popen[str]) -> tuple[str, str]:
    """stdout and stderr, which any process that it leaves would hold, while its stdin is open."""
    assert process.stdout is not None and process.stderr is not None
    return process.stdout.read(), process.stderr.read()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("text", ["plain 'single' \"double\" $HOME `id`", r"a!b \\ c\' %s \0041 ~ ;", "two\nlines!"])
def test_a_script_arrives_whole_through_every_login_shell(shell: str, text: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = "printf '[%s]' " + "'" + text.replace("'", "'\\''") + "'"
    done = subprocess.run([shell, "-c", for_login_shell(script)], capture_output=True, text=True, timeout=WAIT_S)
    assert (done.stdout, done.returncode) == (f"[{text}]", 0), done.stderr


@pytest.mark.parametrize(
    ("prologue", "code", "shows"),
    [
        ("echo out; echo err >&2; (exit 4)", 4, "it printed: out / err"),
        ("exit 7", 7, "it printed nothing"),
        ("set -e; false; true", 1, "it printed nothing"),
        ("nothing-of-this-name", 127, "not found"),
        ("echo 'unbalanced", 2, "nterminated quoted string"),
        ("sleep 300 & setsid sleep 300 & false", 1, "it printed nothing"),
    ],
)
def test_a_prologue_that_fails_is_quoted_and_leaves_nothing(
    section: HostSection, start: Callable[[str], subprocess.Popen[str]], prologue: str, code: int, shows: str
) -> None:
    section = replace(section, prologue=prologue)
    out, err = written(start(agent_command(section, RUN, "h0")))
    assert out == ""
    fault = start_fault("h0", section, f"banner of the login shell\n{err}")
    assert fault is not None and fault.key == "prologue"
    assert fault.cause.startswith(f"hosts.h0.prologue failed with exit code {code}: `{prologue}`; ")
    assert shows in fault.cause and "banner" not in fault.cause
    assert ("modules.sh" in fault.fix) == (code == 127)
    report = subprocess.run(["sh", "-c", reaper_command(section, RUN, "h0", 0.0)], capture_output=True, timeout=WAIT_S)
    assert report_in(report.stdout) is not None, "the reaper works without its prologue"


def test_a_failed_prologue_leaves_no_copy_of_its_shell(
    section: HostSection, start: Callable[[str], subprocess.Popen[str]]
) -> None:
    section = replace(section, prologue="(while :; do :; done) & false")
    assert "exit code 1" in written(start(agent_command(section, RUN, "h0")))[1], "stderr ends with the last process"


def test_a_prologue_reads_nothing_prints_to_stderr_and_sets_what_python_sees(
    section: HostSection, start: Callable[[str], subprocess.Popen[str]]
) -> None:
    section = replace(section, prologue="cat; echo noise; export NOTE=deep\\\\sea!; set -u", env={"OTHER": "x y"})
    with start(examiner_command(section, "h0")) as process:
        assert process.stdin is not None and process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(SENTINEL), "the first line"
        pid = json.loads(line.removeprefix(SENTINEL))["pid"]
        environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
        assert {"NOTE=deep\\sea!", "OTHER=x y"} <= set(environment)
        assert pid == process.pid, "every step executes the next"
        process.stdin.close()
        assert process.wait(WAIT_S) == 1


def test_a_prologue_that_hangs_is_quoted_and_ends_with_its_launcher(
    section: HostSection, start: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    section = replace(section, prologue=f"echo waits; sh -c 'echo $$ > {tmp_path}/pid; sleep 300; true'; sleep 300")
    process = start(agent_command(section, "r-2", "h0"))
    inner = int(until(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text()))
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(WAIT_S) != 0
    until(lambda: not Path(f"/proc/{inner}").exists(), "what it has started to end")
    assert process.stderr is not None
    hanging = unended_prologue("h0", section, process.stderr.read())
    assert hanging is not None and hanging.endswith("sleep 300`; it printed: waits")


def test_a_launcher_names_a_prologue_that_hangs(section: HostSection, tmp_path: Path) -> None:
    plan = stand_in_plan(tmp_path / "run")
    section = replace(section, prologue="echo waits for a licence; sleep 300")
    config = replace(plan.config, limits=LimitsSection(start_s=1.5), hosts={"h0": section})
    log = tmp_path / "log"
    log.write_text("zmqrl: prologue begins\nof an earlier agent\n")
    boot = Boot("agent", 0, 0, "h0", replace(plan, config=config))
    agent = ShellAgent(boot, lambda *_: None, PipedShell("h0"), HostAccess(NO_KEYS, config), log)
    try:
        failure = until(agent.overdue, "the end of the wait")
    finally:
        ended = agent.end()
    assert failure.cause == (
        "no handshake of the host agent within limits.start_s (1.5 s); hosts.h0.prologue has not ended: "
        "`echo waits for a licence; sleep 300`; it printed: waits for a licence"
    )
    assert ended == HostEnd()
    assert agent.pipe.exit_status(0.0) is not None


@pytest.mark.parametrize(
    ("wrap", "cause"),
    [
        ("""sh -c 'exec "$@" </dev/null' sh""", "does not pass stdin on"),
        ("no-such-wrap --now", "no-such-wrap was not found"),
        pytest.param("unshare -p -f", "makes a pid namespace without its own /proc", marks=needs_root),
    ],
)
def test_a_wrap_that_cannot_hold_an_agent_is_named(
    section: HostSection, start: Callable[[str], subprocess.Popen[str]], wrap: str, cause: str
) -> None:
    section = replace(section, wrap=wrap)
    out, err = written(start(agent_command(section, "r-3", "h0")))
    fault = start_fault("h0", section, err)
    assert out == "" and fault is not None, err
    assert fault.key == "wrap" and fault.cause.startswith(f"hosts.h0.wrap (`{wrap}`)") and cause in fault.cause


@pytest.mark.parametrize("wrap", ["env IMAGE=1", pytest.param(f"env IMAGE=1 {NAMESPACE}", marks=needs_root)])
@pytest.mark.whole
def test_the_reaper_works_outside_of_a_wrap(section: HostSection, tmp_path: Path, wrap: str) -> None:
    """Within it only where zmqrl is nowhere else, and where it shares the pid namespace of the host."""
    of_the_image = tmp_path / "python"
    of_the_image.write_text(f'#!/bin/sh\n[ "$IMAGE" = 1 ] || exit 1\nexec {sys.executable} "$@"\n')
    of_the_image.chmod(0o755)
    done = {}
    for python in (sys.executable, str(of_the_image)):
        command = reaper_command(replace(section, wrap=wrap, python=python), NO_RUN, "h0", 0.0)
        done[python] = subprocess.run(["sh", "-c", command], capture_output=True, timeout=WAIT_S)
    assert report_in(done[sys.executable].stdout) == Reaped()
    within = done[str(of_the_image)]
    if NAMESPACE not in wrap:
        assert report_in(within.stdout) == Reaped()
    else:
        assert report_in(within.stdout) is None and within.returncode == 2
        assert b"within hosts.h0.wrap the processes of the host are hidden" in within.stderr


def test_a_scope_of_a_stand_in_for_systemd_run_holds_the_agent_itself(
    section: HostSection, start: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    (tmp_path / "systemd-run").write_text(SYSTEMD_RUN)
    (tmp_path / "systemd-run").chmod(0o755)
    wrap = "systemd-run --user --scope -p MemoryMax=8G"
    section = replace(section, wrap=wrap, prologue=f"PATH={tmp_path}:$PATH; export PATH")
    with start(examiner_command(section, "h0")) as process:
        assert process.stdout is not None and process.stdin is not None
        assert json.loads(process.stdout.readline().removeprefix(SENTINEL))["pid"] == process.pid
        process.stdin.close()
        assert process.wait(WAIT_S) == 1


@pytest.fixture
def beside_systemd() -> Iterator[list[str]]:
    """A prefix of commands: they run where systemd is process 1."""
    if Path("/run/systemd/private").exists() and os.getuid() == 0:
        yield []
        return
    with contextlib.ExitStack() as stack:
        try:
            prefix = stack.enter_context(own_systemd())
        except LabUnavailable as missing:
            pytest.skip(str(missing))
        yield prefix


def test_a_scope_of_systemd_run_holds_the_agent_itself(section: HostSection, beside_systemd: list[str]) -> None:
    scope = "systemd-run --scope --quiet -p MemoryMax=8G"
    command = f"echo $$; {handshake_command(replace(section, wrap=scope), 'h0')}"
    done = subprocess.run([*beside_systemd, "sh", "-c", command], capture_output=True, text=True, timeout=WAIT_S)
    pid, shaken = done.stdout.splitlines()
    assert json.loads(shaken.removeprefix(SENTINEL))["pid"] == int(pid), done.stderr


@pytest.mark.parametrize(("workdir", "below"), [("~", ""), ("~/", ""), ("~/it's here", "it's here")])
def test_a_work_directory_may_be_the_home(tmp_path: Path, workdir: str, below: str) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\npwd\n")
    (tmp_path / "python").chmod(0o755)
    command = agent_command(HostSection(python="~/python", workdir=workdir), NO_RUN, "h0")
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert Path(done.stdout.strip()) == tmp_path / below, done.stderr
    assert not (tmp_path / "~").exists()


def test_the_home_is_expanded_in_a_wrap_and_nothing_else(section: HostSection) -> None:
    there = replace(section, wrap='echo ~/image.sif $HOME "a b"')
    done = subprocess.run(["sh", "-c", handshake_command(there, "h0")], capture_output=True, text=True, timeout=WAIT_S)
    assert done.stdout.startswith(f"{Path.home()}/image.sif $HOME a b env ZMQRL_HOST=h0@pid:[")


@pytest.mark.parametrize(("code", "how"), [
    (0, "exited with code 0"),
    (125, "exited with code 125"),
    (-1, "was killed, or its connection was lost,"),
    (None, "was killed, or its connection was lost,"),
    (-9, "was killed, or its connection was lost (signal SIGKILL),"),
    (137, "was killed, or its connection was lost (exit code 137),"),
    (255, "was killed, or its connection was lost (exit code 255),"),
])  # fmt: skip
def test_an_agent_whose_engine_lost_it_has_not_exited(code: int | None, how: str) -> None:
    """The connection of SSH gives -1, and the commands of other engines codes of their own."""
    found = silent_end("n1", HostSection(), code, "", "", Path("log"))
    assert found.cause == f"the host agent {how} before its handshake"
