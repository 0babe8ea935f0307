"""Configurations of other libraries, read as named settings. Python files are parsed; nothing of them is executed."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zmqrl.config.yaml_source import Leaf, Node, parse
from zmqrl.errors import ConfigError

Settings = Mapping[str, Any]
ENTRY = ("ENTRY",)
ZOO, RLLIB, ML_AGENTS, CLEANRL, JORLDY, COACH = "rl-baselines3-zoo", "RLlib", "ML-Agents", "CleanRL", "JORLDY", "Coach"
WHOLE = ("env_config", "env_kwargs", "eval_env_kwargs", "<<")
"""Settings that are mappings."""
JORLDY_ENVS = {"cartpole": "CartPole-v1", "mountain_car": "MountainCar-v0", "pendulum": "Pendulum-v1"}
OTHER_UNITS = ("EnvironmentEpisodes", "TrainingSteps")
"""Units of Coach for numbers that are not of env steps."""
ENV = re.compile(r"[\w./:-]+-v\d+|[\w.]+:\w+")
SCRIPT = re.compile(r"(?:^|/)(\w+)\.py$")


@dataclass(frozen=True)
class Foreign:
    """One training, as another library names it."""

    library: str
    settings: Settings
    """Dotted names, as in the file."""
    algorithm: str = ""
    """Empty: the file does not name it."""
    env: str = ""
    entry: str = ""


def read(text: str, name: str, entry: str | None = None) -> Foreign:
    """The settings of a file or a command line, which is `text`.

    `name`: of the file, for messages and for the algorithm of a file of rl-baselines3-zoo (`ppo.yml`). `entry`: which
    training; None: the only one.

    Raises:
        ConfigError: It is of no library that is known, or has several entries, or lacks `entry`.
    """
    if name.endswith(".py"):
        return _of_python(text, name)
    words = command_line(text)
    if words is not None:
        return _of_command_line(words)
    data = data_of(parse(text, name, lines=True, merges=True))
    library = library_of(data) if isinstance(data, dict) else None
    if library is None:
        known = ", ".join((ZOO, RLLIB, ML_AGENTS, CLEANRL, JORLDY, COACH))
        raise ConfigError.about(repr(name), f"is not a configuration of a library that is known ({known})")
    return _of_yaml(data, library, name, entry)


def library_of(data: Settings) -> str | None:
    """Whose YAML file has this content; also of one entry of it, with its name."""
    entries = [value for value in data.values() if isinstance(value, Mapping)]
    if "behaviors" in data or any("trainer_type" in entry for entry in entries):
        return ML_AGENTS
    if any("run" in entry and "config" in entry for entry in entries):
        return RLLIB
    return ZOO if any(map(_is_of_zoo, (data, *entries))) else None


def _is_of_zoo(settings: Settings) -> bool:
    return "n_timesteps" in settings or str(settings.get("policy", "")).endswith("Policy")


def library_of_python(text: str) -> str | None:
    """Whose preset a Python file is."""
    if re.search(r"^\s*(from|import) rl_coach\b", text, re.MULTILINE):
        return COACH
    assigned = re.findall(r"^(agent|env)\s*=", text, re.MULTILINE)
    return JORLDY if len(set(assigned)) == 2 else None


def command_line(text: str) -> list[str] | None:
    """The words of a CleanRL command line from the script's name on; None: it is none."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError:
        return None
    at = next((n for n, word in enumerate(words) if SCRIPT.search(word)), None)
    return None if at is None or any(not word.startswith("--") for word in words[at + 1 : at + 2]) else words[at:]


def _of_yaml(data: Settings, library: str, name: str, entry: str | None) -> Foreign:
    entries = data.get("behaviors", data) if library == ML_AGENTS else data
    if library == ZOO and _is_of_zoo(data):
        entries = {"": data}  # the settings of an env without its name
    entries = {key: value for key, value in entries.items() if isinstance(value, Mapping)}
    if entry is None and len(entries) != 1:
        raise ConfigError("is required: the file has several", key=ENTRY, fix=f"choose one of {', '.join(entries)}")
    entry = next(iter(entries)) if entry is None else entry
    if entry not in entries:
        raise ConfigError("not found", key=ENTRY, value=repr(entry), fix=f"the file has {', '.join(entries)}")
    found = _flat(entries[entry])
    if library == ZOO:
        for key in ("policy_kwargs", "normalize", "replay_buffer_kwargs"):
            if isinstance(value := found.get(key), str):
                found = {**{k: v for k, v in found.items() if k != key}, **_flat({key: _expression(value)})}
        env = entry if ENV.fullmatch(entry) else ""
        return Foreign(ZOO, found, Path(name).stem if entry else "", env, entry)
    algorithm = found.pop("run" if library == RLLIB else "trainer_type", "")
    env = str(found.pop("env", found.pop("config.env", ""))) if library == RLLIB else ""
    others = {} if library == RLLIB else {key: data[key] for key in data if key != "behaviors" and data is not entries}
    return Foreign(library, {**found, **others}, str(algorithm), env, entry)


def _of_command_line(words: list[str]) -> Foreign:
    match = SCRIPT.search(words[0])
    assert match is not None
    settings: dict[str, Any] = {}
    option = ""
    for word in words[1:]:
        if word.startswith("--"):
            option, equals, value = word[2:].partition("=")
            option, is_off = option.replace("-", "_"), option.startswith(("no-", "no_"))
            option = option[3:] if is_off else option
            settings[option] = scalar(value) if equals else not is_off
        elif option:
            settings[option] = scalar(word)
    return Foreign(CLEANRL, settings, match[1], str(settings.pop("env_id", "")))


def _of_python(text: str, name: str) -> Foreign:
    library = library_of_python(text)
    if library is None:
        what = f"is not a preset of {JORLDY} (env = ..., agent = ...) or of {COACH} (import rl_coach)"
        raise ConfigError.about(repr(name), what)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot be parsed: {error}", key=(), value=repr(name)) from error
    return _jorldy(tree) if library == JORLDY else _coach(tree)


def _jorldy(tree: ast.Module) -> Foreign:
    found: dict[str, Any] = {}
    for name, node in _assignments(tree):
        found.update(_flat({name: _value(node)}))
    algorithm, env = str(found.pop("agent.name", "")), str(found.pop("env.name", ""))
    return Foreign(JORLDY, found, algorithm, JORLDY_ENVS.get(env, ""), env)


def _coach(tree: ast.Module) -> Foreign:
    found: dict[str, Any] = {}
    agents = [name for node in ast.walk(tree) if (name := _agent(node))]
    envs = []
    for name, node in _assignments(tree):
        _, _, setting = name.partition(".")
        if setting:
            found[setting] = _value(node)
        elif isinstance(node, ast.Call):
            keywords = {keyword.arg: _value(keyword.value) for keyword in node.keywords}
            envs += [level] if ENV.fullmatch(level := str(keywords.get("level"))) else []
    return Foreign(COACH, found, agents[-1] if agents else "", envs[-1] if envs else "")


def _agent(node: ast.AST) -> str:
    """`ClippedPPO` of a call or an import of `ClippedPPOAgentParameters`."""
    name = node.name if isinstance(node, ast.alias) else getattr(getattr(node, "func", None), "id", "")
    return name.removesuffix("AgentParameters") if name.endswith("AgentParameters") else ""


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Assignments to names and attributes, `a.b["c"].d` as `a.b.c.d`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            yield re.sub(r"\[['\"](\w+)['\"]\]", r".\1", ast.unparse(node.targets[0])), node.value


def _expression(text: str) -> Any:
    try:
        return _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        return text


def _value(node: ast.expr) -> Any:
    """The value that an expression of a preset stands for; its text, where it is none of these."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Tuple) and node.elts and isinstance(node.elts[0], ast.Attribute):
        return _value(node.elts[-1])  # (MemoryGranularity.Transitions, 40000)
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict) and None not in node.keys:
        pairs = zip(node.keys, node.values, strict=True)
        return {str(_value(key)): _value(value) for key, value in pairs if key is not None}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "dict" and not node.args:
            return {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}
        if (
            len(node.args) == 1 and not node.keywords and node.func.id not in OTHER_UNITS
        ):  # EnvironmentSteps(2048), Dense(64), int(1e6)
            return _value(node.args[0])
    if isinstance(node, ast.Attribute):
        return node.attr  # nn.ReLU
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        return -value if isinstance(value, (int, float)) else ast.unparse(node)
    return ast.unparse(node)


def data_of(node: Node) -> Any:
    """Data of a YAML node, with merge keys (`<<: *defaults`)."""
    if isinstance(node, Leaf):
        return node.value
    found = {key: data_of(child) for key, child in node.children.items()}
    merged = found.pop("<<", {})
    for each in reversed(merged) if isinstance(merged, list) else [merged]:
        found = {**each, **found} if isinstance(each, Mapping) else found
    return found


def _flat(settings: Settings, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and key not in WHOLE and "grid_search" not in value and value:
            found.update(_flat(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found


def scalar(text: str) -> Any:
    """Value of a text as YAML reads it, `True` and `1e-3` included."""
    node = parse(text, CLEANRL) if re.fullmatch(r"[\w.+-]*", text) else None
    return node.value if isinstance(node, Leaf) else text
