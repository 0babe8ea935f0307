"""What reports and an open page cost a run: `page_cost.py [--pairs N] [--env-steps N]`.

A run with `env.report`, `episodes.csv` and a page of `zmqrl view` on the same machine takes turns with a run that has
none of them. The page is a client that asks what `static/view.js` asks while it shows a live run, as often, on one
connection. Printed are env steps per second of both, the ratio of each pair, and the median of the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from zmqrl.metrics.curves import RETURN

STATIC = Path(__file__).parents[1] / "zmqrl" / "viewer" / "static"
RUN_LIMIT_S, ANSWER_S = 600.0, 30.0
ENV = """\
import gymnasium


class Cart(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action):
        observation, reward, terminated, truncated, _ = self.env.step(action)
        position, velocity, *_ = map(float, observation)
        info = {"comfort": position, "cost": abs(velocity), "is_success": float(truncated)}
        return observation, reward, terminated, truncated, info
"""
RUN = ["--env", "cart:Cart", "--algo", "ppo", "--mode", "async", "--workers", "2", "--plain"]
SETTINGS = ["env.num_envs=8", "evaluator.episodes=0"]
REPORTS = ["env.report={comfort: mean, cost: sum, is_success: last}", "run.episodes_csv=true"]


def every_s() -> float:
    """How often the page asks."""
    found = re.search(r"EVERY_MS = (\d+)", (STATIC / "view.js").read_text())
    assert found is not None
    return int(found[1]) / 1000


def watch(url: str, has_ended: threading.Event) -> int:
    """Ask as the page does; the number of answers with a curve."""
    parts, with_curve = urlsplit(url), 0
    connection = HTTPConnection(parts.netloc, timeout=ANSWER_S)

    def get(path: str, headers: dict[str, str]) -> tuple[str | None, bytes]:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.getheader("Set-Cookie"), response.read()

    cookie, _ = get(f"/?{parts.query}", {})
    assert cookie is not None
    headers = {"Cookie": cookie.partition(";")[0]}
    while not has_ended.wait(every_s()):
        runs = json.loads(get("/api/runs?", headers)[1])["runs"]
        get("/api/sweeps?", headers)
        for run in runs:
            query = urlencode([("run", run["run_dir"])])
            axis = urlencode([("metric", RETURN), ("x", "env_steps"), ("smooth", "1")])
            with_curve += bool(json.loads(get(f"/api/curves?{query}&{axis}", headers)[1])["lines"])
            get(f"/api/details?{query}", headers)
    return with_curve


def speed(folder: Path, env_steps: int, is_watched: bool) -> float:
    """Env steps per second of one run."""
    command, variables = [sys.executable, "-m", "zmqrl"], {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    has_ended, answers = threading.Event(), list[int]()
    runs = folder / "runs"
    runs.mkdir()
    settings = [*SETTINGS, f"run.total_env_steps={env_steps}", *(REPORTS if is_watched else [])]
    train = [*command, "train", *RUN, *(part for one in settings for part in ("--set", one)), "--run-dir", "runs/one"]
    if is_watched:
        view = [*command, "view", str(runs)]
        viewer = subprocess.Popen(view, stdout=subprocess.PIPE, text=True, env=variables)
        assert viewer.stdout is not None
        url = viewer.stdout.readline().strip()
        page = threading.Thread(target=lambda: answers.append(watch(url, has_ended)))
        page.start()
    subprocess.run(train, cwd=folder, env=variables, check=True, capture_output=True, timeout=RUN_LIMIT_S)
    if is_watched:
        has_ended.set()
        page.join()
        viewer.terminate()
        viewer.wait()
        assert answers[0], "the page showed no curve"
    return float(json.loads((runs / "one" / "summary.json").read_bytes())["env_steps_per_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7, help="runs with and without them (default: %(default)s)")
    parser.add_argument("--env-steps", type=int, default=400_000, help="of each run (default: %(default)s)")
    arguments = parser.parse_args()
    ratios: list[float] = []
    for index in range(arguments.pairs):
        found = {}
        for is_watched in (False, True) if index % 2 == 0 else (True, False):
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "cart.py").write_text(ENV)
                found[is_watched] = speed(Path(folder), arguments.env_steps, is_watched)
        ratios.append(found[True] / found[False])
        print(f"without {found[False]:,.0f}, with {found[True]:,.0f} env steps/s: {ratios[-1]:.3f}", flush=True)
    print(f"median {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
