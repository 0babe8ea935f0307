"""Virtual environments of the peers, made once in `~/.cache/zmqrl/peers` from `requirements/NAME.txt`.

The files pin the peer and what it needs beyond the packages of this interpreter, which the environments share by a
`.pth` file: torch without CUDA is 700 MB. What a peer pins otherwise, such as numpy below 2, is in its own environment
and comes first.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "zmqrl" / "peers"
PACKAGES = sysconfig.get_paths()["purelib"]
FIND_TORCH = "import torch.utils.cpp_extension as e; print(*e.include_paths(), sep='\\n'); print(*e.library_paths())"


def python_of(name: str) -> Path:
    """Interpreter of the environment of a peer, made at the first call."""
    folder, stamp = CACHE / name, CACHE / name / "made"
    pins = (HERE / "requirements" / f"{name}.txt").read_text()
    wanted = hashlib.sha256(f"{pins}\n{PACKAGES}".encode()).hexdigest()
    python = folder / "bin" / "python"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    print(f"installing {name} in {folder}", file=sys.stderr, flush=True)
    run(sys.executable, "-m", "venv", "--clear", "--without-pip", folder)
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "-q", "--no-deps", *pins.split())
    own = Path(printed(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"))
    (own / "shared.pth").write_text(PACKAGES + "\n")
    if name == "pufferlib":
        build_kernels(python, own / "pufferlib")
    stamp.write_text(wanted)
    return python


def build_kernels(python: Path, package: Path) -> None:
    """Compile the C++ file in the wheel of PufferLib for the torch of now: the wheel has it for torch 2.9 with CUDA."""
    *includes, libraries = printed(python, "-c", FIND_TORCH).splitlines()
    includes.append(printed(python, "-c", "import sysconfig; print(sysconfig.get_paths()['include'])"))
    (built,) = package.glob("_C.*.so")
    flags = [f"-I{folder}" for folder in includes] + [f"-L{libraries}", f"-Wl,-rpath,{libraries}"]
    links = ["-ltorch", "-ltorch_cpu", "-lc10"]
    source = package / "extensions" / "pufferlib.cpp"
    run("g++", "-O3", "-std=c++20", "-fPIC", "-shared", source, *flags, *links, "-o", built)


def run(*words: str | Path) -> None:
    """Run a command; its output is shown."""
    subprocess.run(words, check=True, stdout=sys.stderr)


def printed(*words: str | Path) -> str:
    """What a command prints."""
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
