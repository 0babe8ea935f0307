"""`webhook`: what is refused, and that no message and no file shows its secret parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.raising import raises
from zmqrl.config.codec import replace
from zmqrl.config.sections import Config
from zmqrl.config.webhook import expanded, is_unstored, without_secrets
from zmqrl.errors import ConfigError
from zmqrl.planning.configure import load_config

SECRET = "T0K3N"


def test_variables_are_replaced() -> None:
    assert expanded("https://a.b/$A/${B_1}x", {"A": "1", "B_1": "2"}) == "https://a.b/1/2x"
    assert expanded("$HOOK", {"HOOK": "http://a:80/x"}) == "http://a:80/x"


@pytest.mark.parametrize(("webhook", "text"), [
    (f"ftp://a/{SECRET}", "http://"),
    (f"a/{SECRET}", "http://"),
    (f"https:///{SECRET}", "http://"),
    (f"https://a:99999/{SECRET}", "http://"),
    (f"https://a/{SECRET} x", "http://"),
    (f"https://me:{SECRET}@a/x", "password"),
    (f"https://a/{SECRET}/$MISSING", "MISSING is not set"),
])  # fmt: skip
def test_a_wrong_one_is_refused_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, webhook: str, text: str
) -> None:
    monkeypatch.delenv("MISSING", raising=False)
    file = tmp_path / "hosts.yaml"
    file.write_text(f"webhook: {webhook!r}\n")
    with raises(ConfigError, key=("webhook",), value="", source=f"{file}:1") as caught:
        load_config(hosts_file=file)
    assert text in caught.value.what and SECRET not in str(caught.value)


@pytest.mark.parametrize("line", ["web_hook: {}", "hook: {}", "webhook: [{}]", "webhook: {{url: {}}}"])
def test_neither_is_that_of_a_misspelt_key(tmp_path: Path, line: str) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(line.format(f"https://hooks.lab/{SECRET}?a={SECRET}") + "\n")
    with pytest.raises(ConfigError) as caught:
        load_config(hosts_file=file)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(("webhook", "stored"), [
    (f"https://hooks.lab:8443/{SECRET}?a={SECRET}", "https://hooks.lab:8443/..."),
    ("https://hooks.lab/$TOKEN", "https://hooks.lab/$TOKEN"),
    (None, None),
])  # fmt: skip
def test_a_run_stores_no_secret(webhook: str | None, stored: str | None) -> None:
    found = without_secrets(replace(Config(), webhook=webhook)).webhook
    assert found == stored
    assert (found is not None and is_unstored(found)) == (webhook is not None and "$" not in webhook)
