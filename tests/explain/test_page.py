# SPDX-License-Identifier: Apache-2.0
"""The page of a report: its HTML, and how it behaves in a headless Chromium."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from helpers.browser import chromium, opened
from helpers.reports import made_report

from thunder_fuser.errors import ReportError
from thunder_fuser.explain.page import page, picture, trace_lines, write_page

BAD_SCRIPT = "<script>document.title = 'attacked'</script>"
ATTACK = f"</script></style></title>\"'>{BAD_SCRIPT}<img src=x onerror=alert(1)>&lt;b&gt;"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


Show = Callable[..., AbstractContextManager[Any]]


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Show:
    """A function: reports -> their page, opened."""

    def of(*reports: dict[str, Any], **given: Any) -> AbstractContextManager[Any]:
        return opened(browser, write_page(reports, tmp_path / "report.html"), **given)

    return of


# ---- the text


class _Elements(HTMLParser):
    """Every element with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def attacked(value: Any) -> Any:
    """The same report with every text replaced by an attack; states and passes are ours."""
    if isinstance(value, dict):
        own = {"state", "direction"}
        return {key: one if key in own else attacked(one) for key, one in value.items()}
    if isinstance(value, list):
        return [attacked(one) for one in value]
    return value + ATTACK if isinstance(value, str) else value


def test_all_that_a_user_names_is_escaped() -> None:
    report = attacked(made_report())
    report["stages"] = {ATTACK: 1.0}
    before, after = (_Elements(page([one])).found for one in (made_report(), report))
    assert not [tag for tag, _ in after if tag in {"img", "b"} - {tag for tag, _ in before}]
    assert [tag for tag, _ in after].count("script") == 1
    names = {name for _, attributes in after for name in attributes}
    assert names == {name for _, attributes in before for name in attributes}


def test_the_page_names_no_other_file() -> None:
    elements = _Elements(page([made_report()])).found
    names = {name for _, given in elements for name in given}
    assert not {"src", "srcset", "action", "data"} & names
    links = [given["href"] for _, given in elements if "href" in given]
    assert links and all(link is not None and link.startswith("#") for link in links)
    ids = [given["id"] for _, given in elements if "id" in given]
    assert len(ids) == len(set(ids))
    assert {link.removeprefix("#") for link in links if link} <= set(ids)


def test_a_text_of_several_regions_is_in_the_page_once() -> None:
    text = page([made_report(regions=500)])
    assert text.count("void pointwise_7()") == 1
    assert re.search(r"Source of pointwise_7 \(\d+ lines, 5 regions\)", text)


def test_five_hundred_regions_are_under_five_megabytes() -> None:
    assert 5e5 < len(page([made_report(regions=500)]).encode()) < 5e6


def test_lines_of_a_trace_belong_to_the_region_they_call() -> None:
    report = {
        "fusions": [{"name": "thunderFusion0"}, {"name": "thunderFusion1"}],
        "trace": "a = thunderFusion1(x)\n  # exp\nb = matmul(a, a)\n# thunderFusion0 is below",
    }
    lines = [(one.before, one.link, one.after, one.at) for one in trace_lines(report)]
    assert lines == [
        ("a = ", "thunderFusion1", "(x)", 1),
        ("  # exp", "", "", 1),
        ("b = matmul(a, a)", "", "", None),
        ("# thunderFusion0 is below", "", "", None),
    ]


def test_regions_of_two_graphs_may_have_one_name_in_the_trace() -> None:
    report = {
        "fusions": [{"name": "graph0.thunderFusion0"}, {"name": "graph1.thunderFusion0"}],
        "trace": "a = thunderFusion0(x)\nb = thunderFusion0(a)\nc = thunderFusion0x(b)",
    }
    assert [(one.link, one.at) for one in trace_lines(report)] == [
        ("thunderFusion0", 0), ("thunderFusion0", 1), ("", None),
    ]  # fmt: skip


def test_a_picture_has_a_step_for_each_call() -> None:
    drawn = picture(
        [
            {"call": "a", "direction": "forward", "bytes": 1024},
            {"call": "b", "direction": "backward", "bytes": 4096},
        ]
    )
    assert drawn.area == "M0 160V125.0H400.0V20.0H800.0V160Z"
    assert (drawn.middle, drawn.peak) == (400.0, (600.0, 20.0))
    assert drawn.label == "Live memory, without arguments: at most 4.0 KiB, after b"
    assert drawn.calls == (("a", "forward", "1.0 KiB"), ("b", "backward", "4.0 KiB"))


# ---- writing


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    path = tmp_path / "none" / "report.html"
    with pytest.raises(ReportError, match="a folder that exists") as raised:
        write_page([made_report()], path)
    assert str(path) in str(raised.value) and isinstance(raised.value, OSError)


def test_a_path_that_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"Is a directory.*name a file in a folder"):
        write_page([made_report()], tmp_path)


def test_a_name_of_a_file_that_is_no_text(tmp_path: Path) -> None:
    report = made_report(name=os.fsdecode(b"model\xff.py"))
    assert "model\\udcff.py" in write_page([report], tmp_path / "report.html").read_text("utf-8")


# ---- in a browser


def test_a_search_shows_what_holds_every_word(show: Show) -> None:
    with show(made_report()) as opened_page:
        regions = opened_page.locator(".region:visible")
        assert regions.count() == 5  # the region of views is folded away
        opened_page.keyboard.press("/")
        opened_page.keyboard.type("MODEL.py:5 exp")
        assert regions.count() == 1
        assert "thunderFusion4" in regions.inner_text()
        assert opened_page.locator("#found").inner_text().startswith("region: 1")
        assert not opened_page.get_by_role("heading", name="Not fused").is_visible()
        opened_page.keyboard.type(" nowhere")
        assert regions.count() == 0
        assert opened_page.locator("#found").inner_text() == "nothing found"
        opened_page.keyboard.press("Escape")
        assert regions.count() == 5 and opened_page.locator("#search").input_value() == ""
        opened_page.keyboard.type("a/b")  # a slash in the search is a slash
        assert opened_page.locator("#search").input_value() == "a/b"


def test_a_search_unfolds_what_it_finds_and_looks_into_sources(show: Show) -> None:
    report = made_report()
    report["fusions"][4]["kernels"][0]["source"] += "only_here"
    with show(report) as opened_page:
        opened_page.get_by_role("searchbox", name="Search").fill("fuserViews0")
        assert opened_page.get_by_text("fuserViews0").first.is_visible()
        opened_page.get_by_role("searchbox", name="Search").fill("only_here")
        names = opened_page.locator(".region:visible b:visible").all_inner_texts()
        assert names == ["thunderFusion4"]


def test_a_source_is_folded_and_appears_where_it_is_unfolded(show: Show) -> None:
    with show(made_report()) as opened_page:
        region = opened_page.locator(".region").first
        source = region.get_by_text("void pointwise_0()")
        assert source.count() == 0
        region.locator("summary").first.click()
        region.get_by_text("pointwise_0").click()
        assert source.is_visible()
        region.get_by_text("pointwise_0", exact=True).click()
        assert not source.is_visible()


def test_the_keyboard_reaches_everything_in_order(show: Show) -> None:
    with show(made_report()) as opened_page:
        focused = "document.activeElement.innerText || document.activeElement.id"
        seen = []
        for _ in range(9):
            opened_page.keyboard.press("Tab")
            seen.append(opened_page.evaluate(focused))
        assert seen[:3] == ["Skip to the report", "search", "Regions"]
        assert seen[-1].startswith("thunderFusion0")
        opened_page.keyboard.press("Enter")
        assert opened_page.locator(".body").first.is_visible()
        opened_page.keyboard.press("Tab")
        assert opened_page.evaluate(focused).startswith("pointwise_0")
        opened_page.keyboard.press("Space")
        opened_page.keyboard.press("Tab")  # a long source is scrolled by the keyboard
        assert opened_page.evaluate("document.activeElement.tagName") == "PRE"


def test_a_link_of_the_trace_unfolds_its_region_even_if_a_search_hides_it(show: Show) -> None:
    with show(made_report()) as opened_page:
        opened_page.locator("#search").fill("exp*3")
        assert opened_page.locator("#region-0-3").is_hidden()
        opened_page.locator("#search").fill("t3")
        opened_page.locator(".trace a", has_text="thunderFusion3").click()
        assert opened_page.locator("#region-0-3").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible_with_all_unfolded(show: Show, scheme: str) -> None:
    """Names, roles, order of headings, contrast: the rules of axe."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with show(made_report(), made_report(name="other"), color_scheme=scheme) as opened_page:
        opened_page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        found = axe.run(opened_page)
        assert found.violations_count == 0, found.generate_report()
        paper = opened_page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]


def test_an_attack_stays_text(show: Show) -> None:
    with show(attacked(made_report())) as opened_page:
        assert opened_page.title().startswith("Fusions of model</script>")
        assert opened_page.locator("script").count() == 1
        assert opened_page.locator("img").count() == 0
        opened_page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert opened_page.locator("pre", has_text="<script>").first.is_visible()
        assert opened_page.locator("img").count() == 0


def test_a_script_that_was_not_escaped_would_not_run(browser: Any, tmp_path: Path) -> None:
    """The page's security policy, behind the escaping."""
    text = page([made_report()]).replace("</main>", f"{BAD_SCRIPT}</main>")
    path = tmp_path / "broken.html"
    path.write_text(text, "utf-8")
    with pytest.raises(AssertionError, match="Content Security Policy"):  # noqa: SIM117
        with opened(browser, path) as opened_page:
            assert opened_page.title() == "Fusions of model"


def test_without_javascript_links_lead_to_the_texts(show: Show) -> None:
    with show(made_report(), java_script_enabled=False) as opened_page:
        region = opened_page.locator(".region").first
        region.locator("summary").first.click()
        region.get_by_text("pointwise_0").click()
        region.get_by_role("link", name="under Texts").first.click()
        assert opened_page.locator("#text-0 > pre").is_visible()


def test_five_hundred_regions_open_folded(
    show: Show, record_property: Callable[[str, object], None]
) -> None:
    with show(made_report(regions=500)) as opened_page:
        assert opened_page.locator(".region[open]").count() == 0
        assert opened_page.locator("pre:visible").count() == 0
        assert opened_page.evaluate("document.querySelectorAll('*').length") < 100_000
        opened_page.locator("#search").fill("thunderFusion498")
        assert opened_page.locator(".region:visible").count() == 1
        opening = "performance.getEntriesByType('navigation')[0].loadEventEnd"
        record_property("milliseconds to open", opened_page.evaluate(opening))


def test_a_narrow_window_is_not_scrolled_sideways(show: Show) -> None:
    with show(made_report(), viewport={"width": 360, "height": 640}) as opened_page:
        opened_page.locator("#regions-0 ~ details summary").first.click()
        opened_page.locator(".body summary").first.click()
        assert opened_page.evaluate("document.documentElement.scrollWidth") <= 360
