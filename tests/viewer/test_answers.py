"""What the page shows, as data: of runs that the list has, and the same points as `zmqrl plot`."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.cli.test_damaged_files import STATUS
from tests.queue.samples import record
from tests.viewer.stored import rows, store, stored_sweep
from tests.viewer.test_row_cache import lines_of
from zmqrl.config.codec import replace
from zmqrl.errors import ConfigError
from zmqrl.metrics.curves import RETURN
from zmqrl.metrics.groups import group_of
from zmqrl.metrics.jsonl import read_metrics
from zmqrl.metrics.plot import make_plot
from zmqrl.queue.folder import QueueFolder
from zmqrl.queue.records import JobEnd
from zmqrl.sweeps.folder import RECORDS, SWEEP
from zmqrl.viewer.answers import Answers, as_json
from zmqrl.viewer.row_cache import RowCache


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed in (1, 2, 3):
        store(tmp_path / "lr" / f"seed-{seed}", range(0, 50 * seed, seed))
    store(tmp_path / "b", gamma=0.5)
    return tmp_path


def named(*runs: Path) -> dict[str, list[str]]:
    return {"run": list(map(str, runs))}


def test_curves_are_those_of_plot(folder: Path) -> None:
    seeds = sorted((folder / "lr").iterdir())
    found = Answers(folder).curves({**named(*seeds), "band": ["1"], "x": ["wall_s"], "smooth": ["3"]})
    (line,) = found["lines"]
    (drawn,) = (x for x in make_plot([group_of(str(folder / "lr"))], (RETURN,), 3).lines if x.axis == "wall_s")
    assert (line["label"], line["runs"]) == ("lr", 3) and found["metrics"][0] == "entropy"
    for name in ("x", "value", "low", "high"):
        assert line[name] == getattr(drawn.curve, name).tolist()
    assert [line["label"] for line in Answers(folder).curves(named(*seeds))["lines"]] == [f"lr/{s.name}" for s in seeds]


def test_the_jobs_of_a_queue_are_shown_those_that_have_not_ended_first(folder: Path) -> None:
    queue = QueueFolder(folder / "queue")
    queue.path.mkdir()
    for run_dir in (folder / "lr" / "seed-1", folder / "none", Path("/elsewhere/run")):
        queue.add(replace(record(os.geteuid()), run_dir=str(run_dir)))
    queue.end_job(1, JobEnd("done", 0))
    (folder / "lr" / "seed-1").rename(folder / "lr" / "seed-1-job1")
    found = Answers(folder, queue.path).runs({})
    head, *jobs = found["queue"]
    shown = [dict(zip(head, job, strict=True)) for job in jobs]
    assert [(job["state"], job["run"]) for job in shown] == [
        ("waiting", "none-job2"),
        ("waiting", "/elsewhere/run-job3"),
        ("done", "lr/seed-1-job1"),
    ]
    rows = {row["name"]: (row["job"], row["position"]) for row in found["runs"]}
    assert (rows["none-job2"], rows["lr/seed-1-job1"], rows["b"]) == ((2, 1), (1, None), (None, None))
    assert Answers(folder).runs({})["queue"] == []


def test_sweeps_among_the_runs_are_shown_the_best_trial_on_top(folder: Path) -> None:
    sweep = stored_sweep(folder)
    damaged = store(folder / "bad" / "trial-0" / "seed-1").parents[1]
    (damaged / SWEEP).write_text("{")
    found = {each["name"]: each for each in json.loads(as_json(Answers(folder).sweeps({})))}
    shown = found["s"]
    assert found.keys() == {"s", "bad"} and not found["bad"]["table"] and sweep.path == folder / "s"
    assert shown["summary"][0] == "3 of 3 trials: 2 complete, 1 running" and shown["best"] == 1
    head, *rows = shown["table"]
    assert head == ["trial", "state", "value", "algorithm.learning_rate"]
    assert rows == [[1, "complete", 9.0, 0.2], [0, "complete", 5.0, 0.1], [2, "running", None, 0.3]]
    assert shown["drawn"] == [[0, True], [1, True]]
    assert shown["axes"] == [
        {"name": "learning_rate", "heights": [0.0, 1.0], "texts": [[0.0, "0.1"], [1.0, "0.2"]]},
        {"name": "value", "heights": [0.0, 1.0], "texts": [[0.0, "5"], [1.0, "9"]]},
    ]


def test_a_sweep_of_another_user_does_not_hide_the_others(folder: Path) -> None:
    own, other = stored_sweep(folder), folder / "other"
    shutil.copytree(own.path, other / "s")
    for trial, value in enumerate(["1" + "0" * 400, '"\\udcff"', "NaN"]):
        (other / "s" / RECORDS / f"trial-{trial}").write_text(f'{{"algorithm.learning_rate": {value}}}')
        (other / "s" / RECORDS / f"value-{trial}-0-0").write_text('{"value": 1.0}')
    found = {each["name"]: each for each in json.loads(as_json(Answers(folder).sweeps({})))}
    assert found["s"]["best"] == 1 and len(found["other/s"]["table"]) == 4
    (other / "s" / RECORDS / "value-0-0-0").unlink()
    os.mkfifo(other / "s" / RECORDS / "value-0-0-0")
    found = {each["name"]: each for each in json.loads(as_json(Answers(folder).sweeps({})))}
    assert found["s"]["best"] == 1 and "value-0-0-0" in found["other/s"]["summary"][0]


def test_csv_has_the_points_of_the_curves(folder: Path) -> None:
    query, answers = named(folder / "b"), Answers(folder)
    found = list(csv.DictReader(io.StringIO(answers.points(query))))
    (line,) = answers.curves(query)["lines"]
    assert [float(row["value"]) for row in found] == line["value"] and found[0]["label"] == "b"


def test_of_a_file_that_grows_new_rows_alone_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = folder / "b" / "metrics.jsonl", RowCache()

    def values() -> list[float]:
        found: list[float] = cache.current(path, RETURN).thinned.rows["value"].tolist()
        return found

    assert len(values()) == 50
    read = lines_of(monkeypatch)
    with path.open("a") as file:
        file.write(rows([7.0, 8.0], 50) + '{"wall_s": 52, "env')
        file.flush()
        assert values() == [*range(50), 7.0, 8.0]
        assert len(read) == 2, "the row that is being written is left for later"
        file.write('_steps": 520, "train_return_mean_100": 9.0}\n')
    assert values()[-1] == 9.0 and len(read) == 3
    path.unlink()
    path.write_text(rows([1.0]))
    assert values() == [1.0]


def test_a_curve_is_drawn_anew_where_its_run_has_grown(folder: Path) -> None:
    answers, query = Answers(folder), named(folder / "b")
    before = answers.curves(query)["lines"][0]["x"][-1]
    with (folder / "b" / "metrics.jsonl").open("a") as file:
        file.write(rows([1.0], 60))
    assert (before, answers.curves(query)["lines"][0]["x"][-1]) == (490.0, 600.0)


def test_details_log_and_differences(folder: Path) -> None:
    answers, run = Answers(folder), named(folder / "b")
    found = answers.details(run)
    assert found["config"] == {"env.id": "CartPole-v1", "algorithm.kind": "ppo", "algorithm.gamma": 0.5}
    assert (found["status"], found["hosts"]) == (None, []) and found["summary"]["env_steps"] == 490
    assert answers.log({**run, "log": found["logs"]}) == "first\nlast\n"
    two = named(folder / "b", folder / "lr" / "seed-1")
    assert answers.differences(two) == [("algorithm.gamma", 0.5, 0.9)]


def test_hosts_are_those_of_status(folder: Path) -> None:
    host = {"host": "node01", "state": "lost", "ready": 1, "workers": 4, "pss_mb": 2345.6, "cause": "no heartbeat\nlog"}
    (folder / "b" / "status.json").write_text(json.dumps({**STATUS, "hosts": [host]}))
    head, row = Answers(folder).details(named(folder / "b"))["hosts"]
    assert dict(zip(head, row, strict=True)) == {
        **dict.fromkeys(head, "-"),
        "HOST": "node01",
        "STATE": "lost",
        "WORKERS": "1/4",
        "MB": "2,346",
        "": "no heartbeat",
    }


def test_videos_are_those_of_the_evaluator(folder: Path) -> None:
    """Neither one that is being written, nor another type, nor what a link leads to."""
    run, hostile = folder / "b", '"><img src=x>.gif'
    videos = run / "videos"
    videos.mkdir()
    for name in ("000000100-v1.mp4", hostile, ".000000200-v2.mp4.tmp.mp4", "page.html", "secret"):
        (videos / name).write_bytes(b"content")
    (videos / "link.mp4").symlink_to(videos / "secret")
    (run / "logs" / "link.log").symlink_to(run / "config.json")
    os.mkfifo(videos / "pipe.mp4")
    (videos / "folder.mp4").mkdir()
    answers, query = Answers(folder), named(run)
    found = answers.details(query)
    assert found["videos"] == [hostile, "000000100-v1.mp4"] and found["logs"] == ["local-learner-0.log"]
    assert answers.video({**query, "video": [hostile]}) == ("image/gif", b"content")
    assert answers.video({**query, "video": ["000000100-v1.mp4"]}) == ("video/mp4", b"content")
    for name in ("link.mp4", "pipe.mp4", "folder.mp4", "page.html", ".", "..", ".000000200-v2.mp4.tmp.mp4"):
        with pytest.raises(ConfigError):
            answers.video({**query, "video": [name]})
    videos.rename(folder / "elsewhere")
    videos.symlink_to(folder / "elsewhere")
    with pytest.raises(ConfigError):
        answers.video({**query, "video": ["000000100-v1.mp4"]})


def test_a_large_video_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "b" / "videos").mkdir()
    (folder / "b" / "videos" / "a.mp4").write_bytes(b"content")
    monkeypatch.setattr("zmqrl.viewer.answers.MOST_VIDEO_BYTES", 6)
    with pytest.raises(ConfigError):
        Answers(folder).video({**named(folder / "b"), "video": ["a.mp4"]})


def test_a_run_without_a_count_of_episodes_has_no_curve_over_them(folder: Path) -> None:
    path = folder / "b" / "metrics.jsonl"
    path.write_text("".join(json.dumps({**row, "episodes": 3 * row["wall_s"]}) + "\n" for row in read_metrics(path)))
    query = {**named(folder / "b", folder / "lr" / "seed-1"), "x": ["episodes"]}
    (line,) = Answers(folder).curves(query)["lines"]
    assert (line["label"], line["x"][0], line["x"][-1]) == ("b", 0.0, 147.0)


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("curves", {}),
        ("curves", {"run": ["{}/b/../../secret"]}),
        ("details", {"run": ["/etc"]}),
        ("log", {"run": ["{}/b"], "log": ["../config.json"]}),
        ("video", {"run": ["{}/b"], "video": ["../config.json"]}),
        ("video", {"run": ["{}/b"], "video": ["{}/b/config.json"]}),
        ("video", {"run": ["{}/b"]}),
        ("curves", {"run": ["{}/b"], "x": ["value"]}),
        ("curves", {"run": ["{}/b"], "smooth": ["0"]}),
    ],
)
def test_what_the_list_lacks_is_refused(folder: Path, name: str, query: dict[str, list[str]]) -> None:
    filled = {key: [text.format(folder) for text in texts] for key, texts in query.items()}
    with pytest.raises(ConfigError):
        getattr(Answers(folder), name)(filled)


def test_json_has_null_for_what_is_not_finite() -> None:
    assert json.loads(as_json({"a": [float("nan"), np.inf, 1.0], "b": (float("-inf"),)})) == {
        "a": [None, None, 1.0],
        "b": [None],
    }
