"""reports/index.html in a real browser."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from fabricate import make_run, make_sweep
from omegaconf import OmegaConf

from fedshvr.reporting.build import report
from fedshvr.reporting.collect import Collection
from fedshvr.reporting.items import Item, Surface
from fedshvr.reporting.page import numbers, page
from fedshvr.reporting.sweeps import CONFIGS

Made = tuple[Path, list[Item]]
SIZES = [(1280, 800, False, False), (1280, 800, True, False), (390, 844, False, True), (390, 844, True, True)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("page")
    for name in ("fig2a", "fig4", "theorem1"):
        make_sweep(folder / "logs", name, seeds=2)
    make_run(folder / "logs" / "</script>", {"experiment": "digits"}, seed=0)
    cfg = OmegaConf.load(CONFIGS / "report.yaml")
    options = {"logs": str(folder / "logs"), "out": str(folder / "out"), "results": str(folder), "wandb": False}
    return folder / "out" / "index.html", report(OmegaConf.merge(cfg, options))  # type: ignore[arg-type]


def test_the_page_names_no_other_host(made: Made) -> None:
    path, items = made
    text = path.read_text()
    assert "https://" not in text
    assert text.count("http://") == text.count("http://www.w3.org/2000/svg") == 1
    for item in items:
        assert f'id="{item.key}"' in text
    assert "python src/train.py -m sweep=fig6a scale=laptop" in text  # how to fill what is missing


def test_a_long_curve_is_thinned_but_keeps_its_end() -> None:
    values = numbers([float(v) for v in range(1, 1001)])
    assert len(values) == 500
    assert values[-1] == 1000


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not CHROMIUM:
        pytest.skip("needs Chromium (apt-get install chromium)")
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.mark.slow
def test_the_page_draws_zooms_and_toggles_without_error_or_network(made: Made, browser: Browser) -> None:
    path, _ = made
    browser.events.clear()
    browser.look(1280, 800)
    browser.open(path)
    figures = browser.run("document.querySelectorAll('figure[data-panel]').length")
    # fig2a, fig4, theorem1; fig2b has fig4's Fed-SHVR, fig3a has fig2a's runs (12,000 samples at laptop scale); digits
    assert figures == 1 + 2 + 2 + 1 + 1 + 1
    drawn = "[...document.querySelectorAll('figure[data-panel]')].filter(f => f.querySelector('.line')).length"
    assert browser.run(drawn) == figures

    lines = "[...document.querySelectorAll('#fig2a .line')].length"
    button = "document.querySelector('#fig2a .legend button')"
    assert browser.run(lines) == 4
    browser.run(f"{button}.click()")
    assert browser.run(lines) == 3
    assert browser.run(f"{button}.getAttribute('aria-pressed')") == "false"
    browser.run(f"{button}.click()")
    assert browser.run(lines) == 4

    browser.run("document.querySelector('#fig2a').scrollIntoView()")
    box = browser.run("(({x, y, width, height}) => [x, y, width, height])"
                      "(document.querySelector('#fig2a figure > svg').getBoundingClientRect())")  # fmt: skip
    x, y, width, height = box
    browser.mouse("mouseMoved", x + width / 2, y + height / 2)
    tip = browser.run("document.querySelector('#fig2a .tip').innerText")
    assert "Fed-SHVR" in tip
    assert "seeds 0: " in tip
    ticks = "[...document.querySelectorAll('#fig2a figure > svg text')].map(t => t.textContent).join()"
    before = browser.run(ticks)
    browser.mouse("mousePressed", x + width * 0.3, y + height / 2, pressed=True)
    browser.mouse("mouseMoved", x + width * 0.5, y + height / 2, pressed=True)
    browser.mouse("mouseReleased", x + width * 0.5, y + height / 2)
    assert browser.run(ticks) != before
    browser.run("[...document.querySelectorAll('#fig2a .legend button')].at(-1).click()")
    assert browser.run(ticks) == before
    assert browser.troubles() == []


@pytest.mark.slow
def test_the_page_fits_laptop_and_phone_in_light_and_dark(made: Made, tmp_path: Path, browser: Browser) -> None:
    path, _ = made
    shots = Path(os.environ.get("SCREENSHOTS", tmp_path))  # SCREENSHOTS=folder keeps them to look at
    backgrounds = []
    for width, height, dark, mobile in SIZES:
        browser.events.clear()
        browser.look(width, height, dark, mobile)
        browser.open(path)
        assert browser.run("document.documentElement.scrollWidth") <= width
        backgrounds.append(browser.run("getComputedStyle(document.body).backgroundColor"))
        browser.screenshot(shots / f"page_{width}_{'dark' if dark else 'light'}.png")
        assert browser.troubles() == []
    assert backgrounds[0] == backgrounds[2] != backgrounds[1] == backgrounds[3]


@pytest.mark.slow
def test_landscapes_are_drawn(made: Made, tmp_path: Path, browser: Browser) -> None:
    surface = Surface("α2 = 0", [-1.0, 0.0, 1.0], [[2.0, 1.0, 2.0]] * 3)
    item = replace(next(item for item in made[1] if item.key == "fig4"), panels=[], surfaces=[surface, surface])
    path = tmp_path / "index.html"
    path.write_text(page([item], Collection(), "logs", tmp_path))
    browser.events.clear()
    browser.open(path)
    assert browser.run("document.querySelectorAll('figure[data-surface] rect').length") == 18
    assert browser.troubles() == []
