"""A trained policy of zmqrl in numpy: `Policy()(obs)` is its greedy action. Reads policy.json and .safetensors."""

import json
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

F32, GATES = np.float32, ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Policy:
    """Acts for one observation, or for a batch with a leading axis in each part."""

    def __init__(self, folder: "str | Path" = Path(__file__).parent) -> None:
        self.spec = json.loads((Path(folder) / "policy.json").read_text(encoding="utf-8"))
        self.arrays: dict[str, Any] = load_file(Path(folder) / "policy.safetensors")
        self.state: dict[str, Any] = {}

    def reset(self, ended: Any = None) -> None:
        """An episode begins in all envs, or in those of the batch where `ended [N]` is true."""
        self.state = {} if ended is None else self.state
        for h in self.state.values():
            h[np.asarray(ended, bool)] = 0.0

    def __call__(self, obs: Any, reward: Any = 0.0) -> Any:
        """`reward`: of the last step, where `policy.json` has the state `previous`; ignored where an episode begins."""
        spec, action = self.spec, self.spec["action"]
        single = _rows(obs, spec["parts"][0]).ndim == len(spec["parts"][0]["shape"])
        columns = [self._columns(part, _rows(obs, part, single)) for part in spec["parts"]]
        x = np.concatenate(columns, 1, dtype=F32).reshape(-1, *spec["shape"])
        self.state = self.state or {name: np.zeros((len(x), n), F32) for name, n in spec["state"].items()}
        if "previous" in self.state:
            last = self.state["previous"][:, -1]
            np.copyto(last, np.asarray(reward, F32), where=last != 0)
        for layer in spec["layers"]:
            x = getattr(self, f"_{layer['kind']}")(x, layer)
        mask = None if spec["mask"] is None else _rows(obs, spec["mask"], single)
        actions = self._actions(x.reshape(len(x), -1), mask)
        if "previous" in self.state:  # the 1 becomes the reward of this step in the next call
            numbers = self._columns(action, actions) if action["choices"] else actions
            self.state["previous"] = np.pad(numbers, ((0, 0), (0, 1)), constant_values=1).astype(F32)
        actions = actions.astype(action["dtype"]).reshape(-1, *action["shape"])
        return actions[0] if single else actions

    def _columns(self, part: Any, rows: Any) -> Any:
        if part["choices"]:
            entries = rows.reshape(len(rows), -1) - np.array(part["starts"])
            return np.concatenate([np.eye(n)[entries[:, i]] for i, n in enumerate(part["choices"])], 1)
        rows = (rows.transpose(0, 3, 1, 2) if self.spec["channels_last"] else rows).reshape(len(rows), -1)
        if part["statistics"] >= 0:
            at, clip = slice(part["statistics"], part["statistics"] + part["size"]), self.spec["clip"]
            rows = np.clip((rows - self.arrays["obs_mean"][at]) * self.arrays["obs_scale"][at], -clip, clip)
        return rows.astype(F32) / F32(part["divisor"])

    def _actions(self, out: Any, mask: Any) -> Any:
        action = self.spec["action"]
        if action["head"] == "argmax":
            out = out.reshape(len(out), -1, action["quantiles"]).mean(2) if action["quantiles"] > 1 else out
            out = out if mask is None else np.where(mask != 0, out, F32(-1e30))
            entries = np.split(out, np.cumsum(action["choices"])[:-1], 1)
            return np.stack([entry.argmax(1) for entry in entries], 1) + np.array(action["starts"])
        out = out[:, : action["size"]]
        if action["head"] == "clip" and not action["bounded"]:
            return out
        low, high = self.arrays["action.low"], self.arrays["action.high"]
        if action["head"] == "clip":
            return np.clip(out, low, high)
        fraction = np.tanh(out) if action["head"] == "tanh" else np.clip(out, -1.0, 1.0)
        return low + (fraction + 1) * ((high - low) * F32(0.5))

    def _linear(self, x: Any, layer: Any, name: str = "") -> Any:
        return x @ self.arrays[f"{layer['name']}{name}.weight"].T + self.arrays[f"{layer['name']}{name}.bias"]

    def _dueling(self, x: Any, layer: Any) -> Any:
        value, advantage = (self._linear(x, layer, part) for part in (".value", ".advantage"))
        advantage = advantage.reshape(len(x), -1, value.shape[1])
        return (value[:, None] + advantage - advantage.mean(1, keepdims=True)).reshape(len(x), -1)

    def _expectation(self, x: Any, layer: Any) -> Any:
        logits = x.reshape(len(x), -1, len(layer["numbers"]))
        p = np.exp(logits - logits.max(2, keepdims=True))
        return p @ np.array(layer["numbers"], F32) / p.sum(2)

    def _cosine(self, x: Any, layer: Any) -> Any:
        count = self.arrays[f"{layer['name']}.weight"].shape[1]
        cosines = np.cos(np.pi * np.outer(layer["numbers"], np.arange(count))).astype(F32)
        return x * np.maximum(self._linear(cosines, layer), 0).mean(0)

    def _conv(self, x: Any, layer: Any) -> Any:
        weight, step = self.arrays[f"{layer['name']}.weight"], layer["stride"]
        windows = np.lib.stride_tricks.sliding_window_view(x, (1, 1, *weight.shape[2:]))[:, :, ::step, ::step, 0, 0]
        sums = np.tensordot(windows, weight, ((1, 4, 5), (1, 2, 3))) + self.arrays[f"{layer['name']}.bias"]
        return np.moveaxis(sums, 3, 1)

    def _layernorm(self, x: Any, layer: Any) -> Any:
        flat = x.reshape(len(x), -1)
        flat = (flat - flat.mean(1, keepdims=True)) / np.sqrt(flat.var(1, keepdims=True) + F32(layer["epsilon"]))
        return (flat * self.arrays[f"{layer['name']}.weight"] + self.arrays[f"{layer['name']}.bias"]).reshape(x.shape)

    def _gru(self, x: Any, layer: Any) -> Any:
        h, w = self.state[layer["name"]], [self.arrays[f"{layer['name']}.{k}"] for k in GATES]
        ours, theirs = np.split(x @ w[0].T + w[2], 3, 1), np.split(h @ w[1].T + w[3], 3, 1)
        reset, update = (0.5 + 0.5 * np.tanh(0.5 * (ours[i] + theirs[i])) for i in (0, 1))
        new = np.tanh(ours[2] + reset * theirs[2])
        self.state[layer["name"]] = h = (new + update * (h - new)).astype(F32)
        return h

    def _lstm(self, x: Any, layer: Any) -> Any:
        w, (h, c) = [self.arrays[f"{layer['name']}.{k}"] for k in GATES], np.split(self.state[layer["name"]], 2, 1)
        gates = np.split(x @ w[0].T + w[2] + h @ w[1].T + w[3], 4, 1)
        enter, forget, leave = (0.5 + 0.5 * np.tanh(0.5 * gates[i]) for i in (0, 1, 3))
        c = forget * c + enter * np.tanh(gates[2])
        h = leave * np.tanh(c)
        self.state[layer["name"]] = np.concatenate([h, c], 1, dtype=F32)
        return h

    def _concat(self, x: Any, layer: Any) -> Any:
        return np.concatenate([x.reshape(len(x), -1), self.state["previous"]], 1)

    _noisy = _linear
    _flatten = staticmethod(lambda x, layer: x.reshape(len(x), -1))
    _scale = staticmethod(lambda x, layer: x / F32(layer["inputs"]))
    _tanh = staticmethod(lambda x, layer: np.tanh(x))
    _relu = staticmethod(lambda x, layer: np.maximum(x, 0))
    _silu = staticmethod(lambda x, layer: 0.5 * x * (1 + np.tanh(0.5 * x)))
    _gelu = staticmethod(lambda x, layer: 0.5 * x * (1 + np.tanh(F32(0.7978845608) * (x + F32(0.044715) * x**3))))


def _rows(obs: Any, part: Any, single: bool = False) -> Any:
    rows = np.asarray(reduce(lambda value, key: value[key], part["path"], obs), part["dtype"])
    return rows[None] if single else rows
