"""The README.md of an export: what the policy is, and how it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal, TypeAlias

from zmqrl.export.spec import REWARD, GreedyPolicy, ObservedPart
from zmqrl.types import PREVIOUS, Version

Form: TypeAlias = Literal["onnx", "numpy"]


@dataclass(frozen=True)
class CardSource:
    """What is exported, and the facts of its card."""

    env_id: str
    algorithm: str
    seed: int
    run: str
    version: Version
    score: float | None
    """Score of this version, if the evaluator has scored it."""
    env_steps: int | None
    frame_stack: int
    scored: tuple[str, ...] = ()
    """Versions that the evaluator has scored, where this one is not among them."""
    best_by: str = ""
    """Number of `env.report` that made it the best version, with its mean."""


def card(form: Form, policy: GreedyPolicy, source: CardSource) -> str:
    """The text."""
    return "\n".join([*_head(source), *_facts(source), "", *_use(form, policy, source), ""])


def _head(source: CardSource) -> list[str]:
    return [f"# Policy for {source.env_id}", "", "The greedy policy of a training run with zmqrl.", ""]


def _facts(source: CardSource) -> list[str]:
    score = "; ".join(["not scored", *source.scored])
    if source.score is not None:
        score = f"{source.score:.2f} (mean of greedy episodes)"
    rows = {
        "env": source.env_id,
        "algorithm": source.algorithm,
        "seed": source.seed,
        "run": source.run,
        "version of the policy": source.version,
        "env steps": "unknown" if source.env_steps is None else f"{source.env_steps:,}",
        "score": score,
        **({"best by": source.best_by} if source.best_by else {}),
        "versions": ", ".join(f"{name} {version(name)}" for name in ("zmqrl", "numpy", "torch", "gymnasium")),
    }
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]


def _use(form: Form, policy: GreedyPolicy, source: CardSource) -> list[str]:
    stack = (
        [f"Observations are stacks of the last {source.frame_stack} frames, the newest last.", ""]
        if source.frame_stack > 1
        else []
    )
    inputs = [*policy.parts, *([] if policy.mask is None else [policy.mask])]
    notes = ["Inputs:", "", *(f"- {_described(part)}" for part in inputs), "", *stack]
    return ["## Use", "", *notes, *(_onnx_use(policy, inputs) if form == "onnx" else _numpy_use(policy))]


def _described(part: ObservedPart) -> str:
    at = "" if not part.path else ", `observation" + "".join(f"[{key!r}]" for key in part.path) + "`"
    return f"`{part.name}`: {part.dtype} {list(part.shape)} as the env gives it{at}"


def _numpy_use(policy: GreedyPolicy) -> list[str]:
    reset = ["policy.reset()  # where an episode begins: the policy has recurrent state"] if policy.state else []
    reward = ", reward" if PREVIOUS in policy.state else ""
    return [
        "`policy.py` needs numpy and safetensors.",
        "",
        "```python",
        "from policy import Policy",
        "",
        "policy = Policy()",
        *reset,
        f"action = policy(obs{reward})  # one observation, or a batch with a leading axis",
        "```",
    ]


def _onnx_use(policy: GreedyPolicy, inputs: list[ObservedPart]) -> list[str]:
    feeds = [f'"{part.name}": {_batch(part)}' for part in inputs]
    states = list(policy.state)
    zeros = [f'    "state.{name}": np.zeros((1, {size}), np.float32),' for name, size in policy.state.items()]
    zeros += [f'    "{REWARD}": np.zeros(1, np.float32),  # reward of the last step'] * (PREVIOUS in policy.state)
    carry = [
        "The outputs `next_state.<name>` are the inputs `state.<name>` of the next step; zero where an episode begins.",
        "",
    ]
    return [
        *(carry if states else []),
        "The leading axis of each input is the batch.",
        "",
        "```python",
        "import numpy as np",
        "import onnxruntime",
        "",
        'session = onnxruntime.InferenceSession("policy.onnx")',
        "inputs = {",
        *(f"    {feed}," for feed in feeds),
        *zeros,
        "}",
        f"action, {'*states' if states else '*_'} = session.run(None, inputs)",
        "```",
    ]


def _batch(part: ObservedPart) -> str:
    keys = "".join(f"[{key!r}]" for key in part.path)
    return f"np.asarray(obs{keys}, np.{part.dtype.replace('bool', 'bool_')})[None]"
