"""OpenCompass' server: the right client is answered whatever others send."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.harness.evaluate import opencompass_server
from moebench.harness.evaluate.opencompass_server import STRANGERS
from tests.harness.evaluate.clients import HOSTILE, RIGHT, TOKEN, Place, right


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    found = Place(tmp_path_factory.mktemp("s") / "s")  # a socket's path must be short
    yield found
    found.close()


def test_requests_of_the_right_client_are_answered_and_counted(place: Place) -> None:
    client = right(place)
    assert place.asks(client) == {"value": 5}
    assert place.counts == []
    request = {"ask": "generate", "inputs": ["a"], "max_out_len": 3, "stops": []}
    assert place.asks(client, request) == {"texts": ["a 3"]}
    assert place.asks(client, request) == {"texts": ["a 3"]}
    assert place.counts == [1, 2]
    assert place.said == []


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


@pytest.mark.parametrize(
    ("request_", "wrong"),
    [
        ({"ask": "ppl", "inputs": ["a"], "mask_length": [-1]}, "greater than or equal to 0"),
        ({"ask": "generate", "inputs": ["a"], "max_out_len": 0, "stops": []},
         "greater than or equal to 1"),
        ({"ask": "token_len", "input": 3}, "valid string"),
        ({"ask": "token_len", "input": "a", "x": 1}, "Extra inputs are not permitted"),
        ({"ask": "other"}, "'generate', 'ppl', 'token_len'"),
    ],
)  # fmt: skip
def test_a_request_is_checked_as_one_of_its_own_kind(
    place: Place, request_: dict[str, object], wrong: str
) -> None:
    sent = json.dumps(request_)
    client = right(place)
    client.sendall(f"{sent}\n".encode())
    place.turns()
    (line,) = place.said
    start, _, end = line.partition(" is no request (")
    assert start.startswith("a client of OpenCompass's socket was dropped: ")
    assert end.endswith(")")
    assert wrong in end
    assert place.counts == []


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


def test_of_too_many_strangers_the_one_that_waits_longest_is_dropped(place: Place) -> None:
    waiting = []
    for _ in range(STRANGERS + 2):
        waiting.append(place.client())
        place.turns(1)
    for one in waiting:
        one.setblocking(False)
    assert [one.recv(1) for one in waiting[:2]] == [b"", b""], "closed by the server"
    for one in waiting[2:]:
        with pytest.raises(BlockingIOError):
            one.recv(1)
    assert place.said == []


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
