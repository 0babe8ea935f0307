"""Names of other libraries, and what zmqrl has in their place; what else is given as a preset."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path

from zmqrl.config.foreign.settings import library_of_python
from zmqrl.config.yaml_source import read_text, shown

_KEYS = """
algorithm.adam_epsilon: adam_eps
algorithm.batch_size or algorithm.minibatch_size: batch batch_size mini_batch_size minibatch_size sgd_minibatch_size
algorithm.batch_size or env.segment_steps: train_batch_size train_batch_size_per_learner
algorithm.clip: epsilon_clip clip_likelihood_ratio_using_epsilon clip_coef clip_epsilon clip_param clip_range
algorithm.burn_in: n_burn_in
algorithm.clip: clip_ratio
algorithm.cosines: embedding_dim
algorithm.double: double_q
algorithm.ent_coef or algorithm.temperature: beta_entropy ent_coef entropy_coef entropy_coeff
algorithm.epochs or replay.ratio: gradient_steps utd_ratio
algorithm.epochs: n_epoch num_epoch optimization_epochs n_epochs num_epochs num_sgd_iter update_epochs ppo_epochs
algorithm.epsilon.end: epsilon_min end_e exploration_final_eps final_epsilon
algorithm.epsilon.fraction: explore_ratio exploration_fraction
algorithm.epsilon.start: epsilon_init exploration_initial_eps initial_epsilon start_e
algorithm.exploration_noise: action_noise
algorithm.gamma: discount discount_factor
algorithm.gae_lambda or algorithm.q_lambda: _lambda lambd lambda lambda_ lam gae use_gae
algorithm.high: v_max
algorithm.intrinsic.weight: intrinsic_coeff
algorithm.kind: algo algorithm_class
algorithm.learning_rate: actor_learning_rate critic_learning_rate
algorithm.learning_rate: lr_decay anneal_lr learning_rate_schedule lr lr_schedule policy_lr q_lr step_size
algorithm.length: seq_len
algorithm.low: v_min
algorithm.max_grad_norm: clip_grad_norm clip_gradients grad_clip max_gradient_norm
algorithm.minibatch_size: num_minibatches n_minibatches
algorithm.n_step: n_step_return n_steps_return
algorithm.normalise_advantage: normalized_advantage norm_adv normalize_advantage use_standardization
algorithm.normalise_obs: norm_obs normalise normalize normalize_obs observation_filter
algorithm.normalise_reward: norm_reward normalize_reward
algorithm.optimiser: optimizer optimizer_class
algorithm.policy_delay: policy_frequency
algorithm.prioritised.uniform_mix: uniform_sample_prob
algorithm.prioritised: prioritized prioritized_replay
algorithm.quantiles or algorithm.atoms: n_atoms n_quantiles num_atoms num_quantiles num_support
algorithm.quantiles: num_sample
algorithm.reward_clip: clip_reward
algorithm.shared: share_features_extractor vf_share_layers
algorithm.target_kl: kl_target
algorithm.target_noise: policy_noise target_policy_noise
algorithm.target_tau: tau polyak
algorithm.target_update_every: num_steps_between_copying_online_weights_to_target target_update_period
algorithm.target_update_every: target_network_frequency target_network_update_freq target_update_interval
algorithm.temperature: alpha initial_alpha
algorithm.value_clip: clip_range_vf clip_vloss vf_clip_param
algorithm.vf_coef: value_coef vf_loss_coeff
env.frame_stack: framestack n_stack
env.id: env env_id env_name environment gym_id
env.kwargs: env_config env_kwargs
env.num_envs: n_envs num_envs_per_env_runner num_envs_per_worker
env.report: info_keywords
env.segment_steps: num_consecutive_playing_steps time_horizon n_steps num_steps rollout_fragment_length rollout_length
env.segment_steps: rollout_steps steps_per_epoch
env.wrappers: env_wrapper wrapper_class
evaluator.env.kwargs: eval_env_kwargs
evaluator.episodes: eval_episodes eval_freq eval_iteration evaluation_duration evaluation_interval n_eval_episodes
hosts.local.workers: num_cpus num_env_runners num_rollout_workers num_workers n_jobs
learner.device: cuda gpu num_gpus num_gpus_per_learner
network.activation: activation activation_fn fcnet_activation nonlinearity
network.hidden: hidden_units fcnet_hiddens head_fcnet_hiddens hidden_size hidden_sizes hiddens layers net_arch
network.hidden: network_arch
network.kind: features_extractor_class module policy policy_class
replay.capacity: max_size buffer_size memory_size replay_buffer_config replay_size
replay.learning_starts: buffer_init_steps start_train_step heatup_steps num_steps_sampled_before_learning_starts
replay.learning_starts: start_steps
replay.ratio: train_freq train_frequency training_intensity
run.checkpoint_every_s: save_period
run.episodes_csv: monitor
run.max_wall_s: time_budget_s time_total_s
run.mode: torch_deterministic deterministic
run.name: exp_name experiment_name run_name
run.stop_at_return: min_reward_threshold episode_return_mean episode_reward_mean reward_threshold stop_reward
run.stop_at_return: target_reward
run.total_env_steps: improve_steps n_timesteps num_env_steps_sampled_lifetime run_step max_steps max_timesteps
run.total_env_steps: num_env_steps num_timesteps timesteps timesteps_total total_steps
run.total_env_steps: total_timesteps
store.keep: checkpoint_freq checkpoint_frequency save_freq save_frequency
"""
NOTES: Mapping[str, str] = {
    "algorithm.batch_size or env.segment_steps": (
        "PPO trains on env.segment_steps x env.num_envs x env.vector_envs rows at a time"
    ),
    "algorithm.intrinsic.weight": "intrinsic_coeff / extrinsic_coeff; the reward is divided by its deviation first",
    "algorithm.length": "rows without those of burn_in, which seq_len includes",
    "algorithm.minibatch_size": "rows of a minibatch, not their number",
    "env.wrappers": "paths such as gymnasium.wrappers:ClipReward",
    "env.report": "a mapping such as {cost: sum}",
    "env.num_envs": "the run has env.num_envs x env.vector_envs envs",
    "evaluator.episodes": "the evaluator plays so many with one published version after another",
    "learner.device": "cuda, or cpu",
    "replay.ratio": "updates per env step",
    "network.kind": "a torch.nn.Module of your own: network.kind=my_networks:MyNetwork",
    "run.checkpoint_every_s": "seconds, not env steps",
    "run.mode": "single and sync give the same weights for the same seed",
    "store.keep": "run.checkpoint_every_s is the interval of full checkpoints",
}
"""What has to be known of the keys, where more than the name differs."""

_NO_KEYS = {
    "log_dir tensorboard tensorboard_log track wandb wandb_entity wandb_project_name": "each run writes metrics.jsonl "
    "and TensorBoard files (tensorboard/) into its run directory, --run-dir DIR or run_dir=DIR",
    "sde_sample_freq use_sde use_sde_at_warmup": "state-dependent exploration (gSDE) is not available; PPO and SAC "
    "draw new noise in each env step",
    "capture_video record record_period render": "evaluator.video_every=N writes videos, zmqrl watch RUN plays",
    "framework torch_threads": "zmqrl trains with torch; learner.threads is the number of threads",
    "experiment local_dir log_path logdir output_dir save_path storage_path": "all files of a run are in its run "
    "directory, --run-dir DIR or run_dir=DIR",
    "log_interval log_level print_period progress_bar verbose": "the live view is always shown on a terminal; --plain "
    "prints lines instead; in Python, train prints lines, and quiet=True prints nothing",
    "update_period": "workers send segments of env.segment_steps, and replay.ratio is the number of updates per env "
    "step",
    "extrinsic_coeff": "the reward of the env has no factor; algorithm.intrinsic.weight is that of the intrinsic one",
    "gamma_i": "algorithm.gamma is the discount of both rewards",
    "icm_network rnd_network": "the intrinsic reward has a network with the layers of the section network",
    "obs_normalize ri_normalize": "algorithm.intrinsic divides its reward by the deviation, and normalises what it "
    "observes; algorithm.normalise_obs is for the policy",
    "action_type": "the action space of the env decides",
    "training": "zmqrl eval RUN plays a policy without training",
    "distributed_batch_size": "algorithm.batch_size or algorithm.minibatch_size, for any number of workers",
    "eval_time_limit": "env.max_episode_steps bounds the episodes, evaluator.final_limit_s the last score",
    "n_seeds num_seeds seeds": "--seeds N of the command line runs N seeds; in Python, loop over seed=",
    "callback callbacks on_step": "in Python, on_metrics=, on_score= and on_checkpoint= are functions that are called "
    "during the run",
    "load load_path reset_num_timesteps restore resume": "--resume DIR or zmqrl.resume(DIR) continues a run",
}
NO_KEYS: Mapping[str, str] = {name: text for names, text in _NO_KEYS.items() for name in names.split()}
"""Names without a key in zmqrl, and how it is done."""

IN_A_SECTION: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("name", "type"), ("id", "kind")),
    **dict.fromkeys(("address", "host", "hostname"), ("ssh",)),
    "every": (),
}
"""General names, and the keys of the same section that they mean. Other sections use these names for other things."""


OF_EVALUATOR: Mapping[str, str] = {
    **dict.fromkeys(("env_kwargs", "env_config", "eval_env_kwargs", "kwargs"), "in zmqrl it is evaluator.env.kwargs"),
    **dict.fromkeys(("env_wrapper", "wrapper_class", "wrappers"), "in zmqrl it is evaluator.env.wrappers"),
    "deterministic": "the evaluator always plays greedy actions; zmqrl.load_policy(RUN, stochastic=True) samples them",
}
"""Names with another meaning in the section `evaluator`."""
_TRAIN = "write zmqrl.train(PRESET), and zmqrl.load_policy(RUN_DIR) for its policy"
PYTHON: Mapping[str, str] = {
    **dict.fromkeys(("A2C", "DDPG", "DQN", "PPO", "PPOConfig", "QRDQN", "SAC", "TD3", "make"), _TRAIN),
    "learn": "zmqrl.train(PRESET) trains, and zmqrl.resume(RUN_DIR, for_env_steps=N) or `zmqrl train --resume DIR` "
    "continues",
    "load": "zmqrl.load_policy(RUN_DIR) loads a policy",
    "predict": "call it: policy(obs)",
    "save": "its weights are in the checkpoints of its run directory",
}
"""Classes and methods of other libraries."""
JORLDY_CONFIGS = "config."
ENV_ID = re.compile(r"([\w.]+:)?([\w-]+/)?[\w-]+-v\d+")
"""Env ids as gymnasium writes them; presets have no version."""
DOTTED_PATH = re.compile(r"[\w.]+:\w+")


def _by_name() -> dict[str, tuple[tuple[str, ...], str]]:
    found = {}
    for line in _KEYS.strip().splitlines():
        keys, _, names = line.partition(": ")
        for name in names.split():
            found[name] = (tuple(keys.split(" or ")), NOTES.get(keys, ""))
        for key in keys.split(" or "):
            section, _, name = key.partition(".")
            if section == "algorithm" and name != "kind":
                found.setdefault(name, ((key,), ""))
    return found


KEYS: Mapping[str, tuple[tuple[str, ...], str]] = _by_name()
"""Name of another library to the keys of zmqrl, of which an algorithm has one, and a note.

Keys of single algorithms are names too: they are missed in the configuration of another algorithm.
"""


def python_hint(name: str) -> str:
    """What to write in place of an attribute that does not exist, for the end of the message."""
    return f"; {PYTHON[name]}" if name in PYTHON else ""


def alias(name: str) -> str:
    """The name as the tables have it: of an option `--total-timesteps` too."""
    return name.lstrip("-").replace("-", "_").lower()


def not_a_preset(preset: str, envs: Mapping[str, str | None]) -> str:
    """The end of the message for an unknown preset, with what to write. `envs`: the env id of each preset."""
    kinds = {name.rpartition("-")[2] for name in envs}
    if preset.endswith(".py"):
        library = library_of_python(read_text(Path(preset))) if Path(preset).is_file() else None
        if library is not None:
            return f"{preset!r} is a preset of {library}: `zmqrl import {preset}` writes one of zmqrl"
        return f"{preset!r} is a Python file: zmqrl train --env {Path(preset).stem}:NAME trains in its env NAME"
    if preset.startswith(JORLDY_CONFIGS):
        return f"{preset!r} is a config of JORLDY: `zmqrl import {preset.replace('.', '/')}.py` writes one of zmqrl"
    if ENV_ID.fullmatch(preset) or DOTTED_PATH.fullmatch(preset):
        named = [name for name, env in envs.items() if env == preset]
        found = f"; presets with it: {', '.join(named)}" if named else ""
        return f"{preset!r} is an env: zmqrl train --env {preset} --algo KIND ({', '.join(sorted(kinds))}){found}"
    if preset.lower() in kinds:
        named = [name for name in envs if name.endswith(f"-{preset.lower()}")]
        command = f"zmqrl train --env ID --algo {preset.lower()}"
        return f"{preset!r} is an algorithm: {command}; presets with it: {', '.join(named)}"
    named = [name for name in envs if name.startswith(f"{preset.lower()}-")]
    if named:
        return f"unknown preset {shown(preset)}; presets that begin with it: {', '.join(named)}"
    near = difflib.get_close_matches(preset.lower(), envs, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown preset {shown(preset)}; {hint}known: {', '.join(envs)}"
