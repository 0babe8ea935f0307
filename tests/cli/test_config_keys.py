"""`config keys`: what the types have, found by name, by a name of another library, or by meaning."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.commands import Command
from tests.support.raising import compare


def listed(zmqrl: Command, *arguments: str) -> list[dict[str, Any]]:
    ended = zmqrl("config", "keys", *arguments, "--json")
    assert ended.code == 0
    rows: list[dict[str, Any]] = json.loads(ended.out)
    return rows


def test_without_a_pattern_every_key_is_listed_once(zmqrl: Command) -> None:
    rows = listed(zmqrl)
    names = [(row["key"], tuple(row["kinds"])) for row in rows]
    assert len(set(names)) == len(names) > 190
    assert {row["key"] for row in rows} >= {"run.seed", "algorithm.kind", "hosts.NAME.workers", "store.mirror"}


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        ("run.max*", {"run.max_wall_s"}),
        ("GAE", {"algorithm.gae_lambda"}),
        ("n_steps", {"env.segment_steps"}),
        ("total-timesteps", {"run.total_env_steps"}),
        ("info_keywords", {"env.report"}),
        ("Monitor", {"run.episodes_csv"}),
        ("num_env_runners", {"hosts.NAME.workers"}),
        ("niceness of the evaluator", {"evaluator.nice"}),
    ],
)
def test_a_pattern_selects(zmqrl: Command, pattern: str, keys: set[str]) -> None:
    assert {row["key"] for row in listed(zmqrl, pattern)} == keys


def test_equal_keys_of_several_algorithms_are_one_entry(zmqrl: Command) -> None:
    assert zmqrl("config", "keys", "gae_lambda").out == (
        "algorithm.gae_lambda (a2c): number, >= 0, <= 1, default 1.0\n"
        "    Lambda of generalised advantage estimation; 1: n-step returns to the end of the "
        "segment, as in the paper.\n"
        "algorithm.gae_lambda (ppo, ppo_gru, vmpo): number, >= 0, <= 1, default 0.95\n"
        "    Lambda of generalised advantage estimation.\n"
    )


def test_no_match_is_exit_2(zmqrl: Command) -> None:
    ended = zmqrl("config", "keys", "quux")
    assert (ended.code, ended.out) == (2, "")
    compare(ended.error, value="'quux'")
