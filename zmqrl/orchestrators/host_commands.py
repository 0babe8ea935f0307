"""The command line of a host, composed here for doctor, setup, agent and reaper alike.

    export ZMQRL_RUN ZMQRL_HOST; PROLOGUE; cd WORKDIR; exec nice -n NICE WRAP env NAME=VALUE ... PYTHON -m ...

`sh` runs it, whatever the login shell is. Command lines are visible there with `ps` and contain no secrets.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence

from zmqrl.config.sections import HostSection
from zmqrl.loading import SAFE_PATH, UNTIL_STARTED
from zmqrl.orchestrators.handshake import PACKAGES, SENTINEL
from zmqrl.supervision.host_mark import HOST_VARIABLE, NO_RUN, PID_NAMESPACE, RUN_VARIABLE

REAP_GRACE_S = 5.0
REMOTE_RUNS = "runs"
"""Below the work directory of a host; in it a folder per host, since hosts may share their homes."""
PROLOGUE_BEGINS, PROLOGUE_ENDED = "zmqrl: prologue begins", "zmqrl: prologue ended with exit code "
WRAP_NOT_FOUND = "zmqrl: the command of wrap was not found"
NOT_FOUND, NOT_EXECUTABLE = 127, 126
AGENT_VARIABLE = "SSH_AUTH_SOCK"
"""Variable of an SSH agent, which a login may forward: it ends with the login."""
_VERSIONS_THERE = (
    "import json,platform,sys; from importlib import metadata; "
    'found={(one.metadata["Name"] or "").lower(): one.version for one in reversed([*metadata.distributions()])}; '
    'print(json.dumps({"python": platform.python_version(), "byteorder": sys.byteorder, "machine": platform.machine(), '
    f"**{{name: found.get(name) for name in {json.dumps(PACKAGES)}}}}}))"
)
"""`Handshake.versions`, as far as the standard library of a host's Python knows them."""
_MACHINE_THERE = """printf '{"machine":"%s"}' "$(uname -m)\""""
_HANDSHAKE_THERE = (
    f"""printf '{SENTINEL}{{"pid":0,"time":0,"node":"%s","user":"%s","versions":%s}}\\n' """
    """"$(uname -n)" "$(id -un)" "$versions\""""
)
START_VARIABLE = "ZMQRL_START"
"""Marks what a prologue has started."""
_KILL_STARTED = (
    'if [ "$zmqrl_group" = $$ ]; then trap "" TERM; kill -s TERM 0; fi; '
    f'grep -lzxF "{START_VARIABLE}=$$/${HOST_VARIABLE}" /proc/[0-9]*/environ 2>/dev/null '
    "| while IFS=/ read -r root proc pid rest; do kill -9 $pid; done; "
    'if [ "$zmqrl_group" = $$ ]; then kill -9 0; fi'
)
"""First what is still a copy of this shell, without the mark in its environment; then what left its process group."""
_WATCH = (
    f'{START_VARIABLE}="$$/${HOST_VARIABLE}"; export {START_VARIABLE}; exec 3<&0; '
    'zmqrl_group=$(cut -d" " -f5 /proc/$$/stat); '
    f"( read -r line <&3; kill -9 $$; {_KILL_STARTED} ) >/dev/null 2>&1 & zmqrl_watch=$!; exec 3<&-; "
)
"""A shell alongside that waits for the end of stdin."""
_NOT_FOR_EVERY_SHELL = re.compile(r"[!\\\n]")
"""Characters that csh and fish change also between single quotes."""


def job_name(run_id: str, host: str) -> str:
    """Name of a host's job, step or container: `zmqrl down` and users find it by this."""
    return f"zmqrl-{run_id}-{host}"


def agent_command(section: HostSection, run_id: str, host: str, code: str | None = None) -> str:
    """Starts the agent of `host` in the work directory; `code` is the folder of the user's own modules there."""
    start = f"{_python(section, code, run_id)} -m zmqrl.entry zmqrl.agent {shlex.quote(run_id)} 0"
    begin = f"mkdir -p {quoted(section.workdir)} && cd {quoted(section.workdir)} || exit; {wrap_check(section)}"
    script = f"{begin}exec nice -n {section.nice or 0} {start}"
    return for_login_shell(_marks(host, run_id) + after_prologue(section, script, watched=True))


def reaper_command(section: HostSection, run_id: str, host: str, grace_s: float = REAP_GRACE_S) -> str:
    """Ends what is left of the run there; makes no folder.

    It runs outside of `wrap`, where it sees every process of the host by the pids of the host; within it where only
    that has zmqrl. A prologue that fails does not keep it from its work, and what a prologue has started is of the run.
    """
    arguments = f"-m zmqrl.agent.reaper {shlex.quote(run_id)} {grace_s:g} {shlex.quote(host)}"
    script = f"cd {quoted(section.workdir)} 2>/dev/null; {environment(section)}{quoted(section.python)} {arguments}"
    if section.wrap is not None:
        known = "code=$?; case $code in 0|2|3) exit $code ;; esac"
        script = f"{script}; {known}; exec {_python(section)} {arguments}"
    return for_login_shell(_marks(host, run_id) + after_prologue(section, script, in_any_case=True))


def handshake_command(section: HostSection, host: str) -> str:
    """Prints the handshake of a host's zmqrl, and ends."""
    script = f"{wrap_check(section)}exec {_python(section)} -m zmqrl.orchestrators.handshake"
    return for_login_shell(_marks(host) + after_prologue(section, script))


def examiner_command(section: HostSection, host: str, role: str = "zmqrl.agent") -> str:
    """Starts a host agent that only examines its host, or a template of check processes (`role`).

    In the work directory if it exists; it makes no folder.
    """
    start = f"{_python(section)} -m zmqrl.entry {role} {NO_RUN} 0"
    script = f"cd {quoted(section.workdir)} 2>/dev/null; {wrap_check(section)}exec {start}"
    return for_login_shell(_marks(host) + after_prologue(section, script, watched=True))


def cli_command(section: HostSection, words: Sequence[str], code: str | None = None, around: str = "") -> str:
    """Runs `zmqrl WORDS` in the work directory, without the SSH agent of the login.

    Args:
        section: Of the host.
        words: Arguments; a `~/` at the start of one is the home there.
        code: The folder of the user's own modules there.
        around: A command that runs the rest as its further arguments, with a space at its end; outside of `wrap`.
    """
    arguments = " ".join(quoted(word) for word in words)
    python = f"{wrap_words(section)}{environment(section, code)}{quoted(section.python)}"
    begin = f"mkdir -p {quoted(section.workdir)} && cd {quoted(section.workdir)} || exit; {wrap_check(section)}"
    script = f"{begin}exec nice -n {section.nice or 0} {around}{python} -m zmqrl {arguments}"
    return for_login_shell(f"unset {AGENT_VARIABLE}; {after_prologue(section, script)}")


def shell_handshake_command(section: HostSection, host: str) -> str:
    """The handshake of a host where zmqrl does not start: by `sh`, and by its Python if it has one."""
    python = f"{_python(section)} -c {shlex.quote(_VERSIONS_THERE)} 2>/dev/null"
    script = f"versions=$({python}) || versions=$({_MACHINE_THERE}); {_HANDSHAKE_THERE}"
    return for_login_shell(_marks(host) + after_prologue(section, script, in_any_case=True))


def after_prologue(section: HostSection, script: str, in_any_case: bool = False, watched: bool = False) -> str:
    """`script` of sh after the host's prologue, which reads nothing and writes to stderr.

    A prologue that fails, has a syntax error or exits ends the shell, unless `script` runs `in_any_case`.

    Args:
        section: Of the host.
        script: Without `!`.
        in_any_case: Also after a prologue that has failed.
        watched: Nothing comes on stdin yet; with its end, as when the launcher is killed, a prologue that hangs is
            killed with all that it has started.
    """
    if section.prologue is None:
        return script
    unwatch = "kill $zmqrl_watch; wait $zmqrl_watch 2>/dev/null; " if watched else ""
    ended = f"code=$?; trap - EXIT; set +eu; {unwatch}unset {START_VARIABLE}"
    end = f"{_KILL_STARTED}; exit 1" if watched else "exit 1"
    judged = "" if in_any_case else f" [ $code = 0 ] || {{ {end}; }};"
    rest = f"zmqrl_rest() {{ {ended}; echo {shlex.quote(PROLOGUE_ENDED)}$code >&2;{judged} {script}; exit; }}"
    prologue = f"eval {shlex.quote(section.prologue)} </dev/null >&2"
    watch = _WATCH if watched else ""
    return f"{rest}; {watch}echo {shlex.quote(PROLOGUE_BEGINS)} >&2; trap zmqrl_rest EXIT; {prologue}; zmqrl_rest"


def wrap_words(section: HostSection) -> str:
    """`wrap` for `sh`, with a space at its end; empty where the host has none."""
    return "".join(f"{quoted(word)} " for word in shlex.split(section.wrap or ""))


def wrap_check(section: HostSection) -> str:
    """A script that ends with 127 where the command of `wrap` does not exist."""
    if section.wrap is None:
        return ""
    command, message = quoted(shlex.split(section.wrap)[0]), shlex.quote(WRAP_NOT_FOUND)
    return f"command -v {command} >/dev/null || {{ echo {message} >&2; exit {NOT_FOUND}; }}; "


def for_login_shell(script: str) -> str:
    """A command that runs `script` by `sh`, for a login shell of any kind."""
    if not _NOT_FOR_EVERY_SHELL.search(script):
        return f"exec sh -c {shlex.quote(script)}"
    coded = _NOT_FOR_EVERY_SHELL.sub(lambda found: f"\\0{ord(found[0]):03o}", script)
    return f"""exec sh -c 'eval "$(printf %b "$1")"' sh {shlex.quote(coded)}"""


def quoted(path: str | None) -> str:
    """Quoted for the remote shell, which knows what `~` is there."""
    path = path or ""
    if path == "~":
        return path
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)


def environment(section: HostSection, code: str | None = None) -> str:
    """`env NAME=VALUE ... `, which can be seen there by `ps`; `code` is put before the host's own PYTHONPATH."""
    values = {SAFE_PATH: UNTIL_STARTED, **section.env}  # the work directory does not come first
    if code is not None:
        values["PYTHONPATH"] = ":".join([code, *([values["PYTHONPATH"]] if "PYTHONPATH" in values else [])])
    settings = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    return f"env {' '.join(settings)} "


def _python(section: HostSection, code: str | None = None, run_id: str | None = None) -> str:
    """Python behind `wrap`, with the host's environment; also where `wrap` passes none on."""
    start = f"{environment(section, code)}{quoted(section.python)}"
    if section.wrap is None:
        return start
    marks = "" if run_id is None else f"{RUN_VARIABLE}={shlex.quote(run_id)} "
    return f'{wrap_words(section)}env {marks}{HOST_VARIABLE}="${HOST_VARIABLE}" {start}'


def _marks(host: str, run_id: str | None = None) -> str:
    """Environment of all that follows, the prologue included."""
    marks = f'{HOST_VARIABLE}={shlex.quote(host)}@"$(readlink {PID_NAMESPACE})"; export {HOST_VARIABLE}; '
    return marks if run_id is None else f"{RUN_VARIABLE}={shlex.quote(run_id)}; export {RUN_VARIABLE}; {marks}"
