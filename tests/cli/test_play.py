"""`eval`, `record` and `watch`: episodes with a checkpoint of a finished run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest

from tests.cli.commands import Command
from tests.support.raising import compare
from tests.support.stored_runs import store_run
from tests.support.waiting import WAIT_S
from zmqrl.config.sections import EnvSection
from zmqrl.data_sets.minari_files import read_data_set
from zmqrl.data_stores.directory import DirectoryStore
from zmqrl.envs.make import probe
from zmqrl.views.problem import report_cells


@pytest.mark.whole
def test_eval_plays_the_best_checkpoint_the_same_each_time(zmqrl: Command, finished: Path) -> None:
    first = zmqrl("eval", finished / "seed-1", "--episodes", "3", "--seed", "4")
    assert first.code == 0
    assert re.fullmatch(r"version \d+-\d+: return [\d.]+ \+- [\d.]+ over 3 greedy episodes\n", first.out)
    assert zmqrl("eval", finished / "seed-1", "--episodes", "3", "--seed", "4").out == first.out


@pytest.mark.whole
def test_eval_as_json(zmqrl: Command, finished: Path) -> None:
    arguments = ("eval", finished / "seed-1", "--episodes", "3", "--seed", "4")
    score, line = json.loads(zmqrl(*arguments, "--json").out), zmqrl(*arguments).out
    assert line == (
        f"version {score['version']}: return {score['return_mean']:.2f} +- {score['return_std']:.2f} "
        "over 3 greedy episodes\n"
    )
    assert score["run_dir"] == str(finished / "seed-1") and (score["episodes"], score["seed"]) == (3, 4)
    assert sum(score["returns"]) / 3 == pytest.approx(score["return_mean"])


@pytest.mark.whole
def test_seeds_are_not_written_into_a_run(zmqrl: Command, finished: Path) -> None:
    ended = zmqrl("train", "cartpole-ppo", "--seeds", "2", "--run-dir", finished / "seed-1", "--dry-run")
    assert (ended.code, ended.out) == (2, "")
    compare(ended.error, value=f"run directory {finished}/seed-1", what="holds a run")


def test_eval_of_the_folder_of_seeds_names_the_runs(zmqrl: Command, finished: Path) -> None:
    ended = zmqrl("eval", finished, "--episodes", "1")
    assert ended.code == 2
    compare(ended.error, runs=(f"{finished}/seed-1", f"{finished}/seed-2"))
    assert zmqrl("eval", finished / "seed-1", "--episodes", "1").code == 0


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("eval", "{}"), "eval {}/seed-1"),
        (("export", "{}", "to here", "--to", "numpy"), "export {}/seed-1 'to here' --to numpy --checkpoint best"),
        (("record", "{}", "data"), "record {}/seed-1 data"),
    ],
)
def test_the_whole_command_for_one_run_of_a_folder_is_named(
    zmqrl: Command, finished: Path, words: Sequence[str], shown: str
) -> None:
    ended = zmqrl(*(word.format(finished) for word in words))
    assert (ended.code, ended.err.rstrip().partition("name one of them: ")[2]) == (2, f"zmqrl {shown.format(finished)}")


def test_eval_of_a_run_without_a_checkpoint(zmqrl: Command, finished: Path, tmp_path: Path) -> None:
    shutil.copy(finished / "seed-1" / "config.json", tmp_path)
    ended = zmqrl("eval", tmp_path)
    assert ended.code == 1
    compare(ended.error, place=f"{tmp_path}/checkpoints", what="has no version of the policy")


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of CartPole with versions 3 and 5, and a machine without a display."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.setenv(name, "")  # restored, also where a command sets it
        monkeypatch.delenv(name)
    store_run("cartpole-ppo", tmp_path / "run", 3, 5)
    return tmp_path / "run"


def test_eval_of_a_named_checkpoint(zmqrl: Command, stored: Path) -> None:
    assert zmqrl("eval", stored, "--checkpoint", "0-3", "--episodes", "1").out.startswith("version 0-3: return ")
    assert zmqrl("eval", stored, "--checkpoint", "last", "--episodes", "1").out.startswith("version 0-5: return ")
    ended = zmqrl("eval", stored, "--checkpoint", "0-4", "--episodes", "1")
    assert ended.code == 2 and ended.err.count("\n") == 1
    compare(ended.error, key=("--checkpoint",), value="0-4", fix="its versions: 0-5 (last), 0-3")


def test_eval_has_the_numbers_of_env_report_and_names_the_one_that_chose_the_version(
    zmqrl: Command, tmp_path: Path
) -> None:
    report = {"comfort": "mean", "cost": "sum"}
    room = {"env__id": "tests.envs.report_envs:Room", "env__max_episode_steps": 20, "env__report": report}
    store_run("cartpole-ppo", tmp_path / "room", 3, **room, evaluator__best_by="comfort")
    unscored = json.loads(zmqrl("eval", tmp_path / "room", "--episodes", "3", "--json").out)
    assert (unscored["best_by"], set(unscored["reports"])) == (None, set(report))
    store = DirectoryStore(str(tmp_path / "room" / "checkpoints"), 8)
    newest = store.newest()
    assert newest is not None
    store.save_best(*newest, -0.6)
    ended = zmqrl("eval", tmp_path / "room", "--episodes", "3")
    assert ended.out == (
        f"version 0-3 (best by comfort): return {unscored['return_mean']:.2f} +- {unscored['return_std']:.2f} "
        f"over 3 greedy episodes\n  {', '.join(report_cells(unscored['reports']))}\n"
    )


def test_recorded_episodes_are_those_that_eval_scores(zmqrl: Command, stored: Path) -> None:
    score = json.loads(zmqrl("eval", stored, "--episodes", "3", "--seed", "7", "--json").out)
    ended = zmqrl("record", stored, "data", "--episodes", "3", "--seed", "7", "--json")
    assert ended.code == 0, ended.err
    made = json.loads(ended.out)
    assert (made["version"], made["return_mean"]) == (score["version"], score["return_mean"])
    episodes = read_data_set(Path("data"), probe(EnvSection()))
    assert [float(one.reward.sum()) for one in episodes] == score["returns"]
    assert sum(len(one.reward) for one in episodes) == made["env_steps"]
    env = gymnasium.make("CartPole-v1")
    for one in episodes:  # each step is one of the env
        env.reset()
        for t in range(len(one.reward)):
            env.unwrapped.state, env.unwrapped.steps_beyond_terminated = one.obs[t].astype(np.float64), None
            after, _, terminated, *_ = env.unwrapped.step(int(one.action[t]))
            assert np.allclose(after, one.obs[t + 1], atol=1e-5) and terminated == one.terminated[t]
    env.close()
    again = zmqrl("record", stored, "data", "--episodes", "1")
    assert again.code == 2 and again.err.count("\n") == 1
    compare(again.error, value="data", fix="name another folder")


def test_episodes_that_take_long_are_remarked_once_and_can_be_truncated(
    zmqrl: Command, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zmqrl.cli.play.REMARK_AFTER_S", 0.0)
    ended = zmqrl("eval", stored, "--episodes", "2", "--max-episode-steps", "3")
    assert ended.out == "version 0-5: return 3.00 +- 0.00 over 2 greedy episodes\n"
    assert ended.err == "no result yet: the longest episodes have 1 steps; --max-episode-steps N truncates them\n"


@pytest.mark.whole
def test_a_video_of_the_first_episode(zmqrl: Command, stored: Path) -> None:
    import imageio.v3
    import imageio_ffmpeg

    for suffix in ("mp4", "gif"):
        ended = zmqrl("eval", stored, "--episodes", "2", "--video", f"out.{suffix}")
        assert ended.code == 0, ended.err
        score, video = ended.out.splitlines()
        assert score.startswith("version 0-5: return ")
        found = re.fullmatch(rf"out\.{suffix}: first episode, (\d+) frames, return (\d+)\.00", video)
        assert found is not None, video
        assert int(found[1]) == int(found[2]) + 1  # one reward a step, and the frame after the reset
    assert os.environ["SDL_VIDEODRIVER"] == "dummy", "SDL prints about displays that are missing"
    assert imageio_ffmpeg.count_frames_and_secs("out.mp4")[0] == int(found[1])
    frames = imageio.v3.imread("out.gif")
    assert 5 < len(frames) <= int(found[1])  # equal frames in a row are one
    assert frames.shape[1:] == (400, 600, 3)
    assert abs(frames[5].astype(int) - frames[0]).max() > 100, "the cart does not move"
    data = json.loads(zmqrl("eval", stored, "--episodes", "2", "--video", "out.gif", "--json").out)
    assert data["video"] == "out.gif" and data["returns"][0] == int(found[2])


def test_a_video_that_cannot_be_made(
    zmqrl: Command, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object) -> str:
        ended = zmqrl("eval", *arguments)
        assert ended.code == 2 and ended.err.count("\n") == 1, ended.err
        return ended.err

    assert ".mp4 or .gif" in refused(stored, "--video", "out.avi")
    assert "nowhere does not exist" in refused(stored, "--video", "nowhere/out.mp4")
    Path("afile").touch()
    assert "afile is not a directory" in refused(stored, "--video", "afile/out.mp4")
    assert "cannot be written" in refused(stored, "--video", "/proc/out.mp4")
    with monkeypatch.context() as failing:
        failing.setattr("zmqrl.evaluator.rendering._writer", Mock(side_effect=OSError("Broken pipe\n\nFFMPEG LOG:")))
        assert refused(stored, "--video", "out.mp4").endswith("cannot be written: Broken pipe\n")
    store_run("cartpole-ppo", tmp_path / "blind", env__id="tests.evaluator.test_rendering:Blind")
    for kind, cause in (("Blind", "render() returned None"), ("Walker", "unexpected keyword argument 'render_mode'")):
        module = {"Blind": "tests.evaluator.test_rendering", "Walker": "tests.envs.odd_envs"}[kind]
        store_run("cartpole-ppo", tmp_path / kind, env__id=f"{module}:{kind}")
        assert cause in refused(tmp_path / kind, "--video", "out.mp4")
    assert not Path("out.mp4").exists()
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert "pip install '.[video]'" in refused(stored, "--video", "out.mp4")


def test_watch_without_a_display_names_the_video(zmqrl: Command, stored: Path) -> None:
    ended = zmqrl("watch", stored)
    assert ended.code == 2 and ended.err.count("\n") == 1
    compare(ended.error, fix=f"write a video: zmqrl eval {stored} --video out.mp4")
    compare(zmqrl("watch", "nothere").error, value="run directory nothere", what="does not exist")


@pytest.mark.whole
def test_watch_on_a_display_that_is_not_there_fails_with_one_line(stored: Path) -> None:
    """SDL prints about Wayland, and without a server it shows nothing."""
    hidden = ("XDG_RUNTIME_DIR", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    env = {name: value for name, value in os.environ.items() if name not in hidden} | {"DISPLAY": ":9999"}
    command = [sys.executable, "-m", "zmqrl", "watch", str(stored), "--episodes", "1"]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.count("\n") == 1 and "x11 not available" in ended.stderr


def test_watch(zmqrl: Command, stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    ended = zmqrl("watch", stored, "--episodes", "2", "--seed", "5")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert [line.partition(": return ")[0] for line in lines] == ["version 0-5, seed 5", "version 0-5, seed 6"]
    assert float(lines[0].rpartition(" ")[2]) > 1


@pytest.mark.parametrize("command", [("eval", "r"), ("watch", "r"), ("logs", "r"), ("bench", "bus"), ("drill",)])
def test_a_number_that_is_none(zmqrl: Command, command: tuple[str, ...]) -> None:
    flag = {"logs": "-n", "bench": "--repeats", "drill": "--faults"}.get(command[0], "--episodes")
    ended = zmqrl(*command, flag, "x")
    assert ended.code == 2 and "'x' is not an integer" in ended.err
