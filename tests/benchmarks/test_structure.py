"""The structure of the package: what its modules may not be, and that each figure sees what it counts."""

from __future__ import annotations

from pathlib import Path

from benchmarks.structure import Structure, measure

ROOT = Path(__file__).parents[2]
READERS = {
    "zmqrl.agent.host_agent",
    "zmqrl.config.yaml_source",
    "zmqrl.data_stores.objects",
    "zmqrl.envs.explain",
    "zmqrl.envs.returned",
    "zmqrl.learning.package_cache",
    "zmqrl.ssh.auth",
    "zmqrl.ssh.mux",
    "zmqrl.ssh.paramiko_client",
    "zmqrl.testing.data_store",
}
"""Texts of other libraries and of stores of users, which have no fields; and one that is not logged twice."""
LARGE_CLASSES = {
    "zmqrl.agent.host_processes.HostProcesses",
    "zmqrl.data_stores.base.DataStore",
    "zmqrl.data_stores.directory.DirectoryStore",
    "zmqrl.data_stores.object.ObjectStore",
    "zmqrl.shared_memory.arena.Arena",
}
"""None of the launcher. The set only becomes smaller."""
MOST_TEXT_COMPARISONS = 193
"""`tests.support.raising` compares the fields of an error. The bound only falls."""
MOST_LONG_FILES, MOST_LONG_FUNCTIONS, MOST_REPEATED_CLASSES = 5, 4, 6
"""The bounds only fall."""

LAYERS = '[[tool.importlinter.contracts]]\ntype = "layers"\nlayers = ["e : (g)", "c", "a"]\n'


def planted(root: Path, **files: str) -> Structure:
    """A package with these modules; `a__b` is `zmqrl/a/b.py`. One has a function. Layer `a` is below `c`, below `e`."""
    (root / "pyproject.toml").write_text(LAYERS)
    for name, text in {"a__f": "def f() -> None: ...\n", **files}.items():
        path = root / "zmqrl" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return measure(root)


def test_the_package() -> None:
    found = measure(ROOT)
    assert found.cycles == []
    assert found.file_cycles == []
    assert found.imports_up == []
    assert set(found.large_classes) <= LARGE_CLASSES
    assert found.fan_out[1] <= 20, found.fan_out
    assert found.largest_package[1] <= 22, found.largest_package
    assert found.mode_comparisons == []
    assert len(found.small_with_one_importer) <= 3, found.small_with_one_importer
    assert found.sentences_with_a_key == []
    assert set(found.texts_read) <= READERS
    assert len(found.text_comparisons) <= MOST_TEXT_COMPARISONS, found.text_comparisons
    assert len(found.long_files) <= MOST_LONG_FILES, found.long_files
    assert len(found.long_functions) <= MOST_LONG_FUNCTIONS, found.long_functions
    assert len(found.repeated_classes) <= MOST_REPEATED_CLASSES, found.repeated_classes


def test_a_cycle_of_packages_is_found_also_within_functions(tmp_path: Path) -> None:
    inner = "def f() -> None:\n    from zmqrl.a import b\n"
    found = planted(tmp_path, a__b="from zmqrl.c.d import x\n", c__d=inner, e__f="from zmqrl.a import b\n")
    assert found.cycles == [["a", "c"]]


def test_a_cycle_of_modules_is_found_also_for_type_checkers_and_without_imports_within_functions(
    tmp_path: Path,
) -> None:
    typed = "if TYPE_CHECKING:\n    from zmqrl.a import c\n"
    lazy = "def f() -> None:\n    from zmqrl.e import h\n"
    found = planted(tmp_path, a__b=typed, a__c="import zmqrl.a.b\n", e__g=lazy, e__h="from zmqrl.e.g import f\n")
    assert found.file_cycles == [["zmqrl.a.b", "zmqrl.a.c"]]


def test_an_import_of_a_higher_layer_is_found_also_for_type_checkers(tmp_path: Path) -> None:
    typed = "if TYPE_CHECKING:\n    from zmqrl.e.h import x\n"
    lazy = "def f() -> None:\n    from zmqrl.g import h\n"
    found = planted(tmp_path, a__b=typed, c__d=lazy, e__h="import zmqrl.a.b\nfrom zmqrl.g import h\n", g__h="")
    assert found.imports_up == ["zmqrl.a.b -> zmqrl.e.h", "zmqrl.c.d -> zmqrl.g.h"]


def test_the_module_that_imports_most_others_is_found(tmp_path: Path) -> None:
    (tmp_path / "zmqrl" / "a").mkdir(parents=True)
    (tmp_path / "zmqrl" / "a" / "__init__.py").write_text("")
    many = "from zmqrl.a import b, f\nfrom zmqrl.a.b import x\nif TYPE_CHECKING:\n    import zmqrl.c.d\n"
    found = planted(tmp_path, a__b="x = 1\n", c__d="y = 1\n", e__f=many)
    assert found.fan_out == ("zmqrl.e.f", 3)


def test_a_comparison_with_the_name_of_a_mode_is_found(tmp_path: Path) -> None:
    found = planted(tmp_path, a__b='x = "sync"\nif x != "async":\n    pass\nif x in ("single", 1):\n    pass\n')
    assert found.mode_comparisons == ["zmqrl.a.b:2", "zmqrl.a.b:4"]


def test_a_small_file_with_one_importer_is_found(tmp_path: Path) -> None:
    long, imports = "x = 1\n" * 50, "from zmqrl.a import b\nfrom zmqrl.a.c import x\n"
    found = planted(tmp_path, a__b="y = 1\n", a__c=long, a__d="z = 1\n", e__f=imports + long, e__g=long)
    assert found.small_with_one_importer == ["zmqrl.a.b"]
    assert (found.files, found.largest_file) == (6, ("zmqrl.e.f", 52))


def test_functions_are_measured(tmp_path: Path) -> None:
    found = planted(
        tmp_path, a__b="def f() -> None:\n    x = 1\n    del x\n\n\nclass A:\n    def g(self) -> None: ...\n"
    )
    assert (found.functions, found.function_max) == (3, ("zmqrl.a.b:1 f", 3))


def test_long_files_and_functions_and_the_largest_folder_are_found(tmp_path: Path) -> None:
    long, short = "def g() -> None:\n" + "    x = 1\n" * 40, "def h() -> None:\n" + "    x = 1\n" * 39
    found = planted(tmp_path, a__b=long + short, a__c="x = 1\n" * 301, a__d="x = 1\n" * 300, a__e__b="x = 1\n")
    assert (found.long_files, found.long_functions) == (["zmqrl.a.c"], ["zmqrl.a.b:1 g"])
    assert found.largest_package == ("zmqrl.a", 4)


def test_a_class_name_that_two_modules_define_is_found(tmp_path: Path) -> None:
    inner = "class B:\n    class A: ...\n"
    assert planted(tmp_path, a__b="class A: ...\n", a__c="class A: ...\n", a__d=inner).repeated_classes == ["A"]


def test_a_class_with_many_lines_or_methods_is_found(tmp_path: Path) -> None:
    long = "class A:\n" + "    x = 1\n" * 250
    many = "class B:\n" + "".join(f"    def f{i}(self) -> None: ...\n" for i in range(26))
    found = planted(tmp_path, a__b=long, a__c=many, a__d="class C:\n" + "    x = 1\n" * 249)
    assert found.large_classes == ["zmqrl.a.b.A", "zmqrl.a.c.B"]


def test_a_comparison_with_the_text_of_an_error_is_found(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(
        "with pytest.raises(ValueError, match='a'):\n    f()\n"
        "assert 'a' in str(caught.value)\n"
        "assert ended.code == 2 and 'a' in ended.err\n"
        "assert ended.err.startswith('a')\n"
        "with raises(ConfigError, key=('a',)):\n    f()\n"
        "assert ended.err == '' and process.stderr is not None and str(number) == 'a'\n"
        "assert ended.err.count('a') == 1 and 'a' not in ended.err\n"
    )
    found = planted(tmp_path).text_comparisons
    assert found == ["tests/test_a.py:1", "tests/test_a.py:3", "tests/test_a.py:4", "tests/test_a.py:5"]


def test_an_error_that_is_a_sentence_with_a_key_and_a_text_that_is_read_are_found(tmp_path: Path) -> None:
    found = planted(
        tmp_path,
        a__b="raise ConfigError(f'run.seed: {x}: bad')\nraise ConfigError('bad', key=('run', 'seed'))\n",
        a__c="raise ConfigError(f'hosts.{name}.ssh: bad')\nraise ConfigError(f'{path} is missing: bad')\n",
        a__d="if 'a' in str(error):\n    pass\n",
        a__e="x = str(error).removeprefix('a')\n",
        a__g="x = re.sub('a', 'b', str(error))\n",
        a__h="x = ConfigError(str(error), key=())\ny = str(value) == 'a'\n",
    )
    assert found.sentences_with_a_key == ["zmqrl.a.b:1", "zmqrl.a.c:1"]
    assert found.texts_read == ["zmqrl.a.d", "zmqrl.a.e", "zmqrl.a.g"]


def test_a_text_that_is_read_is_found_under_other_names(tmp_path: Path) -> None:
    bound, passed = "try:\n    f()\nexcept OSError as e:\n    ", "def f(inner: ValueError | None) -> None:\n    "
    found = planted(
        tmp_path,
        a__b=f"{bound}if 'a' in str(e):\n        pass\n",
        a__c=f"{bound}text = str(e).strip()\n    x = text.lower().startswith('a')\n",
        a__d=f"{passed}x = PATTERN.search(inner.args[0])\n",
        a__e=f"{passed}x = f'{{inner}}' == 'a'\n",
        a__g=f"{bound}x = str(e).strip() != ''\n    y = str(e).splitlines()\n",
        a__h=f"{passed}x = inner is None or inner.args\n    text = str(other)\n    y = 'a' in text\n",
    )
    assert found.texts_read == ["zmqrl.a.b", "zmqrl.a.c", "zmqrl.a.d", "zmqrl.a.e"]
