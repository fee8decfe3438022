"""Answers the requests of OpenCompass's process over a local socket; drops all other clients.

A client's first line is the token that only the started process knows.  One that sends anything
else, too much or no request is dropped and named in a line, and the evaluation goes on.
"""

import hmac
import json
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from moebench.harness.evaluate.responder import Pair, Responder
from moebench.substrate.errors import MoeBenchError
from moebench.substrate.files import brief

#: Environment variable by which OpenCompass's process gets its token.
TOKEN_VARIABLE = "MOEBENCH_OPENCOMPASS_TOKEN"

#: Seconds to wait for a request before checking that OpenCompass's process is still running.
LOOK_S = 1.0
#: Seconds that a client may take to read an answer.
READ_S = 30.0
#: Most bytes of a request, far above those of a batch of prompts.
LONGEST = 64 << 20
#: Most bytes that are read at once from a client, so that all have their turn.
AT_ONCE = 1 << 16
#: Most clients that have not sent a token; of more, the one that waits longest is dropped.
STRANGERS = 16


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Generate(_Request):
    ask: Literal["generate"]
    inputs: list[str]
    max_out_len: Annotated[int, Field(ge=1)]
    stops: list[str]


class _Perplexity(_Request):
    ask: Literal["ppl"]
    inputs: list[str]
    mask_length: list[Annotated[int, Field(ge=0)]] | None


class _TokenLength(_Request):
    ask: Literal["token_len"]
    input: str


_REQUEST: TypeAdapter[Any] = TypeAdapter(
    Annotated[_Generate | _Perplexity | _TokenLength, Field(discriminator="ask")]
)


class BadClientError(Exception):
    """A client's bytes that no right client sends."""


class Server:
    """Answers the clients of a listening socket that know the token.

    Args:
        answered: called with the number of answered batches after each.
        say: called with a line for each client that is dropped for what it sent.
    """

    def __init__(
        self, listener: socket.socket, token: str, responder: Responder,
        answered: Callable[[int], None], say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._listener, self._token, self._responder = listener, token.encode(), responder
        self._answered, self._say, self._count = answered, say, 0
        #: Received bytes of each client that do not end a line yet; strangers, oldest first.
        self._known: dict[socket.socket, bytearray] = {}
        self._strangers: dict[socket.socket, bytearray] = {}

    def serve(self, running: Callable[[], bool]) -> None:
        """Answer requests until ``running`` returns False, then close all connections."""
        try:
            while running():
                self.turn(LOOK_S)
        finally:
            for client in [*self._known, *self._strangers]:
                self._forget(client)

    def turn(self, wait_s: float) -> None:
        """Wait for clients that sent something, and read once from each; known ones first."""
        everyone = [self._listener, *self._known, *self._strangers]
        ready, _, _ = select.select(everyone, [], [], wait_s)
        for client in sorted(ready, key=lambda one: one not in self._known):
            if client is self._listener:
                self._accept()
            elif client in self._known or client in self._strangers:
                self._hear(client)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        client.settimeout(READ_S)
        if len(self._strangers) >= STRANGERS:
            self._forget(next(iter(self._strangers)))
        self._strangers[client] = bytearray()

    def _hear(self, client: socket.socket) -> None:
        try:
            read = client.recv(AT_ONCE)
            if not read:
                self._forget(client)
                return
            self._take(client, read)
        except BadClientError as error:
            self._say(f"a client of OpenCompass's socket was dropped: {error}")
            self._forget(client)
        except OSError:  # it left, or does not read its answer
            self._forget(client)

    def _take(self, client: socket.socket, read: bytes) -> None:
        """Handle the lines that a client's bytes complete."""
        kept = self._known.get(client)
        kept = self._strangers[client] if kept is None else kept
        kept += read
        lines: list[bytes] = []
        if b"\n" in read:
            *lines, rest = bytes(kept).split(b"\n")
            kept[:] = rest
        for line in lines:
            if client in self._known:
                client.sendall(self._reply(line))
            elif hmac.compare_digest(line, self._token):
                self._known[client] = self._strangers.pop(client)
            else:
                raise BadClientError("its first line was not the token")
        most = LONGEST if client in self._known else len(self._token)
        if len(kept) > most:
            raise BadClientError(f"a line has more than {most} bytes")

    def _reply(self, line: bytes) -> bytes:
        try:
            request = _REQUEST.validate_python(json.loads(line))
        except (ValueError, RecursionError) as error:  # a ValidationError is one
            said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise BadClientError(f"{brief(line[:80])} is no request ({said})") from error
        reply = json.dumps(answer(self._responder, request.model_dump())).encode() + b"\n"
        if request.ask != "token_len":
            self._count += 1
            self._answered(self._count)
        return reply

    def _forget(self, client: socket.socket) -> None:
        self._known.pop(client, None)
        self._strangers.pop(client, None)
        client.close()


def answer(responder: Responder, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to one request of `opencompass/moebench_model.py`."""
    try:
        if request["ask"] == "token_len":
            return {"value": len(responder.encode(request["input"]))}
        if request["ask"] == "generate":
            given = request["inputs"], request["max_out_len"], request["stops"]
            return {"texts": responder.write(*given)}
        return {"values": _losses(responder, request["inputs"], request["mask_length"])}
    except MoeBenchError as error:
        return {"failed": str(error)}


def _losses(
    responder: Responder, texts: Sequence[str], masked: Sequence[int] | None
) -> list[float]:  # fmt: skip
    """Return mean negative log-likelihoods, averaged as OpenCompass's Hugging Face model does.

    A whole text's mean is over all of its tokens, including the first, which is not predicted.
    """
    found = []
    ids = [responder.encode(text) for text in texts]
    given = [1] * len(ids) if masked is None else masked
    if len(given) != len(ids) or any(n >= len(one) for one, n in zip(ids, given, strict=False)):
        raise MoeBenchError("mask_length must leave a token of each text")
    pairs = [Pair(one[:n], one[n:]) for one, n in zip(ids, given, strict=True)]
    for one, n, read in zip(ids, given, responder.read(pairs), strict=True):
        counted = len(one) if masked is None else len(one) - n
        found.append(-read.log_likelihood / counted)
    return found
