"""OpenCompass' server: the right client is answered whatever others send."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.evaluate import opencompass_server
from moebench.harness.evaluate.opencompass_server import STRANGERS, Server
from moebench.harness.evaluate.responder import Responder

TOKEN = "5ecre7" * 5
RIGHT = {"ask": "token_len", "input": "five words of a text"}


class Words:
    """A responder that counts words and writes a fixed text."""

    def encode(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]

    def write(self, texts: list[str], most: int, stops: list[str]) -> list[str]:
        return [f"{text} {most}" for text in texts]


class Place:
    """A server on a socket, with clients."""

    def __init__(self, path: Path) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.path = str(path)
        self.listener.bind(self.path)
        self.listener.listen(64)
        self.said: list[str] = []
        self.counts: list[int] = []
        self.server = Server(
            self.listener, TOKEN, cast(Responder, Words()), self.counts.append, self.said.append
        )
        self.clients: list[socket.socket] = []

    def client(self, first: bytes = b"") -> socket.socket:
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.connect(self.path)
        one.sendall(first)
        self.clients.append(one)
        return one

    def turns(self, count: int = 6) -> None:
        for _ in range(count):
            self.server.turn(0.0)

    def asks(self, client: socket.socket, request: Any = RIGHT) -> Any:
        client.sendall(json.dumps(request).encode() + b"\n")
        self.turns()
        client.setblocking(False)
        try:
            return json.loads(client.recv(1 << 16))
        finally:
            client.setblocking(True)

    def close(self) -> None:
        self.server.serve(lambda: False)
        for one in [*self.clients, self.listener]:
            one.close()


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    found = Place(tmp_path_factory.mktemp("s") / "s")  # a socket's path must be short
    yield found
    found.close()


def right(place: Place) -> socket.socket:
    client = place.client(f"{TOKEN}\n".encode())
    place.turns(2)
    return client


def test_requests_of_the_right_client_are_answered_and_counted(place: Place) -> None:
    client = right(place)
    assert place.asks(client) == {"value": 5}
    assert place.counts == []
    request = {"ask": "generate", "inputs": ["a"], "max_out_len": 3, "stops": []}
    assert place.asks(client, request) == {"texts": ["a 3"]}
    assert place.asks(client, request) == {"texts": ["a 3"]}
    assert place.counts == [1, 2]
    assert place.said == []


HOSTILE = [
    b"\n", b"wrong\n", b'{"ask": "token_len", "input": "x"}\n', f"{TOKEN}x\n".encode(),
    f"{TOKEN[:-1]}\n".encode(), b"x" * 1000, b"\xff\xfe\n", f"{TOKEN}\nnot json\n".encode(),
    f"{TOKEN}\n{{}}\n".encode(), f'{TOKEN}\n{{"ask": "other"}}\n'.encode(),
    f'{TOKEN}\n{{"ask": "token_len", "input": 3}}\n'.encode(),
    f'{TOKEN}\n{{"ask": "token_len", "input": "x", "more": 1}}\n'.encode(),
    f'{TOKEN}\n{{"ask": "generate", "inputs": [], "max_out_len": -1, "stops": []}}\n'.encode(),
    f"{TOKEN}\n".encode() + b"[" * 50_000 + b"\n", f"{TOKEN}\nnull\n".encode(),
]  # fmt: skip


@pytest.mark.parametrize("sent", HOSTILE, ids=range(len(HOSTILE)))
def test_a_bad_client_is_dropped_and_named_and_the_right_one_goes_on(
    place: Place, sent: bytes
) -> None:
    client = right(place)
    bad = place.client(sent)
    place.turns()
    bad.setblocking(False)
    assert bad.recv(100) == b""
    (line,) = place.said
    assert "was dropped" in line
    assert "\n" not in line
    assert place.asks(client) == {"value": 5}


def test_a_line_without_end_is_dropped(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencompass_server, "LONGEST", 1000)
    client = right(place)
    client.sendall(b'"' + b"x" * 2000)
    place.turns()
    assert "more than 1000 bytes" in place.said[0]
    assert place.asks(right(place)) == {"value": 5}


def test_clients_that_leave_early_end_nothing(place: Place) -> None:
    client = right(place)
    for sent in (b"", b"x", f"{TOKEN}\n".encode(), f"{TOKEN}\n{json.dumps(RIGHT)}\n".encode(),
                 f"{TOKEN}\n{json.dumps(RIGHT)}".encode()):  # fmt: skip
        place.client(sent).close()
        assert place.asks(client) == {"value": 5}
    assert place.said == []


def test_a_flood_of_strangers_does_not_starve_the_right_client(place: Place) -> None:
    client = right(place)
    for _ in range(3):
        for _ in range(STRANGERS + 5):
            place.client()
            place.turns(1)
        assert place.asks(client) == {"value": 5}
    late = right(place)
    assert place.asks(late) == {"value": 5}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=80), st.sampled_from(HOSTILE)), max_size=6))
def test_whatever_strangers_send_the_right_client_is_answered(parts: list[bytes]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="moebench-") as folder:
        place = Place(Path(folder) / "s")
        try:
            client = right(place)
            for part in parts:
                place.client(part)
                place.turns(3)
            assert place.asks(client) == {"value": 5}
        finally:
            place.close()
