"""A server of OpenCompass' requests on a socket, with clients of every kind."""

import json
import socket
from pathlib import Path
from typing import Any, cast

from moebench.harness.evaluate.opencompass_server import Server
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


def right(place: Place) -> socket.socket:
    client = place.client(f"{TOKEN}\n".encode())
    place.turns(2)
    return client


HOSTILE = [
    b"\n", b"wrong\n", b'{"ask": "token_len", "input": "x"}\n', f"{TOKEN}x\n".encode(),
    f"{TOKEN[:-1]}\n".encode(), b"x" * 1000, b"\xff\xfe\n", f"{TOKEN}\nnot json\n".encode(),
    f"{TOKEN}\n{{}}\n".encode(), f'{TOKEN}\n{{"ask": "other"}}\n'.encode(),
    f'{TOKEN}\n{{"ask": "token_len", "input": 3}}\n'.encode(),
    f'{TOKEN}\n{{"ask": "token_len", "input": "x", "more": 1}}\n'.encode(),
    f'{TOKEN}\n{{"ask": "generate", "inputs": [], "max_out_len": -1, "stops": []}}\n'.encode(),
    f"{TOKEN}\n".encode() + b"[" * 50_000 + b"\n", f"{TOKEN}\nnull\n".encode(),
]  # fmt: skip
