"""The page as a person meets it: opened from disk in a real browser, read by pointer and keys, followed live."""

import contextlib
import sqlite3
import threading
from pathlib import Path

import pytest
from chromium import browsing, needs_chromium
from report_results import ALERT, demo, more, saved, snapshots, swept

from normscope.report.page import page
from normscope.report.page_file import write_report
from normscope.report.result_files import sections_of
from normscope.report.sections.monitor_runs import Course, monitor_section
from normscope.report.serving import HOST, Live, server

ROOT = Path(__file__).parent.parent.parent
pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.xdist_group("browser")]

# The place of a panel's point (or cell) in the window, and what the tip says there.
_PLACE = (
    "const s = document.querySelectorAll('.panel svg')[arguments[0]]; s.scrollIntoView({block: 'center'});"
    "const b = s.getBoundingClientRect(); return [b.left + arguments[1] * b.width, b.top + arguments[2] * b.height]"
)
_TIP = "const t = document.getElementById('tip'); return t.hidden ? '' : t.textContent"

_WORDS = "return [...document.querySelectorAll('.panel svg')[0].querySelectorAll('text')].map(t => t.textContent)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browsing(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """One page of each kind that must be seen, by name."""
    folder = tmp_path_factory.mktemp("pages")
    snapshots(folder / "a" / "monitor.jsonl")
    snapshots(folder / "b" / "monitor.jsonl", first=3)
    demo(folder / "demo")
    swept(folder / "sweep")
    runs = {
        "monitor": [folder / "a", folder / "b"],
        "demo": [folder / "demo"],
        "phase": [folder / "sweep"],
        "saved": saved(folder),
        "more": more(folder),
        "claims": [ROOT / "results/reproduce"],
    }
    return {name: write_report(sections_of(paths), folder / f"{name}.html") for name, paths in runs.items()}


def hover(browser, panel, x, y):
    browser.pointer(("move", *browser.run(_PLACE, panel, x, y)))
    return browser.run(_TIP)


@pytest.mark.parametrize("name", ["monitor", "demo", "phase", "saved", "more", "claims"])
@pytest.mark.parametrize("width", [1400, 390])
def test_every_panel_draws_and_gives_its_numbers_without_errors_or_requests(browser, pages, name, width):
    browser.open(pages[name].as_uri(), width=width)
    panels = browser.run("return document.querySelectorAll('.panel svg').length")
    assert panels >= 1
    assert browser.run("return document.documentElement.dataset.drawn") == str(
        browser.run("return document.querySelectorAll('figure.chart').length")
    )
    for panel in range(panels):
        said = next((text for x in (0.5, 0.3, 0.7) for y in (0.5, 0.3) if (text := hover(browser, panel, x, y))), "")
        assert any(digit in said for digit in "0123456789"), f"panel {panel} of {name} says {said!r}"
    assert browser.run("return document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    assert browser.errors() == []
    assert [one for one in browser.requests() if one != pages[name].as_uri()] == []


def test_a_tip_has_the_exact_numbers_of_the_chart(browser, pages):
    browser.open(pages["monitor"].as_uri())
    said = hover(browser, 0, 0.15, 0.5)
    first = browser.run(
        "const p = JSON.parse(document.getElementById('charts').textContent)[0].panels[0];"
        "return [p.lines[0].y[0], p.bands[0].low[0], p.bands[0].high[0]]"
    )
    assert said.startswith("step 0")
    for value in first:
        assert f"{value:.9g}"[:8] in said
    browser.open(pages["phase"].as_uri())
    said = hover(browser, 0, 0.1, 0.3)
    assert said.startswith("learning rate 0.01, gamma 1")
    loss = browser.run(
        "return JSON.parse(document.getElementById('charts').textContent)[0].panels[0].heat.values[1][0]"
    )
    assert f"test loss, mean over seeds: {loss:.7g}" in said
    assert "seed 0: test loss" in said
    assert "diverged at step" in hover(browser, 0, 0.8, 0.3)


def test_the_legend_hides_a_drag_zooms_and_keys_read(browser, pages):
    browser.open(pages["monitor"].as_uri())
    count = "return document.querySelectorAll('.panel svg')[0].querySelectorAll('g[clip-path] > *').length"
    before = browser.run(count)
    browser.run("document.querySelector('.legend button').click()")
    assert browser.run(count) == before - 1
    assert browser.run("return document.querySelector('.legend button').getAttribute('aria-pressed')") == "false"
    assert " to " not in hover(browser, 0, 0.5, 0.5), "a hidden band still speaks"
    whole = browser.run(_WORDS)
    (x0, y0), (x1, y1) = (browser.run(_PLACE, 0, *place) for place in ((0.4, 0.3), (0.6, 0.6)))
    browser.pointer(("move", x0, y0), ("down", x0, y0), ("move", x1, y1), ("up", x1, y1))
    assert browser.run(_WORDS) != whole
    browser.run("document.querySelector('.tools button').click()")
    assert browser.run(_WORDS) == whole
    browser.pointer(("move", 1, 1))
    browser.run("document.querySelectorAll('.panel svg')[0].focus()")
    browser.key("ArrowRight")
    assert browser.run(_TIP).startswith("step 0")
    browser.key("ArrowRight")
    assert browser.run(_TIP).startswith("step 1")
    browser.key("Escape")
    assert browser.run(_TIP) == ""
    assert browser.errors() == []


def test_tables_sort_by_number_and_figures_have_a_table(browser, pages):
    browser.open(pages["demo"].as_uri())
    column = "return [...document.querySelector('table.sortable').tBodies[0].rows].map(r => +r.cells[3].dataset.value)"
    click = "document.querySelector('table.sortable').tHead.rows[0].cells[3].querySelector('button').click()"
    for way in (False, True):
        browser.run(click)
        found = browser.run(column)
        assert found == sorted(found, reverse=way)
        state = browser.run("return document.querySelector('table.sortable th[aria-sort]').getAttribute('aria-sort')")
        assert state == ("descending" if way else "ascending")
    browser.run("document.querySelector('figure details').open = true")
    assert browser.wait("return document.querySelectorAll('figure details table tbody tr').length") == 5
    labels = browser.run("return [...document.querySelectorAll('.panel svg')].map(s => s.getAttribute('aria-label'))")
    assert all("Arrow keys read the values" in label for label in labels)


def test_light_and_dark_follow_the_system_and_the_button(browser, pages, tmp_path):
    shade = "return getComputedStyle(document.body).backgroundColor"
    seen = []
    for dark in (False, True):
        browser.open(pages["phase"].as_uri())
        browser.dark(dark)
        seen.append(browser.run(shade))
        browser.run("document.getElementById('theme').click()")
        seen.append(browser.run(shade))
    browser.dark(False)
    light, switched, dark, back = seen
    assert (light, dark) == (back, switched)
    assert light != dark


def test_a_label_that_is_a_script_stays_text(browser, tmp_path):
    label = f"</script>{ALERT}<img src=x onerror=alert(1)>"
    columns = {"step": [0.0, 1.0], "critical_step": [2.0, 3.0], "loss": [1.0, 1.0]}
    layers = {label: {"shift": [1.0, 2.0], "shift_cosine": [0.5, 1.0], "output_grad_norm": [1.0, 1.0]}, "b": {}}
    courses = [Course(label, columns, layers, settings={label: label}), Course("b", columns, {})]
    path = tmp_path / f"{ALERT.replace('/', '')}.html"
    path.write_text(page([monitor_section(label, courses)], title=label, command=label))
    browser.open(path.as_uri())
    browser.run("document.querySelectorAll('figure details').forEach(d => { d.open = true })")
    browser.wait("return document.querySelectorAll('figure details table').length")
    for panel in range(browser.run("return document.querySelectorAll('.panel svg').length")):
        hover(browser, panel, 0.5, 0.5)
    assert browser.run("return [document.title, document.querySelector('h1').textContent]") == [label, label]
    assert browser.run("return document.querySelector('.panel h4').textContent") == label
    assert browser.run("return [document.scripts.length, document.images.length]") == [2, 0]
    assert browser.errors() == []


@contextlib.contextmanager
def followed(path):
    """The address of a live page of what lies there."""
    with server(Live([path], "normscope report --serve"), 0) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://{HOST}:{running.server_port}/"
        finally:
            running.shutdown()
            thread.join()


def test_a_row_that_lands_appears_within_five_seconds(browser, tmp_path):
    path = tmp_path / "run.jsonl"
    snapshots(path, steps=2)
    with followed(path) as address:
        browser.open(address)
        browser.run("document.querySelector('.legend button').click()")
        snapshots(path, steps=1, first=4321)
        shown = "JSON.parse(document.getElementById('charts').textContent)[0].panels[0].lines[0].x"
        browser.wait(f"return {shown}.includes(4321)")
        assert "4000" in browser.run(_WORDS)
        pressed = browser.run("return document.querySelector('.legend button').getAttribute('aria-pressed')")
        assert pressed == "false", "what the reader chose is lost"
    browser.wait("return document.getElementById('live').classList.contains('lost')")


def test_a_sweep_that_goes_on_fills_the_diagram_within_five_seconds(browser, tmp_path):
    """Stopped with half of its cells, followed, and gone on with by the same call."""
    swept(tmp_path / "runs")
    with contextlib.closing(sqlite3.connect(tmp_path / "runs/sweep.sqlite")) as db, db:
        cells = [row[0] for row in db.execute("select rowid from rows")]
        db.executemany("delete from rows where rowid = ?", [(cell,) for cell in cells[::2]])
    left = "return /\\d+ of \\d+ trainings are done/.exec(document.body.textContent)"
    with followed(tmp_path / "runs") as address:
        browser.open(address)
        assert browser.run(f"{left}[0]") == "3 of 6 trainings are done"
        swept(tmp_path / "runs")
        browser.wait(f"{left} === null")
    assert browser.errors() == []
