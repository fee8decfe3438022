"""A page taken apart by the standard library's parser."""

import base64
import json
import zlib
from html.parser import HTMLParser
from typing import Any


class Page(HTMLParser):
    """The parts of a page that the tests ask about.

    Attributes:
        tags: every element's name and attributes.
        text: what is shown without any script.
        packed: by name, the data that the page's scripts unpack.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.packed: dict[str, Any] = {}
        self.text = ""
        self._inside: tuple[str, dict[str, str | None]] = ("", {})
        self.feed(text)

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = self.packed["data"]
        return found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag, dict(attrs)
        self.tags.append(self._inside)

    def handle_endtag(self, tag: str) -> None:
        self._inside = "", {}

    def handle_data(self, data: str) -> None:
        tag, attributes = self._inside
        if tag == "script" and attributes.get("type") == "text/plain":
            self.packed[str(attributes["id"])] = json.loads(zlib.decompress(base64.b64decode(data)))
        elif tag not in ("script", "style"):
            self.text += data

    def attributes(self, name: str) -> list[str]:
        return [value for _, found in self.tags if (value := found.get(name)) is not None]
