"""Sample Factory: `run_sample_factory.py CASE SEED FOLDER`. APPO, two workers, settings of `sample-factory.yaml`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import run_rl

from benchmarks.peers.logged import Logged, cartpole

SETTINGS = Path(__file__).with_name("sample-factory.yaml")
HIDDEN = ["--encoder_mlp_layers", "64", "64"]


def env(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> Logged:
    """The signature of Sample Factory."""
    return cartpole()


def main(seed: int, folder: str) -> Any:
    """Train until the harness ends this process."""
    torch.set_num_threads(1)
    register_env("logged-cartpole", env)
    words = [f"--{key}={value}" for key, value in yaml.safe_load(SETTINGS.read_text()).items()] + HIDDEN
    words += [f"--seed={seed}", f"--train_dir={folder}"]
    parser, _ = parse_sf_args(argv=words)
    return run_rl(parse_full_cfg(parser, words))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[2]), sys.argv[3]))
