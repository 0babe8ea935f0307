"""The site of docs/ builds without a broken link, shows every page, and its generated pages are up to date."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from generate import commands
from tests.support.running import ROOT
from tests.support.waiting import WAIT_S
from zmqrl.algorithms.base import Algorithm
from zmqrl.plugins import modules

README_LINES = 200
README_BYTES = 12_000
CHANGELOG_BYTES = 20_000


class Page(HTMLParser):
    """Targets of links and names of anchors of a page of the site."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value is not None}
        self.targets |= {found[name] for name in ("href", "src") if name in found}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    argv = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.mark.whole
def test_every_link_of_the_built_site_answers(site: Path) -> None:
    texts = {path: path.read_text() for path in site.rglob("*.html") if path.name != "404.html"}
    pages = {path: Page(text) for path, text in texts.items()}
    assert "First run" in texts[site / "index.html"]
    assert dead_links(pages) == [] and len(pages) > 100


def dead_links(pages: Mapping[Path, Page]) -> list[str]:
    found = []
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            file = file / "index.html" if file.is_dir() else file
            is_there = file.exists() and (not parts.fragment or unquote(parts.fragment) in pages[file].anchors)
            found += [] if parts.netloc or parts.scheme or is_there else [f"{path}: {target}"]
    return found


def test_a_dead_link_and_a_dead_anchor_are_found(tmp_path: Path) -> None:
    path = tmp_path / "index.html"
    path.write_text('<a href="#there" id="there"></a><a href="#not"></a><a href="no/"></a><a href="https://a.org"></a>')
    assert sorted(dead_links({path: Page(path.read_text())})) == [f"{path}: #not", f"{path}: no/"]


def test_long_lines_of_code_wrap(site: Path) -> None:
    styles = [target for target in Page((site / "index.html").read_text()).targets if target.endswith("wrap.css")]
    assert ["white-space: pre-wrap" in (site / target).read_text() for target in styles] == [True]


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
    assert len(text.splitlines()) < README_LINES and len(text.encode()) <= README_BYTES
    assert links_without_a_file(text) == []


def test_the_changelog_is_short_and_its_links_lead_to_files() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert len(text.encode()) <= CHANGELOG_BYTES, "move the section of the oldest version to a page of docs/"
    assert links_without_a_file(text) == []


def links_without_a_file(text: str) -> list[str]:
    """Links of a text in the root of the checkout that lead to no file there."""
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    return [link for link in links if not link.startswith("http") and not (ROOT / link).exists()]


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
