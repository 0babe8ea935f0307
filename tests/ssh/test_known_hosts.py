"""known_hosts as ssh-keygen and sshd write it, and what is believed."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.raising import raises
from tests.support.waiting import WAIT_S
from zmqrl.errors import HostFailed
from zmqrl.ssh.config import Target
from zmqrl.ssh.known_hosts import SshHostKey, check, known_keys, preferred_kinds

KEY = SshHostKey("ssh-ed25519", b"one key")
OTHER = SshHostKey("ssh-rsa", b"another")


def line(names: str, key: SshHostKey = KEY) -> str:
    return f"{names} {key.kind} {base64.b64encode(key.blob).decode()} comment\n"


def target(known: Path, port: int = 22, **more: object) -> Target:
    values = {"new_keys_file": str(known), "known_hosts": (str(known),), **more}
    return Target("h", "node.lab", port, "u", (), False, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("names", "port", "known"),
    [
        ("node.lab", 22, True),
        ("NODE.lab,10.0.0.1", 22, True),
        ("node.lab", 2222, False),
        ("[node.lab]:2222", 2222, True),
        ("[node.lab]:2222", 22, False),
        ("*.lab", 22, True),
        ("*.lab,!node.lab", 22, False),
        ("n?de.lab", 22, True),
        ("#node.lab", 22, False),
    ],
)
def test_names_match_as_ssh_matches_them(tmp_path: Path, names: str, port: int, known: bool) -> None:
    (tmp_path / "known").write_text(f"\n# a comment\n{line(names)}broken line\n")
    assert bool(known_keys(target(tmp_path / "known", port))) == known


def test_a_known_key_is_accepted_and_an_unknown_one_is_not(tmp_path: Path) -> None:
    known = tmp_path / "known"
    with raises(
        HostFailed,
        host="h",
        cause="unknown host key: node.lab:22 shows ssh-ed25519 SHA256:++iEBe3qmZKMCvgfcAgnKyeJnIdPlfR2CUJV54JpKtM",
    ):
        check(target(known), KEY, "strict")
    known.write_text(line("node.lab"))
    assert check(target(known), KEY, "strict") is None


@pytest.mark.parametrize("policy", ["strict", "accept-new"])
def test_a_changed_key_is_always_refused_also_under_another_type(tmp_path: Path, policy: str) -> None:
    known = tmp_path / "known"
    known.write_text(line("x") + line("node.lab"))
    with raises(HostFailed, host="h"):
        check(target(known), OTHER, policy)  # type: ignore[arg-type]
    assert len(known.read_text().splitlines()) == 2


def test_a_revoked_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "known").write_text(line("node.lab") + line("@revoked *"))
    with raises(HostFailed, host="h", fix="contact the administrator; zmqrl does not connect"):
        check(target(tmp_path / "known"), KEY, "accept-new")


def test_a_host_with_a_certificate_alone_is_named_as_such(tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text("@cert-authority " + line("*.lab", OTHER))
    with pytest.raises(HostFailed) as caught:
        check(target(known), KEY, "strict")
    assert (
        "has only a certificate authority" in caught.value.cause and f"{known}:1: @cert-authority" in caught.value.cause
    )
    assert "ssh_host_ed25519_key.pub" in caught.value.fix
    assert check(target(known), KEY, "accept-new") and check(target(known), KEY, "strict") is None


@pytest.mark.parametrize("hashed", [False, True])
def test_an_accepted_key_is_written_down_once_as_ssh_would(tmp_path: Path, hashed: bool) -> None:
    known = tmp_path / "ssh" / "known"
    where = target(known, 2222, hash_known_hosts=hashed)
    said = check(where, KEY, "accept-new")
    assert said is not None and KEY.fingerprint in said
    assert check(where, KEY, "accept-new") is None
    assert len(known.read_text().splitlines()) == 1
    assert known.stat().st_mode & 0o777 == 0o600
    assert ("node.lab" in known.read_text()) != hashed


def test_ssh_keygen_finds_and_hashes_what_we_write_and_read(tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen here")
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "k")], check=True, timeout=WAIT_S
    )
    kind, text = (tmp_path / "k.pub").read_text().split()[:2]
    key, known = SshHostKey(kind, base64.b64decode(text)), tmp_path / "known"
    check(target(known, 2222, hash_known_hosts=True), key, "accept-new")
    found = subprocess.run(
        ["ssh-keygen", "-f", str(known), "-F", "[node.lab]:2222"], capture_output=True, text=True, timeout=WAIT_S
    )
    assert text in found.stdout
    known.write_text(f"node.lab {kind} {text}\n")
    subprocess.run(["ssh-keygen", "-f", str(known), "-H"], check=True, capture_output=True, timeout=WAIT_S)
    assert known.read_text().startswith("|1|")
    assert check(target(known), key, "strict") is None
    listed = subprocess.run(["ssh-keygen", "-lf", str(tmp_path / "k")], capture_output=True, text=True, timeout=WAIT_S)
    assert key.fingerprint in listed.stdout


def test_the_known_kinds_are_requested_first(tmp_path: Path) -> None:
    (tmp_path / "known").write_text(line("node.lab", OTHER))
    offered = ["ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256", "ssh-rsa"]
    known = known_keys(target(tmp_path / "known"))
    assert preferred_kinds(known, offered)[:3] == ["rsa-sha2-512", "rsa-sha2-256", "ssh-rsa"]
    assert preferred_kinds((), offered) == offered
