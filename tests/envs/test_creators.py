"""What is called to make an env or a wrapper: classes of envs, and functions that may return one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.envs.caller_names import MARK
from tests.support.raising import compare
from zmqrl.config.sections import EnvSection
from zmqrl.envs.make import probe
from zmqrl.errors import ConfigError

NAMES = "tests.envs.caller_names"


@pytest.mark.parametrize(
    "section",
    [
        EnvSection(id="subprocess:Popen", kwargs={"args": ["sh", "-c", f'touch "${MARK}"']}),
        EnvSection(id="subprocess:run", kwargs={"args": ["sh", "-c", f'touch "${MARK}"']}),
        EnvSection(id="os:system", kwargs={"command": f'touch "${MARK}"'}),
        EnvSection(id="builtins:exec", kwargs={}),
        EnvSection(id="importlib:import_module", kwargs={"name": "antigravity"}),
        EnvSection(id="pathlib:Path"),
        EnvSection(id="ctypes:CDLL", kwargs={"name": "libm.so.6"}),
        EnvSection(id="yaml:unsafe_load", kwargs={"stream": "!!python/object/apply:os.system ['touch $MARK']"}),
        EnvSection(id="numpy:load", kwargs={"file": "x.npy", "allow_pickle": True}),
        EnvSection(id="zmqrl.launch.end_notices:execute", kwargs={"command": "true"}),
        EnvSection(id=f"{NAMES}:run", kwargs={"args": ["sh", "-c", f'touch "${MARK}"']}),
        EnvSection(id=f"{NAMES}:shell", kwargs={"args": ["sh", "-c", f'touch "${MARK}"']}),
        EnvSection(id=f"{NAMES}:partial_of_python", kwargs={"name": "made"}),
        EnvSection(id=f"{NAMES}:Touching"),
        EnvSection(id=f"{NAMES}:instance"),
        EnvSection(wrappers=(f"{NAMES}:rmtree",)),
        EnvSection(wrappers=({"subprocess:run": {"shell": True}},)),
        EnvSection(wrappers=("builtins:print",)),
        EnvSection(wrappers=(f"{NAMES}:Touching",)),
        EnvSection(wrappers=(f"{NAMES}:instance",)),
        EnvSection(id="tests.envs.agent_envs:Walkers", wrappers=(f"{NAMES}:Touching",)),
    ],
    ids=lambda section: "-".join(map(str, [section.id, *section.wrappers])),
)
def test_what_makes_no_env_is_not_called(
    section: EnvSection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setenv(MARK, str(mark))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        probe(section)
    assert not list(tmp_path.iterdir()), "it was called"
    named = section.wrappers[0] if section.wrappers else section.id
    path = named if isinstance(named, str) else next(iter(named))
    compare(caught.value, key=("env", "wrappers" if section.wrappers else "id"), value=repr(path))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "section",
    [
        EnvSection(id=f"{NAMES}:pole"),
        EnvSection(id=f"{NAMES}:method"),
        EnvSection(id=f"{NAMES}:partial"),
        EnvSection(id="gymnasium:make", kwargs={"id": "CartPole-v1"}),
        EnvSection(wrappers=({f"{NAMES}:wrapped": {"limit": 3}},)),
        EnvSection(id="tests.envs.agent_envs:Walkers", num_envs=6),
    ],
    ids=lambda section: "-".join(map(str, [section.id, *section.wrappers])),
)
def test_every_form_of_a_factory_is_called(section: EnvSection) -> None:
    assert probe(section).action.choices
