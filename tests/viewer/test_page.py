"""The page in a real browser: Debian's Chromium, headless."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import CHROMIUM, MISSING, Browser
from tests.viewer.stored import rows, store, stored_sweep
from zmqrl.sweeps.folder import RECORDS
from zmqrl.viewer.server import ViewServer

pytestmark = [pytest.mark.whole, pytest.mark.skipif(CHROMIUM is None, reason=MISSING)]

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
REASON = "the sensor gave no value " * 9 + "\n  log: a"
GIF = b"GIF89a\x01\0\x01\0\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;"
"""A picture of one pixel."""
LINES = "[...document.querySelectorAll('.u-legend .u-series:not(.bound)')].length - 1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    runs = tmp_path / "runs"
    for seed in (1, 2):
        store(runs / "lr" / f"seed-{seed}", range(0, 50 * seed, seed))
    store(runs / "live", live=True)
    hostile = store(runs / HOSTILE, gamma=0.5, status="failed", error=f"{HOSTILE} failed: {REASON}")
    (hostile / "videos").mkdir()
    (hostile / "videos" / "000000100-v1.gif").write_bytes(GIF)
    return runs


@pytest.fixture
def server(folder: Path) -> Iterator[ViewServer]:
    with ViewServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def browser(tmp_path: Path, server: ViewServer) -> Iterator[Browser]:
    """It shows the list of all runs."""
    browser = Browser(tmp_path / "profile")
    try:
        browser.size(1280, 900, "light")
        browser.open(server.url)
        browser.until("document.querySelectorAll('#rows tr').length === 4")
        yield browser
    finally:
        browser.close()


def choose(browser: Browser, *names: str) -> None:
    for name in names:
        browser.value(f"document.querySelector('[data-choose$=\"{name}\"]').click()")


def test_filters_curves_details_and_hostile_names(browser: Browser, folder: Path) -> None:
    assert browser.value("location.search") == "", "the token is not kept in the address"
    browser.value("text.value = 'seed'; text.dispatchEvent(new Event('input'))")
    assert browser.value("at('count').value") == "2 of 4"
    choose(browser, "seed-1", "seed-2")
    browser.until(f"{LINES} === 2")
    browser.value("band.click()")
    browser.until(f"{LINES} === 1")
    browser.value("text.value = ''; text.dispatchEvent(new Event('input')); band.click()")
    choose(browser, "live")
    browser.until(f"{LINES} === 3")
    right = "chart.scales.x.max"
    before = browser.value(right)
    with (folder / "live" / "metrics.jsonl").open("a") as file:
        file.write(rows([1.0], 500))
    browser.until(f"{right} > {before}")
    browser.value("clear.click()")
    choose(browser, "seed-1")
    browser.value("document.querySelector('[data-choose*=onerror]').click()")
    browser.until("/^algorithm.gamma0.[59]0.[59]$/.test(different.textContent) && !differences.hidden")
    browser.value("document.querySelector('[data-open*=onerror]').click()")
    browser.until("document.getElementById('log-text').textContent === 'first\\nlast\\n'")
    browser.until("document.querySelector('#video-frame img')?.naturalWidth === 1")
    assert HOSTILE in browser.value("problems.textContent") and REASON in browser.value("problems.innerText")
    assert browser.value("document.querySelector('#rows .reason').getClientRects()[0].height") < 30, "one line"
    assert REASON.splitlines()[0] in browser.value("document.querySelector('#rows .reason').title")
    assert browser.value("document.querySelectorAll('#list img, #details img, #chart img').length") == 1
    assert browser.value("document.title").startswith("zmqrl: ") and browser.value("error.hidden")


@pytest.mark.long
def test_the_keyboard_reaches_a_run_and_its_curve(browser: Browser) -> None:
    for _ in range(20):
        browser.key("Tab")
        if browser.value("document.activeElement.dataset.choose !== undefined"):
            break
    browser.key(" ")
    browser.until(f"{LINES} === 1")
    browser.key("Tab")
    browser.value("document.activeElement.click()")
    browser.until("!details.hidden && config.children.length === 3")


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_horizontal_scrolling(browser: Browser, scheme: str) -> None:
    browser.size(400, 800, scheme)
    choose(browser, "seed-1", "seed-2")
    browser.value("document.querySelector('[data-choose*=onerror]').click()")
    browser.until(f"{LINES} === 3")
    assert browser.value("document.documentElement.scrollWidth") <= 400
    assert browser.value("document.querySelector('#rows .reason').clientWidth") < 200, "the state is beside the name"
    colour = browser.value("getComputedStyle(document.body).backgroundColor")
    assert (colour == "rgb(255, 255, 255)") == (scheme == "light")


@pytest.mark.long
def test_a_trial_of_a_sweep_leads_to_its_runs(browser: Browser, folder: Path) -> None:
    sweep = stored_sweep(folder)
    (sweep.path / RECORDS / "trial-2").write_bytes(json.dumps({"algorithm.learning_rate": HOSTILE}).encode())
    browser.until("document.querySelectorAll('#sweeps polyline').length === 2")
    assert HOSTILE in browser.value("sweeps.textContent") and browser.value("!document.querySelector('#sweeps img')")
    browser.value("document.querySelector('#sweeps [data-filter]').click()")
    assert browser.value("[...document.querySelectorAll('#rows .name')].map((it) => it.textContent)") == [
        "s/trial-1/seed-5"
    ]


@pytest.mark.long
def test_a_wrong_token_shows_nothing(browser: Browser, server: ViewServer, tmp_path: Path) -> None:
    other = Browser(tmp_path / "other")
    try:
        other.open(server.url + "x")
        assert "token of this page" in other.value("document.body.textContent")
    finally:
        other.close()
