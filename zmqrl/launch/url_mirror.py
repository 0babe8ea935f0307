"""Copies of a run at a URL: made by the launcher during training, fetched by a resume or an evaluation elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from zmqrl.config.codec import from_json
from zmqrl.config.kinds import nested
from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import Config
from zmqrl.data_stores import tensors
from zmqrl.data_stores.directory import DirectoryConfig, checkpoint_names
from zmqrl.data_stores.make import kind_of
from zmqrl.data_stores.objects import Objects
from zmqrl.errors import ConfigError, StoreError, WireError
from zmqrl.launch.run_directory import stored_config
from zmqrl.messages.files import RunRecord, decode

MIRRORED: Mapping[str, int] = {"full-": 2, "best-": 1}
"""Kinds of checkpoints that are copied, and how many of each are kept there."""
RECORDS = ("config.json", "run.json", "summary.json", "metrics.jsonl", "initial.safetensors")
"""Files of the run directory that a resume and a plot need."""
CLOSE_S = 60.0
"""What the last copy may take."""


class UrlMirror:
    """A thread that copies the newest checkpoints and the records of a run. The newest wins; what fails is repeated."""

    def __init__(self, plan: RunPlan, url: str, warn: Callable[[str], None]) -> None:
        """`warn`: takes a text for the user, from the thread. ConfigError when `url` cannot be used."""
        self._run_dir, self._checkpoints = Path(plan.run_dir), Path(plan.store_path)
        self._every_s, self._attempt, self._warn = plan.config.run.checkpoint_every_s, plan.lineage.attempt, warn
        self._objects = Objects(f"{url.rstrip('/')}/{plan.lineage.id}")
        self._copied: dict[str, str] = {}
        """Digest of each record as it was copied last."""
        self._is_failing = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Copy what is new once more; bounded by `CLOSE_S`. Safe to call twice."""
        self._closed.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._warn(f"the copies in {self._objects.url} are not complete after {CLOSE_S:g} s")

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closed.wait(self._every_s)
            try:
                self._copy_all()
                self._is_failing = False
            except (StoreError, OSError) as error:
                if not self._is_failing or is_last:
                    retried = "they are incomplete" if is_last else "the copy is repeated"
                    self._warn(f"the run is not copied to {self._objects.url}: {error}; {retried}")
                self._is_failing = True

    def _copy_all(self) -> None:
        """Listed each time: a service may have lost what it had."""
        there = self._objects.names()
        self._check_attempt()
        for name, content in self._records():
            digest = hashlib.sha256(content).hexdigest()
            if name not in there or self._copied.get(name) != digest:
                self._objects.put(name, content)
                self._copied[name] = digest
        for kind, most in MIRRORED.items():
            names = list(checkpoint_names(os.listdir(self._checkpoints), kind)) if self._checkpoints.is_dir() else []
            for name in [name for name in names[-most:] if name not in there]:
                whole = _whole(self._checkpoints / name)
                if whole is not None:
                    self._objects.put(name, whole)
                    there.append(name)
            self._objects.delete(list(checkpoint_names(there, kind))[:-most])

    def _check_attempt(self) -> None:
        """StoreError when a later attempt of this run, on another machine, copies to the same place."""
        content = self._objects.get("run.json")
        try:
            later = content is not None and decode(RunRecord, content).attempt > self._attempt
        except WireError:
            return  # it is replaced
        if later:
            raise StoreError(f"{self._objects.url} belongs to a later attempt of this run")

    def _records(self) -> Iterator[tuple[str, bytes]]:
        for name in RECORDS:
            try:
                yield name, (self._run_dir / name).read_bytes()
            except FileNotFoundError:
                continue


def mirror_of(plan: RunPlan, warn: Callable[[str], None]) -> UrlMirror | None:
    """The mirror of `store.mirror`; None without one."""
    config = kind_of(plan.config.store)[1]
    url = config.mirror if isinstance(config, DirectoryConfig) else None
    return None if url is None else UrlMirror(plan, url, warn)


def fetch(url: str, run_dir: Path) -> None:
    """Fetch the records and checkpoints of a run into a new directory.

    Args:
        url: `<store.mirror>/<lineage id>`.
        run_dir: It must not exist, or be empty.

    Raises:
        ConfigError: A run was not found there, or the service does not answer.
    """
    try:
        objects = Objects(url)
        names = objects.names()
        if "config.json" not in names or "run.json" not in names:
            raise ConfigError(f"{url} is not a copy of a run: config.json and run.json were not found there")
        found = {name: objects.get(name) for name in names if name in RECORDS or name.endswith(".safetensors")}
    except StoreError as error:
        raise ConfigError(str(error)) from error
    found["config.json"] = _in_run_directory(found["config.json"] or b"", url)
    (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
    for name, content in found.items():
        if content is not None:
            (run_dir / name if name in RECORDS else run_dir / "checkpoints" / name).write_bytes(content)


def _in_run_directory(config: bytes, url: str) -> bytes:
    """The configuration of a copy: its checkpoints are in its run directory, wherever the store was."""
    try:
        stored = from_json(Config, nested(json.loads(config)["config"]))
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{url}/config.json is not the configuration of a run: {error}") from error
    store = replace(stored.store, options={**stored.store.options, "path": None})
    return json.dumps(stored_config(replace(stored, store=store)), indent=2).encode()


def _whole(path: Path) -> bytes | None:
    """A checkpoint that verifies; None where it was retired or replaced meanwhile."""
    # A second name keeps the content: the learner writes over files that it has retired, but for those with two names.
    link = path.with_name(f".{path.name}.{secrets.token_hex(4)}.mirror.tmp")
    try:
        os.link(path, link)
        content = link.read_bytes()
        tensors.verify(content)
    except (FileNotFoundError, StoreError):
        return None
    finally:
        link.unlink(missing_ok=True)
    return content
