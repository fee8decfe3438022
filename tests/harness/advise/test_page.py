"""The advice page as text: nothing is loaded, everything is escaped, and it is small."""

import base64
import json
import re
import zlib

from moebench.harness.advise.grid import to_columns
from moebench.harness.advise.page import page
from tests.harness.advise.grids import grid
from tests.reports.samples import HOSTILE

MOST_BYTES = 5_000_000


def packed_grid(text: str) -> object:
    found = re.search(r'<script type="text/plain" id="grid">([^<]*)</script>', text)
    assert found is not None
    return json.loads(zlib.decompress(base64.b64decode(found[1])))


def test_the_page_contains_the_whole_grid() -> None:
    assert packed_grid(page(grid())) == to_columns(grid())


def test_the_page_loads_nothing() -> None:
    text = page(grid())
    assert "default-src 'none'" in text
    assert "unsafe-eval" not in text
    without = re.sub(r'id="grid">[^<]*<', "", text).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//\w+\.\w", without)
    assert not re.search(r"<(link|img|iframe|object)\b(?![^>]*data:,)", without)
    assert not re.search(r"@import|url\(|\bfetch\(|XMLHttpRequest", without)


def test_texts_are_escaped() -> None:
    text = page(grid(version=HOSTILE))
    assert HOSTILE not in text
    assert "<img" not in text
    assert text.count("&lt;script&gt;") == 3


def test_every_choice_has_a_label() -> None:
    text = page(grid())
    for name in ("card", "memory", "model", "quant", "context", "prompt", "answer", "lossless"):
        assert re.search(rf'<label[^>]*>[^<]*<(select|input)[^>]*id="{name}"', text), name


def test_the_error_of_interpolation_is_stated() -> None:
    text = " ".join(page(grid()).split())
    assert "Contexts of 4,096, 16,384 and 65,536 tokens are not computed but interpolated" in text
    assert (
        "decode rates over 240 computed ones: median 0.42 %, 90 % below 2 %, at most 6.1 %" in text
    )


def test_without_contexts_in_between_nothing_is_said_of_interpolation() -> None:
    text = page(grid(between=(), errors=()))
    assert "not computed but interpolated" not in text
    assert "Contexts of 4,096 tokens" in page(grid(between=(4096,), errors=()))
    assert "4,096 and 16,384" in page(grid(between=(4096, 16384), errors=()))


def test_the_page_is_small() -> None:
    assert len(page(grid()).encode()) < MOST_BYTES
