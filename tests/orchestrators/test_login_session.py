"""What ends with a login, read from the answers of a stand-in for loginctl."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from zmqrl.orchestrators.login_session import SCRIPT, LoginSession

LOGINCTL = """#!/bin/sh
case "$*" in
  *Linger*) echo {linger} ;;
  *KillUserProcesses*) echo {kills} ;;
  *KillOnlyUsers*) echo '{only}' ;;
  *KillExcludeUsers*) echo '{spared}' ;;
esac
"""
SYSTEMD_RUN = "#!/bin/sh\nexit {code}\n"
ANN = "#!/bin/sh\necho ann\n"


def session(folder: Path, code: int = 1, **answers: str) -> LoginSession:
    texts = {"id": ANN}
    if answers:
        defaults = {"linger": "no", "kills": "no", "only": "", "spared": ""}
        texts |= {"loginctl": LOGINCTL.format(**{**defaults, **answers}), "systemd-run": SYSTEMD_RUN.format(code=code)}
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    path = f"{folder}:/usr/bin:/bin" if answers else str(folder)
    done = subprocess.run(
        ["/bin/sh", "-s"], input=SCRIPT, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    found = LoginSession.parse(f"noise of a shell {done.stdout}")
    assert found is not None
    return found


def test_without_systemd_a_session_of_its_own(tmp_path: Path) -> None:
    found = session(tmp_path)
    assert found == LoginSession("ann", linger=False, scope=False, kills=False)
    assert found.around == "" and found.refusal is None
    assert "a session of its own (setsid)" in str(found)


def test_with_linger_a_user_scope(tmp_path: Path) -> None:
    found = session(tmp_path, code=0, linger="yes", kills="yes")
    assert found == LoginSession("ann", linger=True, scope=True, kills=True)
    assert "systemd-run --user --scope" in found.around and found.refusal is None
    assert str(found) == "the launcher runs in a systemd user scope; linger on, KillUserProcesses set"


def test_without_linger_no_scope_is_tried(tmp_path: Path) -> None:
    found = session(tmp_path, code=0, linger="no")
    assert not found.scope and found.refusal is None


@pytest.mark.parametrize(
    ("answers", "refusal"),
    [
        ({"linger": "no"}, "loginctl enable-linger ann"),
        ({"linger": "yes"}, "systemd-run --user --scope true"),
        ({"linger": "no", "spared": "root ann"}, None),
        ({"linger": "no", "only": "bob, carl"}, None),
        ({"linger": "no", "only": "bob ann"}, "loginctl enable-linger ann"),
    ],
)
def test_a_launcher_that_would_end_with_the_login_is_refused(
    tmp_path: Path, answers: dict[str, str], refusal: str | None
) -> None:
    found = session(tmp_path, kills="yes", **answers).refusal
    assert found is None if refusal is None else refusal in (found or "")


def test_no_answer() -> None:
    assert LoginSession.parse("this account is not available\n") is None
