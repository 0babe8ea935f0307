"""examples/notebook.ipynb, executed from top to bottom in a kernel of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.support.running import ROOT, environment

pytestmark = pytest.mark.whole
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
EXECUTE = "from nbclient.cli import main; main()"
"""`jupyter execute`."""
CELL_S, ALL_S = 300, 600


def test_the_notebook_is_stored_without_outputs() -> None:
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert [(cell.outputs, cell.execution_count) for cell in cells] == [([], None)] * len(cells)


@pytest.mark.long
def test_the_notebook_trains_plots_records_and_exports(tmp_path: Path) -> None:
    folder = tmp_path / "examples"
    shutil.copytree(ROOT / "examples", folder, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    places = dict.fromkeys(("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"), str(tmp_path / "jupyter"))
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, NOTEBOOK.name, "--inplace", f"--timeout={CELL_S}"],
        cwd=folder,
        env=environment({**places, "IPYTHONDIR": str(tmp_path / "ipython")}),
        capture_output=True,
        text=True,
        timeout=ALL_S,
    )
    assert done.returncode == 0, done.stderr[-5000:]

    notebook = nbformat.read(folder / NOTEBOOK.name, as_version=4)
    train, plot, evaluate, video, export, parity, own_env = (
        cell.outputs for cell in notebook.cells if cell.cell_type == "code"
    )
    assert re.search(r"\d%: mean return \d", _text(train)), "no progress"
    found = re.search(r"done: 12,\d{3} env steps, results in (.*)", _text(train))
    assert found, _text(train)
    run_dir = Path(found[1])
    assert run_dir.is_relative_to(folder)
    assert any("image/png" in output.get("data", {}) for output in plot)
    assert _number(r"greedy episodes: ([\d.]+)", evaluate) > 30, "a random policy has 22"
    assert any("data:video/mp4;base64," in output.get("data", {}).get("text/html", "") for output in video)
    assert (run_dir / "best.mp4").stat().st_size > 1000
    for file in ("numpy/policy.py", "numpy/README.md", "onnx/policy.onnx", "onnx/README.md"):
        assert (run_dir / file).is_file(), _text(export)
    assert _text(parity).split() == ["numpy:", "True", "onnx:", "True"]
    assert "done, 10," in _text(own_env)
    assert _number(r"mean return (-?[\d.]+)\n\Z", own_env) > 0, "a random policy has less"


def _text(outputs: list[Any]) -> str:
    return "".join(output.get("text", "") for output in outputs)


def _number(pattern: str, outputs: list[Any]) -> float:
    found = re.search(pattern, _text(outputs))
    assert found, _text(outputs)
    return float(found[1])
