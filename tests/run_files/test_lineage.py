"""What earlier attempts of a run left on record."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from zmqrl.config.codec import to_json
from zmqrl.config.sections import Config
from zmqrl.metrics.jsonl import TAIL_BYTES
from zmqrl.run_files.lineage import LastSeen, last_seen, lineage_of, recorded_env_steps
from zmqrl.run_files.run_info import RunInfo

STARTED_AT = 1_000_000.0
INFO = RunInfo("run-1", 1, 1, "elsewhere", STARTED_AT, None)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Of an attempt that wrote two lines and half of a third."""
    (tmp_path / "run.json").write_text(json.dumps(to_json(replace(INFO, lineage="run-a", attempt=3))))
    rows = [json.dumps({"wall_s": wall_s, "env_steps": 100 * wall_s}) for wall_s in range(2_000, 4_000)]
    content = "\n".join([*rows, '{"wall_s": 4000, "env_st', "\0" * 50])
    assert len(content) > TAIL_BYTES / 2
    (tmp_path / "metrics.jsonl").write_text(content)
    return tmp_path


def test_the_last_readable_line_is_the_last_seen(run_dir: Path) -> None:
    assert last_seen(run_dir) == LastSeen(399_900, STARTED_AT + 3_999)
    assert recorded_env_steps(run_dir) == 399_900
    # The attempt after it began and wrote none.
    os.utime(run_dir / "metrics.jsonl", (0, STARTED_AT - 5))
    assert last_seen(run_dir) == LastSeen(399_900, STARTED_AT - 5)


@pytest.mark.parametrize("content", ["", "{", "[1]\n", "7\n"])
def test_no_metrics_line_gives_no_env_steps(run_dir: Path, content: str) -> None:
    (run_dir / "metrics.jsonl").write_text(content)
    assert last_seen(run_dir) is None and recorded_env_steps(run_dir) == 0
    (run_dir / "status.json").write_text(json.dumps({"env_steps": 7}))
    assert recorded_env_steps(run_dir) == 7


def test_attempts_of_one_lineage(run_dir: Path, tmp_path: Path) -> None:
    following = lineage_of(Config(), run_dir, resume=True)
    assert (following.id, following.attempt, following.run_dir) == ("run-a", 4, str(run_dir))
    (tmp_path / "run.json").write_text(json.dumps(to_json(INFO)))
    assert lineage_of(Config(), run_dir, resume=True).id == "run-1", "of zmqrl 0.1, and the same when asked again"
    fresh = {lineage_of(Config(), run_dir, resume=False).id for _ in range(10)}
    assert len(fresh) == 10


def test_a_score_of_an_old_version_is_not_what_was_seen_last(tmp_path: Path) -> None:
    rows = ('{"wall_s": 2.0, "env_steps": 900}', '{"wall_s": 3.0, "env_steps": 400, "eval_return_mean": 9.0}')
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    seen = last_seen(tmp_path)
    assert seen is not None and seen.env_steps == 900
