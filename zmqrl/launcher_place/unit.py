"""A systemd user unit that starts a run at boot, or continues it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zmqrl.config.sections import Config
from zmqrl.errors import ConfigError, Interrupted
from zmqrl.loading import PATH_VARIABLE
from zmqrl.run_files.url_mirror import is_copied

WRITTEN_BY = "# Written by zmqrl install-unit."
STOP_SLACK_S = 60
"""For what `limits` does not bound: summary, teardown."""
RESTART_S = 30
RETRIES = 10
"""Restarts of a launcher that fails soon after each start."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class RunUnit:
    """One run and the command of its launcher."""

    name: str
    """Name of the unit, without `zmqrl-` and `.service`."""
    run_dir: Path
    folder: Path
    """Working directory of the launcher."""
    command: Sequence[str]
    environment: Mapping[str, str]
    stop_s: int
    """How long the launcher may take to end after SIGTERM."""

    @property
    def file_name(self) -> str:
        """Name of the unit's file in a directory of units."""
        return f"zmqrl-{self.name}.service"

    def text(self) -> str:
        """The unit. Exit code 2 (configuration) is not retried, 130 (SIGTERM) is a success."""
        variables = [f"Environment={_quoted(f'{name}={value}')}" for name, value in self.environment.items()]
        lines = (
            WRITTEN_BY,
            "[Unit]",
            f"Description=zmqrl run {_literal(self.name)} in {_literal(str(self.run_dir))}",
            f"StartLimitIntervalSec={RETRIES * 2 * RESTART_S}",
            f"StartLimitBurst={RETRIES}",
            "",
            "[Service]",
            "Type=exec",
            f"WorkingDirectory={_literal(str(self.folder))}",
            *variables,
            f"ExecStart={' '.join(_quoted(word).replace('$', '$$') for word in self.command)}",
            "KillMode=mixed",  # nothing of the run is left, also after a SIGKILL of the launcher
            f"TimeoutStopSec={self.stop_s}",
            f"SuccessExitStatus={Interrupted.exit_code}",
            "Restart=on-failure",
            f"RestartPreventExitStatus={ConfigError.exit_code}",
            f"RestartSec={RESTART_S}",
            "",
            "[Install]",
            "WantedBy=default.target",
        )
        return "\n".join([*lines, ""])

    def install(self, folder: Path) -> Path:
        """Write it into a directory of units; the file.

        Raises:
            ConfigError: A unit of this name is there that zmqrl did not write, or the directory cannot be written.
        """
        path = folder / self.file_name
        part = path.with_name(f".{path.name}.part")
        try:
            if path.exists() and not path.read_text(encoding="utf-8").startswith(WRITTEN_BY):
                what, fix = "exists, and zmqrl did not write it", "choose another --name, or remove the file"
                raise ConfigError.about(path, what, fix)
            folder.mkdir(parents=True, exist_ok=True)
            part.touch(0o600)
            part.write_text(self.text(), encoding="utf-8")
            part.replace(path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
        return path


def check_name(name: str) -> None:
    """ConfigError unless `name` can be part of the name of a unit."""
    if not _NAME.fullmatch(name):
        raise ConfigError("may contain only letters, digits, '.', '_' and '-'", key=("--name",), value=repr(name))


def stop_s_of(config: Config) -> int:
    """How long a launcher of `config` takes to end at most: checkpoint, processes, copy, `on_end` and `webhook`."""
    limits, wait_s = config.limits, config.store.wait_s
    end_s = 4 * limits.grace_s + config.evaluator.final_limit_s + wait_s  # learner, workers, broker; once more for all
    return round(end_s + is_copied(config.store) * wait_s + 2 * limits.on_end_s) + STOP_SLACK_S


def environment_of(config: Config, own: Mapping[str, str]) -> Mapping[str, str]:
    """Variables of the launcher, from `own`. Its own processes find the modules of `code.sync` by `ZMQRL_PATH`."""
    modules = ":".join(dict.fromkeys(str(Path(path).parent) for path in config.code.sync))
    found = {"PYTHONPATH": own.get("PYTHONPATH", ""), PATH_VARIABLE: modules}
    return {"PATH": own.get("PATH", os.defpath)} | {name: value for name, value in found.items() if value}


def _literal(text: str) -> str:
    """Without specifiers of systemd, in one line."""
    return " ".join(text.split("\n")).replace("%", "%%")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'.replace("%", "%%")
