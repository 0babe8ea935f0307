"""Small whole runs as plans."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zmqrl.config.plan import RunPlan
from zmqrl.config.sections import (
    Config,
    EnvSection,
    EvaluatorSection,
    HostSection,
    LimitsSection,
    NetworkSection,
    ReplaySection,
    RestartSection,
    RunSection,
)
from zmqrl.planning.plan_run import plan_run
from zmqrl.types import ModeName

IDLE: Mapping[str, Any] = {"kind": "zmqrl.bench.noop:NoUpdate", "minibatch_size": 32}
"""PPO that publishes the weights it was given, for runs whose weights nobody looks at; its learner has no torch."""
PPO: Mapping[str, Any] = {
    "kind": "ppo",
    "learning_rate": {"start": 1e-3, "end": 0.0},
    "clip": [[0, 0.2], [4_000, 0.1]],
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "epochs": 4,
    "minibatch_size": 128,
}
TALLY: Mapping[str, Any] = {"kind": "tests.stand_ins.tally:Tally"}
"""Weights that depend on every row, learned without torch: for runs that are about processes, and their bits."""
SLOW_TALLY: Mapping[str, Any] = {**TALLY, "round_s": 0.02}
WAITING_TALLY: Mapping[str, Any] = {**TALLY, "round_s": 0.2}
"""For runs that wait for a host: they hardly use a CPU meanwhile."""
NORMALISED: Mapping[str, Any] = {**PPO, "normalise_obs": True, "normalise_reward": True}
DQN: Mapping[str, Any] = {"kind": "dqn", "target_update_every": 50}
IDLE_DQN: Mapping[str, Any] = {**DQN, "kind": "tests.stand_ins.idle_dqn:IdleDQN"}
"""DQN of the same kind."""
SEQUENCES: Mapping[str, Any] = {"kind": "tests.stand_ins.sequence_tally:SequenceTally"}
"""Sequences by priority, learned without torch."""
SLOW_SEQUENCES: Mapping[str, Any] = {**SEQUENCES, "round_s": 0.02}
SAC: Mapping[str, Any] = {"kind": "sac", "batch_size": 64, "warmup_env_steps": 500}
TD3: Mapping[str, Any] = {"kind": "td3", "batch_size": 64, "warmup_env_steps": 500}
SAC_DISCRETE: Mapping[str, Any] = {**SAC, "target_entropy": 0.3}
TQC: Mapping[str, Any] = {**SAC, "kind": "tqc", "quantiles": 10}
MPO: Mapping[str, Any] = {**TD3, "kind": "mpo", "samples": 5, "target_update_every": 20}
DDPG: Mapping[str, Any] = {**TD3, "kind": "ddpg"}
IQL: Mapping[str, Any] = {"kind": "iql", "batch_size": 64}
CQL: Mapping[str, Any] = {**SAC, "kind": "cql", "sampled_actions": 3}
QRDQN: Mapping[str, Any] = {"kind": "qrdqn", "batch_size": 64, "quantiles": 10}
PQN: Mapping[str, Any] = {"kind": "pqn", "minibatch_size": 128, "epochs": 2}
PPO_GRU: Mapping[str, Any] = {**PPO, "kind": "ppo_gru", "gru_size": 16, "sequence": 8}
MEMORY: Mapping[str, Any] = {"cell": "lstm", "size": 8, "sequence": 8}
PPO_LSTM: Mapping[str, Any] = {**PPO, "memory": MEMORY, "epochs": 2}
A2C: Mapping[str, Any] = {"kind": "a2c", "learning_rate": 1e-3}
REINFORCE: Mapping[str, Any] = {"kind": "reinforce"}
IMPALA: Mapping[str, Any] = {"kind": "impala"}
VMPO: Mapping[str, Any] = {"kind": "vmpo", "epochs": 2, "minibatch_size": 128}
APPO: Mapping[str, Any] = {"kind": "impala", "clip": 0.2, "epochs": 2, "minibatch_size": 128, "memory": MEMORY}
PRIORITISED: Mapping[str, Any] = {**DQN, "prioritised": {}, "n_step": 3, "dueling": True}

CARTPOLE = EnvSection(num_envs=2, vector_envs=4, segment_steps=32)
ACROBOT = EnvSection(id="Acrobot-v1", num_envs=2, vector_envs=4, segment_steps=64)
STACKED = EnvSection(num_envs=2, vector_envs=4, segment_steps=32, frame_stack=3)
STACKED_STATES = EnvSection(
    id="tests.envs.odd_envs:Stateful",
    num_envs=2,
    vector_envs=4,
    segment_steps=32,
    frame_stack=3,
    max_episode_steps=50,
    recovery="state",
)
"""With `env.recovery: state`: the frames are part of the state."""
PENDULUM = EnvSection(id="Pendulum-v1", num_envs=2, vector_envs=4, segment_steps=64)
REPLAY = ReplaySection(capacity=2000, learning_starts=500, ratio=0.1)


def system_plan(
    run_dir: Path,
    mode: ModeName = "sync",
    workers: int = 2,
    algorithm: Mapping[str, Any] = PPO,
    env: EnvSection = CARTPOLE,
    *,
    steps: int = 3000,
    schedule_steps: int = 6000,
    network: NetworkSection | None = None,
    evaluator: EvaluatorSection | None = None,
    limits: LimitsSection | None = None,
    restart: RestartSection | None = None,
    resume: bool = False,
    **run: Any,
) -> RunPlan:
    """A run of a few seconds; `run` are further keys of the section of that name."""
    config = Config(
        run=RunSection(mode=mode, total_env_steps=steps, schedule_env_steps=schedule_steps, **run),
        env=env,
        network=network or NetworkSection(hidden=(32, 32)),
        algorithm=algorithm,
        replay=REPLAY,
        evaluator=evaluator or EvaluatorSection(episodes=0),
        hosts={"local": HostSection(workers=workers)},
        limits=limits or LimitsSection(heartbeat_s=0.2, grace_s=5.0),
        restart=restart or RestartSection(backoff_s=0.1, backoff_max_s=0.2),
    )
    return plan_run(config, run_dir, time.time(), resume)
