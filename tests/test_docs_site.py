"""The site of docs/ builds without a broken link, shows every page, and its generated pages are up to date."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from generate import commands
from tests.support.running import ROOT
from tests.support.waiting import WAIT_S
from zmqrl.algorithms.base import Algorithm
from zmqrl.plugins import modules

README_LINES = 200


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    argv = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "First run" in (tmp_path / "site" / "index.html").read_text()


def test_the_navigation_has_every_page() -> None:
    named = set(re.findall(r'"([\w/-]+\.md)"', (ROOT / "zensical.toml").read_text()))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert named == {page for page in pages if not page.startswith("decisions/")}


def test_the_index_of_decisions_has_the_title_of_each_record_once() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^- \[(\d{4})\]\((.*)\) (.*)$", (folder / "README.md").read_text(), re.MULTILINE)
    records = sorted(page.name for page in folder.glob("[0-9]*.md"))
    assert sorted(name for _, name, _ in listed) == records
    for number, name, title in listed:
        assert (folder / name).read_text().splitlines()[0] == f"# {number} {title}"


@pytest.mark.parametrize("kind", modules("zmqrl.algorithms", Algorithm))
def test_the_page_of_an_algorithm_links_to_its_fields(kind: str) -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "docs" / "configuration.md").read_text(), re.MULTILINE)
    assert f"algorithm, kind: {kind}" in headings
    _, _, section = (ROOT / "docs" / "algorithms" / f"{kind}.md").read_text().partition("\n## Configuration\n")
    assert f"](../configuration.md#algorithm-kind-{kind})" in section


def test_the_page_of_commands_is_that_of_the_commands() -> None:
    written = commands.PATH.read_text()
    assert written == commands.text(), "run `python -m generate.commands`"


def test_the_readme_is_short_and_its_links_lead_to_files() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < README_LINES
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        assert link.startswith("http") or (ROOT / link).exists(), link


def test_no_link_leads_out_of_the_site() -> None:
    """The site has the files below docs/ alone: a link to another one is dead there."""
    docs = ROOT / "docs"
    found = [
        f"{page.relative_to(docs)}: {target}"
        for page in docs.rglob("*.md")
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
        if "://" not in target and not (page.parent / target).resolve().is_relative_to(docs)
    ]
    assert found == []
