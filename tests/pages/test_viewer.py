"""The attention viewer: the weights as given, in a page that needs no other host; a picture if no script runs."""

import base64
import inspect
import json
import os
import re
import zlib
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
import test_lab
import torch
from matplotlib import colormaps
from nbconvert import HTMLExporter
from playwright.sync_api import Locator, Page, expect
from test_lab import ALL_CELLS_ARE_DONE, KERNEL_IS_IDLE, NOTEBOOK_IS_READY, RUN_ALL_CELLS, Lab

from transformer_lm.plots.viewer import SCRIPT, viewer

chromium = test_lab.chromium  # the browser
lab = test_lab.lab  # `make lab`

TEXT = list("to be\nor")
VISIBLE = torch.ones(8, 8).tril().bool()
SECONDS = 60

PIXELS = "canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
BACKGROUNDS = "characters => characters.map(character => getComputedStyle(character).backgroundColor)"
NUMBER_OF_ELEMENTS = "root => root.shadowRoot.querySelectorAll('*').length"
GROUP_WITH_FOCUS = "() => document.activeElement.shadowRoot.activeElement.parentElement.className"
SHOWS_NO_VIEWER = "root => !root.shadowRoot && !root.started"
CELLS = """() => window.jupyterapp.shell.currentWidget.content.widgets
    .map(cell => [cell.model.type, cell.model.sharedModel.source])"""
MODE = "() => window.jupyterapp.shell.currentWidget.content.mode"
TRUSTED = "() => window.jupyterapp.shell.currentWidget.content.widgets.map(cell => cell.model.trusted)"
IS_SAVED = "() => !window.jupyterapp.shell.currentWidget.context.model.dirty"
SAVE = "() => window.jupyterapp.commands.execute('docmanager:save')"


def planted(layers, heads, n):
    """Return a recording in which head k, counted through all layers, gives 80 % to the character k positions back."""
    recording = {}
    for layer in range(layers):
        weights = torch.zeros(1, heads, n, n)
        for head in range(heads):
            for i in range(n):
                weights[0, head, i, max(i - layer * heads - head, 0)] += 0.8
                weights[0, head, i, 0] += 0.2  # the rest goes to the first
        recording[f"blocks.{layer}.attention.weights"] = weights
    return recording


def random_recording(*sizes, layers=2, dtype=torch.float32):
    names = [f"blocks.{layer}.attention.weights" for layer in range(layers)]
    return {name: (3 * torch.randn(*sizes)).softmax(dim=-1).to(dtype) for name in names}


# What is in the HTML


class Scripts(HTMLParser):
    """Collects the scripts of a page as a browser finds them."""

    def __init__(self, page: str):
        super().__init__()
        self.scripts, self.texts, self.inside = [], [], False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts[-1] += data
        else:
            self.texts.append(data)


def data_in(bundle: dict[str, str]) -> dict:
    return json.loads(Scripts(bundle["text/html"]).scripts[0])


def unpacked(bundle: dict[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Return which entries are visible, (i, j), and the visible weights, (heads of all layers, visible entries)."""
    data = data_in(bundle)
    size = (len(data["queries"]), len(data["keys"]))
    values = np.frombuffer(zlib.decompress(base64.b64decode(data["weights"])), dtype=np.uint8)
    visible, weights = np.split(values, [size[0] * size[1]])
    return visible.reshape(size).astype(bool), weights.reshape(len(data["layers"]) * data["heads"], -1) / 255


def test_the_weights_are_there_to_half_a_step():
    recording = random_recording(4, 3, 5, 7)
    visible, weights = unpacked(viewer(recording, list("abcde"), list("tuvwxyz"), row=2))
    wanted = torch.stack([layer[2] for layer in recording.values()])
    assert visible.all()
    assert visible.shape == (5, 7)
    np.testing.assert_allclose(weights.reshape(2, 3, 5, 7), wanted, rtol=0, atol=1 / 510 + 1e-9)


def test_what_is_not_visible_is_not_there():
    recording = planted(2, 3, 8)
    visible, weights = unpacked(viewer(recording, TEXT, visible=VISIBLE))
    np.testing.assert_array_equal(visible, VISIBLE)
    wanted = torch.cat([layer[0] for layer in recording.values()])[:, VISIBLE]
    assert weights.shape == (6, 8 * 9 / 2)
    np.testing.assert_allclose(weights, wanted, rtol=0, atol=1 / 510 + 1e-9)


def test_the_picture_goes_with_it(bundle):
    (alt,) = re.findall(r'<img alt="([^"]{30,})" src="data:image/png;base64,', bundle["text/html"])
    assert "(layers: 2, heads in each: 3, queries: 8, keys: 8)" in alt
    assert bundle["text/plain"] == f"Figure: {alt}"
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert not plt.get_fignums()


def test_no_label_ends_the_script():
    labels = ["</script><b>", "<!--<script>", '"', "'", "\\", "&amp;", "א", "\u2028"]
    found = Scripts(viewer(planted(1, 1, 8), labels)["text/html"])
    assert json.loads(found.scripts[0])["queries"] == labels
    assert found.scripts[1:] == [SCRIPT.read_text()]
    assert found.texts == []


def test_the_script_names_no_address():
    assert not re.search(r"""://|["'`]//""", SCRIPT.read_text())


def test_white_space_is_a_glyph_and_every_layer_has_its_name():
    recording = planted(1, 1, 3) | {"blocks.4.attention.weights": torch.eye(3).expand(1, 1, 3, 3)}
    data = data_in(viewer(recording, [" ", "\n", "\t"], list("xyz")))
    assert data["layers"] == ["layer 0", "layer 4"]
    assert (data["queries"], data["keys"]) == (["␣", "↵", "⇥"], ["x", "y", "z"])


def test_coarse_numbers_are_shown_too():
    weights = torch.tensor([[1.0078125, 0.0], [0.5, 0.5]], dtype=torch.bfloat16)
    _, shown = unpacked(viewer({"blocks.0.attention.weights": weights.expand(1, 1, 2, 2)}, list("ab")))
    assert shown[0].tolist() == [1, 0, 128 / 255, 128 / 255]


@pytest.mark.parametrize(
    ("recording", "options", "message"),
    [
        ({}, {}, "recording must hold the weights of at least one layer, got none."),
        ({"a": torch.eye(2)}, {}, "a must have the 4 axes (b, h, i, j), got 2"),
        ({"a": torch.ones(1, 1, 2, 2)}, {}, "sum to 1 in each row"),
        ({"a": torch.eye(3).expand(1, 1, 3, 3)}, {}, "a row for each of 2 queries"),
        ({"a": torch.eye(2).expand(1, 1, 2, 2)}, {"row": 1}, "row must be from 0 to 0, one of the texts, got 1."),
        ({"a": torch.full((1, 1, 2, 2), 0.5)}, {"visible": VISIBLE[:2, :2]}, "must be 0 where visible is False"),
    ],
)
def test_what_are_no_weights_is_refused(recording, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        viewer(recording, list("ab"), **options)
    assert not plt.get_fignums()


# In a page


@pytest.fixture
def opened(chromium) -> Callable[..., Page]:
    """Return a function that opens a page of viewers and waits until they are shown."""
    pages = []

    def open_page(*bundles: dict[str, str], body: str = "", width: int = 1100) -> Page:
        page = chromium.new_page(viewport={"width": width, "height": 900})
        pages.append(page)
        page.set_default_timeout(1000 * SECONDS)
        page.set_content(f"<!doctype html><body {body}>{''.join(one['text/html'] for one in bundles)}")
        expect(state(page)).to_have_count(len(bundles))
        return page

    yield open_page
    for page in pages:
        page.close()


def state(place: Page | Locator) -> Locator:
    return place.locator(".state")


def head(place: Page | Locator, name: str) -> Locator:
    return place.get_by_role("gridcell", name=name, exact=True)


def characters(place: Page | Locator, side: str, panel: int = 0) -> Locator:
    return place.locator(".panel").nth(panel).locator(f".strip.{side} span")


def large_map(place: Page | Locator, panel: int = 0) -> Locator:
    return place.locator(".panel").nth(panel).locator("canvas")


def pixels(canvas: Locator, *size: int) -> np.ndarray:
    """Return the painted pixels as (i, j, 4): red, green, blue and alpha."""
    return np.array(canvas.evaluate(PIXELS)).reshape(*size, 4)


def colours(weights: torch.Tensor) -> np.ndarray:
    """Return the colours of weights on one scale from 0 to 1."""
    return colormaps["cividis"]((255 * weights.double()).round().byte().numpy(), bytes=True)


def as_css(colour: np.ndarray) -> str:
    return "rgb({}, {}, {})".format(*colour[:3])


@pytest.fixture(scope="module")
def bundle() -> dict[str, str]:
    """Return the viewer of 2 layers of 3 planted heads."""
    return viewer(planted(2, 3, 8), TEXT, visible=VISIBLE)


@pytest.fixture
def page(opened, bundle) -> Page:
    return opened(bundle)


def test_every_head_is_painted_in_its_own_place(opened):
    recording = random_recording(1, 3, 5, 7)
    visible = torch.ones(5, 7).bool()
    visible[1, 2:4] = visible[4, 0] = False
    recording = {name: weights * visible for name, weights in recording.items()}
    recording = {name: weights / weights.sum(dim=-1, keepdim=True) for name, weights in recording.items()}
    page = opened(viewer(recording, list("abcde"), list("tuvwxyz"), visible))
    for layer, weights in enumerate(recording.values()):
        for number in range(3):
            painted = pixels(head(page, f"layer {layer}, head {number}"), 5, 7)
            np.testing.assert_array_equal(painted[visible], colours(weights[0, number][visible]))
            assert not painted[~visible].any()  # clear: the hatching behind shows


def test_a_click_on_a_head_shows_it_large(page):
    assert state(page).inner_text() == "layer 0, head 0: choose a character"
    head(page, "layer 1, head 2").click()
    assert state(page).inner_text() == "layer 1, head 2: choose a character"
    np.testing.assert_array_equal(pixels(large_map(page), 8, 8), pixels(head(page, "layer 1, head 2"), 8, 8))
    assert page.locator("[role=gridcell][aria-selected=true]").get_attribute("aria-label") == "layer 1, head 2"


def test_arrow_keys_move_between_heads(page):
    head(page, "layer 0, head 0").focus()
    for key, name in (
        ("ArrowRight", "layer 0, head 1"),
        ("ArrowDown", "layer 1, head 1"),
        ("ArrowDown", "layer 1, head 1"),  # there is no third layer
        ("ArrowLeft", "layer 1, head 0"),
        ("ArrowUp", "layer 0, head 0"),
        ("ArrowUp", "layer 0, head 0"),
    ):
        page.keyboard.press(key)
        expect(head(page, name)).to_be_focused()
        assert state(page).inner_text().startswith(f"{name}:")


def test_a_character_shows_what_it_reads_and_what_reads_it(page):
    head(page, "layer 0, head 2").click()
    characters(page, "key").nth(4).hover()
    assert state(page).inner_text() == (
        "layer 0, head 2: query 'e' at 4 reads most space at 2 with 80 %; "
        "key 'e' at 4 is read most by 'o' at 6 with 80 %"
    )
    weights = planted(2, 3, 8)["blocks.0.attention.weights"][0, 2]
    clear = "rgba(0, 0, 0, 0)"
    row, column = colours(weights[4, :5]), colours(weights[4:, 4])
    assert characters(page, "key").evaluate_all(BACKGROUNDS) == [as_css(one) for one in row] + [clear] * 3
    assert characters(page, "query").evaluate_all(BACKGROUNDS) == [clear] * 4 + [as_css(one) for one in column]
    hidden = characters(page, "key").nth(6).evaluate("character => getComputedStyle(character).backgroundImage")
    assert "gradient" in hidden  # hatched


def test_a_lock_holds_until_escape(page):
    head(page, "layer 0, head 1").click()
    characters(page, "query").nth(3).click()
    locked = "query 'b' at 3 reads most space at 2 with 80 %; key 'b' at 3 is read most by 'e' at 4 with 80 % (locked)"
    assert state(page).inner_text() == f"layer 0, head 1: {locked}"
    page.mouse.move(0, 0)
    assert state(page).inner_text() == f"layer 0, head 1: {locked}"
    head(page, "layer 0, head 0").click()  # another head, the same character
    assert state(page).inner_text().startswith("layer 0, head 0: query 'b' at 3 reads most 'b' at 3 with 80 %")
    page.keyboard.press("Escape")
    assert state(page).inner_text() == "layer 0, head 0: choose a character"


def test_a_second_click_unlocks(page):
    characters(page, "key").nth(3).click()
    characters(page, "key").nth(3).click()
    assert "(locked)" not in state(page).inner_text()


def test_a_locked_and_another_character_tell_one_weight(page):
    head(page, "layer 0, head 2").click()
    characters(page, "query").nth(4).click()
    characters(page, "key").nth(0).hover()
    assert state(page).inner_text() == "layer 0, head 2: query 'e' at 4 reads 't' at 0 with 20 % (locked)"
    selected = page.locator(".strip.key [aria-selected=true]").first
    assert selected.get_attribute("aria-label") == "'e' at 4"  # a locked character stays selected
    characters(page, "query").nth(6).hover()
    assert state(page).inner_text() == "layer 0, head 2: query 'o' at 6 reads 'e' at 4 with 80 % (locked)"
    characters(page, "key").nth(5).hover()
    assert state(page).inner_text() == "layer 0, head 2: query 'e' at 4 may not read newline at 5 (locked)"


def test_a_cell_of_the_map_tells_its_weight(page):
    box = large_map(page).bounding_box()
    cell = box["width"] / 8
    large_map(page).hover(position={"x": 0.5 * cell, "y": 6.5 * cell})
    assert state(page).inner_text() == "layer 0, head 0: query 'o' at 6 reads 't' at 0 with 20 %"
    large_map(page).click(position={"x": 6.5 * cell, "y": 2.5 * cell})
    page.mouse.move(0, 0)
    assert state(page).inner_text() == "layer 0, head 0: query space at 2 may not read 'o' at 6 (locked)"


def test_the_text_can_be_walked_and_locked_by_keys(page):
    characters(page, "key").nth(0).focus()
    for key, at in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 7), ("ArrowRight", 7)):
        page.keyboard.press(key)
        expect(characters(page, "key").nth(at)).to_be_focused()
        assert f" at {at} reads most" in state(page).inner_text()
    for key in ("Enter", "Space"):
        page.keyboard.press(key)
        assert state(page).inner_text().endswith("(locked)")
        page.keyboard.press("Escape")
        assert "(locked)" not in state(page).inner_text()


def test_only_keys_with_control_reach_the_page(page):
    page.evaluate("() => { window.heard = []; document.onkeydown = event => window.heard.push(event.key); }")
    for place in (head(page, "layer 0, head 0"), characters(page, "key").first, page.get_by_role("button")):
        place.focus()
        for key in ("d", "Enter", "Escape", "ArrowRight"):
            page.keyboard.press(key)
    assert page.evaluate("() => window.heard") == []
    page.keyboard.press("Control+s")
    assert page.evaluate("() => window.heard") == ["Control", "s"]


def test_tab_reaches_every_control_once(page):
    reached = []
    for _ in range(4):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(GROUP_WITH_FOCUS))
    assert reached == ["row", "side", "strip key", "strip query"]  # heads, compare, two texts


def test_the_next_character_of_hebrew_is_on_the_left(opened):
    page = opened(viewer(planted(1, 2, 4), list("שלום")))
    assert page.locator(".labels.below span").all_inner_texts()[:4] == list("שלום")
    first, second = (characters(page, "key").nth(at).bounding_box()["x"] for at in (0, 1))
    assert second < first
    characters(page, "key").nth(0).focus()
    page.keyboard.press("ArrowLeft")
    expect(characters(page, "key").nth(1)).to_be_focused()
    assert state(page).inner_text().startswith("layer 0, head 0: query 'ל' at 1 reads most 'ל' at 1 with 80 %")


def test_two_heads_can_be_compared(page):
    assert not large_map(page, 1).is_visible()
    head(page, "layer 0, head 1").click()
    page.keyboard.press("c")
    page.keyboard.press("ArrowRight")
    characters(page, "key", panel=1).nth(4).hover()
    words = state(page).inner_text().split(" · ")
    assert words[0].startswith("layer 0, head 2: query 'e' at 4 reads most space at 2 with 80 %")
    assert words[1].startswith("layer 0, head 1: query 'e' at 4 reads most 'b' at 3 with 80 %")
    for panel, number in ((0, 2), (1, 1)):
        np.testing.assert_array_equal(
            pixels(large_map(page, panel), 8, 8), pixels(head(page, f"layer 0, head {number}"), 8, 8)
        )
    left, right = (large_map(page, panel).bounding_box() for panel in (0, 1))
    assert left["x"] + left["width"] < right["x"]
    assert left["y"] == right["y"]
    head(page, "layer 1, head 0").click(modifiers=["Shift"])
    assert " · layer 1, head 0:" in state(page).inner_text()
    page.get_by_role("button", name="stop comparing").click()
    assert not large_map(page, 1).is_visible()


def test_queries_and_keys_can_be_two_texts(opened):
    recording = {"decoder.0.weights": torch.tensor([[[[0.6, 0.1, 0.3], [0.2, 0.7, 0.1]]]])}
    page = opened(viewer(recording, list("ab"), list("xyz")))
    characters(page, "query").nth(1).hover()
    assert state(page).inner_text() == "decoder.0.weights, head 0: query 'b' at 1 reads most 'y' at 1 with 70 %"
    characters(page, "key").nth(0).hover()
    assert state(page).inner_text() == "decoder.0.weights, head 0: key 'x' at 0 is read most by 'a' at 0 with 60 %"


def test_viewers_on_one_page_do_not_disturb_each_other(opened, bundle):
    page = opened(bundle, viewer(planted(2, 4, 5), list("vwxyz")))
    first, second = page.locator(".attention-viewer").all()
    head(second, "layer 1, head 3").click()
    characters(second, "key").nth(2).click()
    assert first.locator(".state").inner_text() == "layer 0, head 0: choose a character"
    assert second.locator(".state").inner_text().startswith("layer 1, head 3: query 'x' at 2 reads most 'v' at 0")
    head(first, "layer 0, head 2").focus()
    page.keyboard.press("Escape")
    assert second.locator(".state").inner_text().endswith("(locked)")


def test_the_picture_stays_if_anything_fails(chromium, bundle):
    page = chromium.new_page()
    with page.expect_console_message(lambda message: "The picture stays" in message.text):
        page.set_content(re.sub(r'"weights": "[^"]*"', '"weights": "AAAA"', bundle["text/html"]))
    assert page.locator("img").is_visible()
    assert not state(page).is_visible()
    page.close()


def test_letters_have_the_colour_of_the_page(opened, bundle):
    page = opened(bundle, body='style="background: black; color: rgb(201, 202, 203)"')
    for part in (state(page), page.locator(".labels.left span").first, characters(page, "key").first):
        assert part.evaluate("part => getComputedStyle(part).color") == "rgb(201, 202, 203)"


def test_a_narrow_page_need_not_be_scrolled_sideways(opened):
    page = opened(viewer(random_recording(1, 8, 200, 200, layers=1), ["x"] * 200), width=360)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
    assert page.locator(".map").first.evaluate("map => map.scrollWidth > map.clientWidth")


def test_256_characters_and_64_heads_stay_small(opened):
    visible = torch.ones(256, 256).tril().bool()
    weights = (4 * torch.randn(8, 1, 8, 256, 256)).masked_fill(~visible, -torch.inf).softmax(dim=-1)
    recording = {f"blocks.{layer}.attention.weights": weights[layer] for layer in range(8)}
    bundle = viewer(recording, list("abcd" * 64), visible=visible)
    assert len(bundle["text/html"]) < 2_500_000
    page = opened(bundle)
    head(page, "layer 7, head 5").click()
    page.keyboard.press("c")
    characters(page, "key").nth(200).hover()
    best = weights[7, 0, 5, 200].argmax()
    assert f"query 'a' at 200 reads most '{'abcd'[best % 4]}' at {best} with" in state(page).inner_text()
    assert page.locator(".attention-viewer").evaluate(NUMBER_OF_ELEMENTS) < 8 * 256


# In a notebook


@pytest.fixture(scope="module")
def folder(lab) -> Path:
    """Return the folder of the notebooks that are served, with one that shows a viewer."""
    path = lab.log.parent / "course" / "notebooks"
    cell = (
        "import torch\n\nfrom transformer_lm.plots.viewer import view_attention\n\n\n"
        f"{inspect.getsource(planted)}\n\n"
        f"view_attention(planted(2, 3, 8), {TEXT}, visible=torch.ones(8, 8).tril().bool())"
    )
    cells = [nbformat.v4.new_code_cell(cell), nbformat.v4.new_markdown_cell("The end.")]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), path / "viewer.ipynb")
    return path


def in_lab(page: Page, lab: Lab, name: str) -> None:
    """Open a notebook and wait for its kernel."""
    page.goto(f"{lab.address}/lab/tree/notebooks/{name}?token={lab.token}&reset")
    page.wait_for_function(NOTEBOOK_IS_READY, arg=f"notebooks/{name}")
    page.wait_for_function(KERNEL_IS_IDLE)


@pytest.fixture(scope="module")
def notebook(chromium, lab, folder) -> Page:
    """Return the page of the notebook, which keeps the addresses that it requests in `page.asked_for`."""
    page = chromium.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(1000 * SECONDS)
    page.asked_for = []
    page.on("request", lambda asked: page.asked_for.append(asked.url))
    page.on("websocket", lambda asked: page.asked_for.append(asked.url))
    in_lab(page, lab, "viewer.ipynb")
    yield page
    page.close()


def run(page: Page) -> None:
    """Run all cells, perhaps once more, and wait for the viewer."""
    page.evaluate("() => { window.allCellsDone = false; }")
    page.evaluate(RUN_ALL_CELLS)
    page.wait_for_function(ALL_CELLS_ARE_DONE)
    state(page).wait_for()


@pytest.fixture
def live(notebook) -> Page:
    """Return the page of the notebook with a new viewer."""
    run(notebook)
    return notebook


@pytest.fixture(scope="module")
def saved(notebook, folder) -> Path:
    """Return where the notebook is saved with its viewer."""
    run(notebook)
    notebook.evaluate(SAVE)
    return folder / "viewer.ipynb"


def keep_screenshot(page: Page, name: str) -> None:
    if place := os.environ.get("LAB_SCREENSHOTS"):
        page.screenshot(path=Path(place) / f"viewer_{name}.png")


def test_in_jupyterlab_the_viewer_takes_the_place_of_its_picture(live):
    assert live.locator(".attention-viewer").count() == 1
    assert not live.locator(".attention-viewer img").is_visible()
    assert large_map(live).is_visible()


def test_in_jupyterlab_it_answers_to_clicks_and_keys(live):
    keep_screenshot(live, "before")
    before = pixels(large_map(live), 8, 8)
    head(live, "layer 0, head 2").click()
    assert (pixels(large_map(live), 8, 8) != before).any()
    characters(live, "key").nth(4).click()
    assert state(live).inner_text().startswith("layer 0, head 2: query 'e' at 4 reads most space at 2 with 80 %")
    keep_screenshot(live, "after")
    live.keyboard.press("c")
    live.keyboard.press("ArrowRight")
    words = "layer 0, head 2: query 'e' at 4 may not read newline at 5"
    assert state(live).inner_text() == f"{words} · {words} (locked)"
    keep_screenshot(live, "compared")
    live.keyboard.press("Escape")
    assert state(live).inner_text() == "layer 0, head 2: choose a character · layer 0, head 2: choose a character"


def test_in_jupyterlab_keys_in_the_viewer_are_not_for_the_notebook(live):
    cells = live.evaluate(CELLS)
    for place in (
        head(live, "layer 0, head 1"),
        characters(live, "key").nth(2),
        live.get_by_role("button", name="compar"),
    ):
        place.click()
        mode = live.evaluate(MODE)
        for key in "ddabxmyr0":  # delete, insert, cut, change the kind of a cell, restart
            live.keyboard.press(key)
        live.keyboard.press("ArrowDown")
        live.keyboard.press("Enter")
        assert live.evaluate(CELLS) == cells
        assert live.evaluate(MODE) == mode
        assert live.locator(".jp-Dialog").count() == 0
    live.keyboard.press("Control+s")
    live.wait_for_function(IS_SAVED)


def test_in_jupyterlab_nothing_is_asked_from_elsewhere(live):
    hosts = {urlsplit(url).hostname for url in live.asked_for if not url.startswith(("data:", "blob:"))}
    assert hosts == {"127.0.0.1"}


def test_in_a_notebook_that_is_not_trusted_the_picture_stands(chromium, lab, folder, saved):
    notebook = nbformat.read(saved, as_version=4)
    notebook.cells.append(nbformat.v4.new_markdown_cell("By somebody else."))  # so it is not signed
    nbformat.write(notebook, folder / "foreign.ipynb")
    page = chromium.new_page(viewport={"width": 1400, "height": 1000})
    in_lab(page, lab, "foreign.ipynb")
    assert page.evaluate(TRUSTED)[0] is False
    image = page.locator(".jp-OutputArea img")
    assert image.is_visible()
    assert image.evaluate("image => image.naturalWidth") > 300
    assert image.get_attribute("alt").startswith("A small map of attention weights for each head")
    assert page.locator(".jp-OutputArea .attention-viewer").evaluate(SHOWS_NO_VIEWER)
    assert page.locator(".jp-OutputArea script").count() == 0
    keep_screenshot(page, "not_trusted")
    page.close()


def exported(notebook: nbformat.NotebookNode, path: Path) -> str:
    """Write a notebook as nbconvert does and return its address."""
    path.write_text(HTMLExporter().from_notebook_node(notebook)[0])
    return path.as_uri()


def test_an_exported_page_without_scripts_shows_the_picture(chromium, saved, tmp_path):
    page = chromium.new_page(java_script_enabled=False)
    page.goto(exported(nbformat.read(saved, as_version=4), tmp_path / "viewer.html"))
    assert page.locator("img").is_visible()
    assert page.locator("img").get_attribute("alt").startswith("A small map of attention weights for each head")
    page.close()


def test_an_exported_page_shows_the_viewer_and_the_viewer_asks_for_nothing(chromium, saved, tmp_path):
    notebook = nbformat.read(saved, as_version=4)
    asked_for = {"with": set(), "without": set()}
    for name, asked_here in asked_for.items():
        page = chromium.new_page()
        page.on("request", lambda asked, asked_here=asked_here: asked_here.add(asked.url))
        page.route(lambda url: url.startswith("http"), lambda route: route.abort())
        page.goto(exported(notebook, tmp_path / "viewer.html"))
        if name == "with":
            head(page, "layer 0, head 1").click()
            characters(page, "key").nth(4).click()
            assert state(page).inner_text().startswith("layer 0, head 1: query 'e' at 4 reads most 'b' at 3 with 80 %")
            keep_screenshot(page, "exported")
        page.close()
        notebook.cells[0].outputs = []
    assert asked_for["with"] == asked_for["without"]  # nbconvert's own
