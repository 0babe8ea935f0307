"""The URL of `webhook`, which is a secret: what may be written in it, and the part of it that may be shown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from zmqrl.config.codec import replace
from zmqrl.config.sections import Config
from zmqrl.errors import ConfigError

WEBHOOK = ("webhook",)
UNSTORED = "/..."
"""Takes the place of what follows the host."""
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_URL = re.compile(r"(https?://[^/\s'\"?#]*)[^\s'\"]*")


def expanded(webhook: str, environment: Mapping[str, str] = os.environ) -> str:
    """The URL with the values of its environment variables, `$NAME` or `${NAME}`.

    Raises:
        ConfigError: A variable is not set, or the result is not a URL that can be posted to. It shows no part of it.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in environment:
            what = f"environment variable {name} is not set"
            raise ConfigError(what, key=WEBHOOK, fix="set it where zmqrl is started")
        return environment[name]

    url = _VARIABLE.sub(value, webhook)
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError("must be a URL that begins with http:// or https:// (the value is not shown)", key=WEBHOOK)
    if "@" in parts.netloc:
        raise ConfigError(
            "a user and a password before the host are not supported (the value is not shown)", key=WEBHOOK
        )
    return url


def shown_place(url: str) -> str:
    """Scheme, host and port of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def without_paths(text: str) -> str:
    """A text in which URLs are cut behind their hosts."""
    return _URL.sub(rf"\1{UNSTORED}", text)


def without_secrets(config: Config) -> Config:
    """`config` as it is stored and shown: a webhook that is written as a reference to a variable stays."""
    webhook = config.webhook
    if webhook is None or _VARIABLE.search(webhook):
        return config
    return replace(config, webhook=shown_place(webhook) + UNSTORED)


def is_unstored(webhook: str) -> bool:
    """Whether it comes from a run directory, which has only its host."""
    return webhook.endswith(UNSTORED)


def check_webhook(config: Config) -> None:
    """Raise `ConfigError` for a webhook that cannot be posted to."""
    if config.webhook is not None:
        expanded(config.webhook)


def check_repeated(overrides: Iterable[str]) -> None:
    """Raise `ConfigError` when `--set` options that are written into a file contain the URL."""
    for key, _, value in (pair.partition("=") for pair in overrides):
        if key.strip() == "webhook" and _URL.search(value) and not _VARIABLE.search(value):
            what = "refused, since this command would write the URL, which is a secret, into a file"
            fix = "write its secret part as $NAME (in quotes), and set NAME where the run starts"
            raise ConfigError(what, key=("--set",), value=f"webhook={without_paths(value)}", fix=fix)
