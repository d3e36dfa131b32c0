"""The page in a real browser: what it shows is what the results say, to everybody and on any screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise, permutations
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser

from lockstep.report.beside import beside_published
from lockstep.report.difference_table import COSTS, SCORES
from lockstep.report.drawing import MOST_ROWS
from lockstep.report.figures import figures
from lockstep.report.figures.style import Look
from lockstep.report.findings import difference_rows, verdict
from lockstep.report.page import SECTIONS, render_page, unbroken, visible
from lockstep.report.results import AuditResult, Measurements, Results
from tests.report.browser import Opened, opened, started
from tests.report.made_up import CONTESTANTS, HOSTILE, made_up_study, masked_study, unfinished_study

HOSTILE_NAMES = (
    "</script><script>window.taken = 1</script><!--",
    '"><img src=x onerror="window.taken = 1">',
    "{{ 7 * 7 }} '; \\u003c",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with started() as found:
        yield found


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


def written(folder: Path, name: str, study: tuple[Results, Measurements]) -> Path:
    """Rendered once a session."""
    path = folder / f"{name}.html"
    if not path.exists():
        path.write_text(render_page(*study), encoding="utf-8")
    return path


@pytest.fixture
def table(browser: Browser, folder: Path) -> Iterator[Opened]:
    """The same, for those who look at no figure."""
    with opened(browser, written(folder, "whole", made_up_study()), drawn=False) as found:
        yield found


@pytest.fixture
def whole(browser: Browser, folder: Path) -> Iterator[Opened]:
    with opened(browser, written(folder, "whole", made_up_study())) as found:
        yield found


def failed_audit() -> tuple[Results, Measurements]:
    results, measurements = made_up_study()
    audit = AuditResult(passed=False, findings=("batch_tokens: 8192 against 4096",), notes=(), table=())
    return results.model_copy(update={"audit": audit}), measurements


def bare() -> tuple[Results, Measurements]:
    """Nobody has done anything yet."""
    results, _ = unfinished_study()
    *_, waiting = results.contestants
    contestants = tuple(waiting.model_copy(update={"name": name, "runs": ()}) for name in CONTESTANTS)
    return results.model_copy(update={"contestants": contestants, "sweeps": ()}), Measurements(contestants={})


STUDIES: dict[str, Callable[[], tuple[Results, Measurements]]] = {
    "whole": made_up_study,
    "unfinished": unfinished_study,
    "masked": masked_study,
    "failed audit": failed_audit,
    "bare": bare,
    "hostile": lambda: made_up_study(HOSTILE_NAMES),
    "one": lambda: made_up_study(("lstm",), seeds=1),
}


@pytest.fixture(scope="session")
def seen(browser: Browser, folder: Path) -> Iterator[Callable[[str], Opened]]:
    """Pages by study, each opened once: for those who only look."""
    pages: dict[str, Opened] = {}
    with ExitStack() as stack:

        def look(study: str) -> Opened:
            if study not in pages:
                pages[study] = stack.enter_context(opened(browser, written(folder, study, STUDIES[study]())))
            return pages[study]

        yield look


# Whole.


@pytest.mark.parametrize("study", STUDIES)
def test_it_loads_without_error_and_asks_nobody_for_anything(
    study: str, seen: Callable[[str], Opened], folder: Path
) -> None:
    found = seen(study)
    assert found.problems == []
    assert found.requests == [(folder / f"{study}.html").as_uri()]
    assert found.ask("[...document.querySelectorAll('main > section')].map(one => one.id)") == list(SECTIONS)
    assert found.ask("window.taken") is None


def test_it_is_a_pure_function() -> None:
    assert render_page(*made_up_study()) == render_page(*made_up_study())


@pytest.mark.parametrize("study", ["whole", "unfinished", "failed audit", "bare"])
def test_the_verdict_is_said_in_full(study: str, seen: Callable[[str], Opened]) -> None:
    said = seen(study).page.inner_text("#verdict")
    for one in verdict(*STUDIES[study]()).sentences:
        assert unbroken(one.text) in said
    assert seen(study).page.locator("#verdict .banner").count() == (0 if study == "whole" else 1)


def test_a_failed_audit_leaves_no_verdict(seen: Callable[[str], Opened]) -> None:
    page = seen("failed audit").page
    assert "No verdict: the audit failed." in page.inner_text("#verdict .banner")
    assert page.locator("#verdict .card").count() == 0
    assert page.locator("#differences .better, #differences .worse").count() == 0
    assert "batch_tokens: 8192 against 4096" in page.inner_text("#audit")


def test_every_figure_is_drawn_once_with_its_caption_and_files(seen: Callable[[str], Opened]) -> None:
    page, drawn = seen("whole").page, figures(*made_up_study())
    shown = page.locator("figure").evaluate_all("all => all.map(one => one.dataset.figureName)")
    assert sorted(shown) == sorted(one.name for one in drawn)
    for one in drawn:
        figure = page.locator(f"figure[data-figure-name='{one.name}']")
        assert figure.locator(".plot svg").count() == 1
        assert figure.locator("figcaption").inner_text() == unbroken(one.says)
        assert figure.locator("a").count() == 3
        rows = figure.locator("tbody tr").count()
        assert rows == len(one.rows) if len(one.rows) <= MOST_ROWS else MOST_ROWS / 2 < rows <= MOST_ROWS


# Tests of trained contestants.


def test_published_numbers_stand_beside_ours(seen: Callable[[str], Opened]) -> None:
    page = seen("whole").page
    tables = beside_published(made_up_study()[0])
    assert page.locator("#recall table caption").filter(has_text="ours with 95 %").count() == len(tables) > 0
    theirs = page.locator("#recall tbody tr").filter(has_text="arXiv 2501.00663, table 2").first
    assert theirs.locator("td").all_inner_texts() == ["—", "—", "—", "99.2", "98.8", "99.0", "98.4"]
    ours = page.locator("#recall tbody tr").filter(has_text="here").first
    assert [text.split()[0] for text in ours.locator("td").all_inner_texts()] == [
        *("88.5", "88.5", "82.0", "—", "75.5", "—", "—")
    ]
    assert seen("bare").page.locator("#recall table").count() == 0
    assert "No task was asked" in seen("bare").page.inner_text("#recall")
    assert "No questions" in seen("bare").page.inner_text("#commonsense")


# Differences.


def shown_rows(found: Opened) -> dict[str, list[float | None]]:
    """Of the table that is to be seen: by contestant, the stored numbers."""
    script = """() => [...document.querySelectorAll('[data-baseline]:not([hidden]) tbody tr:not([hidden])')].map(row =>
      [
        row.dataset.contestant,
        [...row.querySelectorAll('td')].map(cell => 'value' in cell.dataset ? Number(cell.dataset.value) : null),
    ])"""
    rows: list[tuple[str, list[float | None]]] = found.ask(script)
    return dict(rows)


def heads(found: Opened) -> list[str]:
    shown: list[str] = found.page.locator("[data-baseline]:not([hidden]) thead button").all_inner_texts()
    return shown[1:]


def expected(baseline: str) -> dict[str, dict[str, float]]:
    """By contestant and head of the column, straight from the findings."""
    found: dict[str, dict[str, float]] = {}
    for row in difference_rows(*made_up_study(), baseline):
        columns = {SCORES[name]: getattr(row, name).difference for name in SCORES}
        columns |= {COSTS[name][0]: getattr(row, name).ratio for name in COSTS}
        if row.name != baseline:
            ratios = {title for title, _ in COSTS.values()}
            found[row.name] = {head: value - 1 if head in ratios else value for head, value in columns.items()}
    return found


def test_the_table_shows_the_numbers_of_the_results(table: Opened) -> None:
    for baseline in CONTESTANTS:
        table.page.select_option("#baseline", baseline)
        names, wanted, rows = heads(table), expected(baseline), shown_rows(table)
        assert rows.keys() == set(CONTESTANTS)
        assert set(rows[baseline]) == {0.0}
        for contestant, numbers in wanted.items():
            assert dict(zip(names, rows[contestant], strict=True)) == numbers


def test_another_baseline_turns_the_signs(table: Opened) -> None:
    tables = {}
    for baseline in CONTESTANTS:
        table.page.select_option("#baseline", baseline)
        tables[baseline] = shown_rows(table)
    scores = len(SCORES)
    for one, other in permutations(CONTESTANTS, 2):
        there, back = tables[one][other], tables[other][one]
        for place, (x, y) in enumerate(zip(there, back, strict=True)):
            assert x is not None
            assert y is not None
            assert x + y == pytest.approx(0) if place < scores else (1 + x) * (1 + y) == pytest.approx(1)


def test_the_text_of_a_cell_rounds_its_number(table: Opened) -> None:
    cells = table.ask("""() => [...document.querySelectorAll('[data-baseline]:not([hidden]) td[data-value]')]
        .map(cell => [Number(cell.dataset.value), cell.firstElementChild.textContent, cell.cellIndex])""")
    signed = [(value, text) for value, text, place in cells if value != 0 and place == 1]
    assert len(signed) == len(CONTESTANTS) - 1
    for value, text in signed:
        assert float(text.replace("−", "-")) == pytest.approx(value, abs=5.1e-5)


def test_columns_sort_both_ways_by_their_numbers(table: Opened) -> None:
    for place, head in enumerate(heads(table)):
        button = table.page.get_by_role("button", name=head, exact=True)
        for direction, sign in (("ascending", 1), ("descending", -1)):
            button.click()
            numbers = [sign * (row[place] or 0.0) for row in shown_rows(table).values()]
            assert all(x <= y for x, y in pairwise(numbers))
            assert button.locator("xpath=ancestor::th").get_attribute("aria-sort") == direction
    table.page.select_option("#baseline", "lstm")
    numbers = [row[-1] or 0.0 for row in shown_rows(table).values()]
    assert numbers == sorted(numbers, reverse=True)


# Choices.


def curve_ends(found: Opened) -> dict[str, float]:
    """By colour, how far to the right the lines of the training curves go."""
    script = """() => {
        const ends = {};
        for (const path of document.querySelectorAll("figure[data-figure-name=training_curves] .mark-line path")) {
            const box = path.getBBox();
            const colour = path.getAttribute('stroke');
            ends[colour] = Math.max(ends[colour] || 0, box.x + box.width);
        }
        return ends;
    }"""
    ends: dict[str, float] = found.ask(script)
    return ends


def axis_texts(found: Opened, figure: str) -> str:
    """Titles of all axes; one that goes on in a second line is one all the same."""
    script = """name => [...document.querySelectorAll(`figure[data-figure-name=${name}] .role-axis-title text`)]
        .flatMap(one => one.children.length ? [...one.children] : [one]).map(one => one.textContent).join(' ')"""
    return str(found.ask(script, figure))


def test_another_axis_is_named_and_moves_the_lines(whole: Opened) -> None:
    look = Look(made_up_study()[0])
    ours, theirs = look.tint("titans-mac"), look.tint("transformer++")
    assert "tokens trained on" in axis_texts(whole, "training_curves")
    equal = curve_ends(whole)
    assert equal[ours] == pytest.approx(equal[theirs], abs=0.5)
    whole.page.get_by_role("radio", name="training FLOPs").check()
    whole.until("document.getElementById('changes').textContent.includes('training FLOPs')")
    assert "training FLOPs" in axis_texts(whole, "training_curves")
    assert "tokens trained on" not in axis_texts(whole, "training_curves")
    moved = curve_ends(whole)
    assert moved[theirs] < moved[ours] - 50
    assert whole.problems == []


def test_costs_can_be_chosen_by_keyboard(whole: Opened) -> None:
    choice = whole.page.locator("figure[data-figure-name=pareto] select")
    before = whole.page.locator("figure[data-figure-name=pareto] .mark-symbol path").evaluate_all(
        "marks => marks.map(mark => mark.getAttribute('transform'))"
    )
    choice.focus()
    whole.page.keyboard.press("ArrowDown")
    title = choice.locator("option:checked").inner_text()
    whole.until("title => document.getElementById('changes').textContent.includes(title)", title)
    assert title in axis_texts(whole, "pareto")
    after = whole.page.locator("figure[data-figure-name=pareto] .mark-symbol path").evaluate_all(
        "marks => marks.map(mark => mark.getAttribute('transform'))"
    )
    assert len(before) == len(after)
    assert before != after


def test_a_contestant_can_be_hidden_everywhere_and_shown_again(whole: Opened) -> None:
    colour = Look(made_up_study()[0]).tint("lstm")
    marks = whole.page.locator(f"[stroke='{colour}'], [fill='{colour}']")
    rows = whole.page.locator("[data-contestant=lstm]:not([hidden])")
    own = whole.page.locator("figure[data-figure-name='model_state-4-lstm-influence']")
    counts = marks.count(), rows.count()
    assert min(counts) > 10
    box = whole.page.get_by_role("checkbox", name="lstm")
    box.uncheck()
    whole.redrawn()
    assert (marks.count(), rows.count()) == (0, 0)
    assert own.is_hidden()
    assert "lstm" not in shown_rows(whole)
    assert whole.page.inner_text("#changes") == "lstm is now hidden."
    box.check()
    whole.redrawn()
    assert (marks.count(), rows.count()) == counts
    assert own.is_visible()
    assert whole.problems == []


def test_nobody_need_be_shown(whole: Opened) -> None:
    for name in CONTESTANTS:
        whole.page.get_by_role("checkbox", name=name, exact=True).uncheck()
    whole.redrawn()
    assert shown_rows(whole) == {}
    assert whole.problems == []


# What others wrote.


def test_what_a_model_wrote_is_shown_as_it_is(table: Opened) -> None:
    wrote = table.page.locator(".sample[data-contestant=lstm] .words").all_text_contents()
    assert f"lstm wrote: {visible(HOSTILE)}" in wrote
    assert visible("\x00\x1b\n\t\x7f\x9f<") == "␀␛\n\t␡�<"


def test_a_name_is_nothing_but_a_name(browser: Browser, folder: Path) -> None:
    with opened(browser, written(folder, "hostile", made_up_study(HOSTILE_NAMES))) as found:
        boxes = found.page.locator("input[name=contestant]")
        assert boxes.evaluate_all("boxes => boxes.map(box => box.value)") == list(HOSTILE_NAMES)
        boxes.nth(1).uncheck()
        found.redrawn()
        assert shown_rows(found).keys() == {HOSTILE_NAMES[0], HOSTILE_NAMES[2]}
        assert found.ask("window.taken") is None
        assert found.problems == []


def test_no_other_script_runs_even_where_one_comes_in(table: Opened) -> None:
    table.ask("""() => {
        const script = document.createElement('script');
        script.textContent = 'window.taken = 1';
        document.body.append(script);
    }""")
    assert table.ask("window.taken") is None
    assert any("Content Security Policy" in problem for problem in table.problems)


# Everybody, on any screen.

CONTRAST = """(selector) => {
    const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => {
        const [r, g, b] = channels(colour).slice(0, 3).map(c => c / 255)
            .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (node) => {
        for (; node; node = node.parentElement) {
            const colour = getComputedStyle(node).backgroundColor;
            const parts = channels(colour);
            if (parts.length < 4 || parts[3] === 1) return colour;
        }
        return 'rgb(255, 255, 255)';
    };
    return [...document.querySelectorAll(selector)].filter(one => one.textContent.trim()).map(one => {
        const style = getComputedStyle(one);
        const ink = one.closest('svg') ? style.fill : style.color;
        const [a, b] = [light(ink), light(behind(one))].sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05);
    });
}"""


PLAIN_SVG = "svg :not([class*=cell_numbers]) > text"
"""Numbers in coloured cells stand on those, not on the page."""
TEXTS = ("h1", "p", "li", "td", "th", "dt", "dd", "figcaption", "a", "label", PLAIN_SVG, "summary")

IN_CELLS = """() => {
    const light = (colour) => {
        const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(c => c / 255)
            .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    return [...document.querySelectorAll('[class*=cell_numbers]')].flatMap(group => {
        const cells = [...group.parentElement.querySelectorAll('.mark-rect.role-mark path')];
        return [...group.querySelectorAll('text')].map((text, place) => {
            const [a, b] = [text, cells[place]].map(one => light(getComputedStyle(one).fill)).sort((x, y) => y - x);
            return (a + 0.05) / (b + 0.05);
        });
    });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_in_cells_can_be_read_on_their_colour(scheme: Literal["light", "dark"], whole: Opened) -> None:
    whole.page.emulate_media(color_scheme=scheme)
    found = whole.ask(IN_CELLS)
    maps = [one for one in figures(*made_up_study()) if "_depth_" in one.name]
    assert len(found) == sum(len(one.rows) for one in maps) > 100
    assert min(found) >= 4.4


@pytest.mark.parametrize("study", ["whole", "unfinished", "failed audit"])
def test_all_text_can_be_read_by_day_and_by_night(study: str, seen: Callable[[str], Opened]) -> None:
    found = seen(study)
    paper = "getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).map(Number)"
    found.page.emulate_media(color_scheme="light")
    by_day = sum(found.ask(paper)), {one: min(found.ask(CONTRAST, one), default=21) for one in TEXTS}
    found.page.emulate_media(color_scheme="dark")
    by_night = sum(found.ask(paper)), {one: min(found.ask(CONTRAST, one), default=21) for one in TEXTS}
    found.page.emulate_media(color_scheme="light")
    assert by_night[0] < 100 < 700 < by_day[0]
    assert min(by_day[1].values()) >= 4.5, by_day
    assert min(by_night[1].values()) >= 4.5, by_night


@pytest.mark.parametrize("study", ["whole", "unfinished", "masked", "hostile"])
def test_a_phone_shows_it_without_scrolling_sideways(study: str, browser: Browser, folder: Path) -> None:
    with opened(browser, written(folder, study, STUDIES[study]()), width=390) as found:
        assert found.ask("document.documentElement.scrollWidth") == 390
        over = found.ask("""() => [...document.querySelectorAll('.plot svg')].filter(one =>
            one.getBoundingClientRect().right > innerWidth).length""")
        assert over == 0 or study == "hostile"


def test_wide_tables_scroll_in_a_place_of_their_own(browser: Browser, folder: Path) -> None:
    with opened(browser, written(folder, "whole", made_up_study()), width=390, drawn=False) as found:
        places = found.page.locator(".scroll")
        assert places.evaluate_all("all => all.filter(one => one.tabIndex !== 0 || !one.ariaLabel).length") == 0
        place = places.first
        assert place.evaluate("one => one.scrollWidth > one.clientWidth")
        place.focus()
        found.page.keyboard.press("ArrowRight")
        found.until("document.querySelector('.scroll').scrollLeft > 0")


def test_paper_has_every_section_and_no_controls(whole: Opened) -> None:
    whole.page.emulate_media(media="print")
    assert whole.ask("""() => [...document.querySelectorAll('main > section')].every(one => one.offsetHeight > 40)""")
    hidden = ".rail, .controls, .figure-data"
    assert whole.ask("all => [...document.querySelectorAll(all)].every(one => !one.offsetHeight)", hidden)
    assert whole.page.locator("figure .plot svg:visible").count() == len(figures(*made_up_study()))
    assert whole.ask("""() => [...document.querySelectorAll('.scroll')].every(one =>
        getComputedStyle(one).overflowX === 'visible')""")
    assert len(whole.page.pdf(format="A4")) > 10_000


@pytest.mark.parametrize("study", ["whole", "unfinished", "bare"])
def test_whoever_cannot_see_it_is_told(study: str, seen: Callable[[str], Opened]) -> None:
    found = seen(study)
    levels = found.ask("[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(one => Number(one.tagName[1]))")
    main = found.ask("[...document.querySelectorAll('main :is(h2,h3,h4)')].map(one => Number(one.tagName[1]))")
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise([1, *main]))
    unnamed = """() => [...document.querySelectorAll('input, select')].filter(one => !one.labels.length)
        .concat([...document.querySelectorAll('button, a')].filter(one => !one.textContent.trim()))
        .concat([...document.querySelectorAll('table')].filter(one => !one.caption))
        .concat([...document.querySelectorAll('th')].filter(one => !one.scope)).length"""
    assert found.ask(unnamed) == 0
    assert found.page.get_by_role("img").count() == found.page.locator("figure:not([hidden])").count()
    plots = """() => [...document.querySelectorAll('[role=img]')].every(one => ['labelledby', 'describedby'].every(
        kind => document.getElementById(one.getAttribute(`aria-${kind}`)).textContent.trim()))"""
    assert found.ask(plots)
    ids = found.ask("[...document.querySelectorAll('[id]')].filter(one => !one.closest('svg')).map(one => one.id)")
    assert len(ids) == len(set(ids))
    assert found.ask("document.documentElement.lang") == "en"
    assert found.page.get_by_role("main").count() == 1
    assert found.page.get_by_role("navigation").count() == 1
    assert found.page.get_by_role("banner").count() == 1
    assert found.page.get_by_role("contentinfo").count() == 1


def test_without_scripts_everything_but_the_drawings_is_there(browser: Browser, folder: Path) -> None:
    with opened(browser, written(folder, "whole", made_up_study()), java_script_enabled=False, drawn=False) as found:
        said = found.page.locator("main").inner_text()
        for one in figures(*made_up_study()):
            assert unbroken(one.says) in said
        for name in CONTESTANTS:
            assert f"Differences against {name}." in said
        assert "Without JavaScript" in found.page.locator("header").inner_text()
        assert found.page.locator("select:visible, input:visible").count() == 0
