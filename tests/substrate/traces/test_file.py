"""Traces in folders: complete or absent, streamed, and refused in one line when broken."""

import hashlib
import json
import os
import resource
import signal
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.substrate.errors import InputError, UsageError
from moebench.substrate.traces.file import VERSION, Header, TraceFile, open_trace
from moebench.substrate.traces.replay import Replay
from moebench.substrate.traces.writer import writing
from tests.substrate.engine.fakes import small_shape

LAYERS, EXPERTS, K = 3, 5, 2


def header(**more) -> Header:
    sizes = {"num_moe_layers": LAYERS, "num_experts": EXPERTS, "top_k": K}
    return Header(model="tiny", workload="none", **sizes | more)


def rows(sequence: int, prompt: int, decoded: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the arrays of one sequence."""
    random, n = np.random.default_rng(seed), prompt + decoded
    scores = random.random((n, LAYERS, EXPERTS), dtype=np.float32)
    return {
        "ids": np.argsort(-scores, 2)[..., :K],
        "sequence": np.full(n, sequence),
        "position": np.arange(n),
        "phase": np.arange(n) >= prompt,
        "chosen": random.integers(0, 99, n),
        "scores": scores.astype(np.float16),
    }


def whole_rows(sequence: int, prompt: int, decoded: int) -> dict[str, np.ndarray]:
    """Return the arrays of one sequence with predictions, states of four numbers and embedding."""
    return rows(sequence, prompt, decoded) | {
        "predicted": np.zeros((decoded, LAYERS - 1, EXPERTS), np.float16),
        "hidden": np.zeros((prompt + decoded, LAYERS, 4), np.float16),
        "embedding": np.zeros((1, 4), np.float16),
    }


def write(path: Path, *sequences: dict[str, np.ndarray], **more) -> TraceFile:
    with writing(path, header(**more)) as writer:
        for arrays in sequences:
            writer.append(**arrays)
    return open_trace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace"


# ----------------------------------------------------------------------------- in and out


@settings(deadline=None, max_examples=40)  # every example writes files
@given(
    lengths=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), min_size=1, max_size=6),
    data=st.data(),
)
def test_sequences_come_out_as_they_went_in_however_their_rows_were_mixed(
    lengths, data, tmp_path_factory
):
    whole = [rows(s, prompt, n, seed=s) for s, (prompt, n) in enumerate(lengths)]
    queues = [[{k: v[[i]] for k, v in a.items()} for i in range(len(a["ids"]))] for a in whole]
    path = tmp_path_factory.mktemp("t") / "trace"
    with writing(path, header()) as writer:
        while any(queues):
            waiting = [q for q in queues if q]
            writer.append(**data.draw(st.sampled_from(waiting)).pop(0))
    trace = open_trace(path)
    assert trace.prompts == [prompt for prompt, _ in lengths]
    for s, arrays in enumerate(whole):
        found = trace.sequences[s]
        for name, values in arrays.items():
            assert np.array_equal(trace.arrays[name][found], values)
    shape = small_shape(layers=LAYERS, experts=EXPERTS, top_k=K)
    for batch in Replay(trace, shape, 1, len(whole), 99).batches:
        sequence = whole.pop(0)
        decoded = int(sequence["phase"].sum())
        assert len(batch) == 1 + decoded
        seen = [np.concatenate([p.gates[i].ids_TK for p in batch]) for i in range(LAYERS)]
        assert np.array_equal(np.stack(seen, 1), sequence["ids"])
        prompt = len(sequence["ids"]) - decoded
        assert [p.rows for p in batch] == [(prompt,)] + [(1,)] * decoded
        assert [p.chosen for p in batch] == [[c] for c in sequence["chosen"][prompt - 1 :].tolist()]


def test_every_array_is_a_plain_file_of_numpy(path):
    arrays = rows(0, 2, 3)
    write(path, arrays)
    for name, values in arrays.items():
        found = np.load(path / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        assert isinstance(found, np.memmap)
        assert np.array_equal(found, values)
    assert np.load(path / "ids.npy").dtype == np.uint8


def test_many_experts_take_two_bytes(path):
    big = header(num_experts=300)
    arrays = rows(0, 1, 1) | {"ids": np.full((2, LAYERS, K), (299, 7))}
    del arrays["scores"]
    with writing(path, big) as writer:
        writer.append(**arrays)
    assert open_trace(path).ids_TLK.dtype == np.uint16
    assert open_trace(path).ids_TLK.max() == 299


def test_a_trace_may_have_one_layer_and_no_prediction(path):
    with writing(path, header(num_moe_layers=1)) as writer:
        arrays = {k: v[:, :1] if v.ndim == 3 else v for k, v in rows(0, 1, 2).items()}
        writer.append(**arrays, predicted_gate=np.zeros((2, 0, EXPERTS), np.float16))
    assert open_trace(path).arrays["predicted_gate"].shape == (2, 0, EXPERTS)


def test_sequences_of_a_batch_go_in_lock_step_until_the_shortest_ends(path):
    trace = write(path, rows(0, 2, 5), rows(1, 4, 2), rows(2, 1, 9), rows(3, 1, 0))
    shape = small_shape(layers=LAYERS, experts=EXPERTS, top_k=K)
    pairs = list(Replay(trace, shape, 2, 4, 99).batches)
    assert [len(b) for b in pairs] == [3, 1]
    assert [p.rows for p in pairs[0]] == [(2, 4), (1, 1), (1, 1)]
    second = pairs[0][1].gates[1].ids_TK
    assert np.array_equal(second, trace.ids_TLK[[2, 7 + 4], 1]), "both sequences' first decoded row"
    short = next(iter(Replay(trace, shape, 2, 4, 2).batches))
    assert len(short) == 2
    for beyond in (2, -1):
        with pytest.raises(IndexError):
            short[beyond]


def test_without_a_prompt_the_first_decoded_token_stands_for_it(path):
    trace = write(path, rows(0, 0, 4))
    shape = small_shape(layers=LAYERS, experts=EXPERTS, top_k=K)
    (batch,) = Replay(trace, shape, 1, 1, 99).batches
    assert [p.rows for p in batch] == [(1,)] * 4
    assert (trace.passes(0), trace.prompt(0)) == (4, 1)


# ----------------------------------------------------------------------------- streams


def test_memory_is_that_of_one_append(path):
    block = {k: np.repeat(v, 2000, axis=0) for k, v in rows(0, 1, 0).items()}
    size = sum(v.nbytes for v in block.values())
    tracemalloc.start()
    with writing(path, header()) as writer:
        for s in range(150):
            writer.append(**block | {"sequence": np.full(2000, s)})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    written = sum(f.stat().st_size for f in path.iterdir())
    assert written > 10e6
    assert peak < 3 * size < written / 10


def test_a_failed_recording_leaves_nothing(path):
    def fail() -> None:
        with writing(path, header()) as writer:
            writer.append(**rows(0, 1, 1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(path.parent.iterdir()) == []


def test_a_killed_recording_leaves_nothing_that_loads(path):
    child = os.fork()
    if not child:
        with writing(path, header()) as writer:
            writer.append(**rows(0, 1, 1))
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert not path.exists()
    (left,) = path.parent.iterdir()
    with pytest.raises(InputError, match="not a trace"):
        open_trace(left)


def test_what_exists_is_not_overwritten(path):
    write(path, rows(0, 1, 1))
    before = open_trace(path).hash
    with pytest.raises(UsageError, match=r"exists; give another --out"):
        write(path, rows(0, 2, 2))
    assert open_trace(path).hash == before


def test_other_content_is_another_hash(tmp_path):
    hashes = {write(tmp_path / str(s), rows(0, 2, 2, seed=s)).hash for s in range(3)}
    assert len(hashes) == 3
    assert write(tmp_path / "again", rows(0, 2, 2)).hash in hashes


# ----------------------------------------------------------------------------- broken ones


def change(path: Path, **fields) -> None:
    file = path / "trace.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def reshape(path: Path, name: str, shape: list[int]) -> None:
    arrays = json.loads((path / "trace.json").read_text())["arrays"]
    change(path, arrays=arrays | {name: arrays[name] | {"shape": shape}})


def rewrite(path: Path, name: str, change_array) -> None:
    """Write another whole array, with its own dimensions and hash."""
    file = path / f"{name}.npy"
    np.save(file, change_array(np.load(file)))
    arrays = json.loads((path / "trace.json").read_text())["arrays"]
    digest, dims = hashlib.sha256(file.read_bytes()).hexdigest(), list(np.load(file).shape)
    change(path, arrays=arrays | {name: arrays[name] | {"shape": dims, "sha256": digest}})


def further(path: Path, name: str) -> None:
    """Change a trace's header so that array ``name`` holds predictions two layers ahead."""
    change(path, predictions={"gate": {"array": "predicted", "made": "", "further": [name]}})


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-2])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda p: truncate(p / "position.npy"), "position.npy is not what was written"),
        (lambda p: flip(p / "ids.npy"), "ids.npy is not what was written"),
        (lambda p: (p / "phase.npy").unlink(), "phase.npy: cannot be read"),
        (lambda p: truncate(p / "trace.json"), "trace.json"),
        (lambda p: (p / "trace.json").unlink(), "not a trace"),
        (lambda p: (p / "trace.json").write_text("[]"), "not the header of a trace"),
        (lambda p: (p / "trace.json").write_bytes(b"\xff\xfe"), "trace.json: not UTF-8 text"),
        (lambda p: change(p, version=VERSION + 1), "a trace of version 3, .* up to 2; update"),
        (lambda p: change(p, version="new"), "version is 'new'; allowed"),
        (lambda p: change(p, num_experts=0), "num_experts"),
        (lambda p: change(p, num_experts=6), "scores has rows of"),
        (lambda p: change(p, arrays={}), "has no array ids"),
        (lambda p: change(p, surprise=1), "surprise"),
        (lambda p: reshape(p, "embedding", [2, 4]), r"embedding\.npy is <f2 \(1, 4\)"),
        (lambda p: reshape(p, "hidden", [5, LAYERS + 1, 4]), r"hidden has rows of \(4, 4\)"),
        (lambda p: rewrite(p, "phase", lambda a: a[1:]), r"phase\.npy has 4 rows"),
        (lambda p: rewrite(p, "predicted", lambda a: a[1:]), "predicted has 2 rows for 3 tokens"),
        (lambda p: rewrite(p, "embedding", lambda a: a[1:]), "trace, embedding has 0 rows; rec"),
        (
            lambda p: rewrite(p, "phase", lambda a: a[::-1].copy()),
            "sequence 0 goes from decode back to prefill",
        ),
        (lambda p: further(p, "predicted_2"), "has no array predicted_2"),
        (lambda p: further(p, "predicted"), r"predicted has rows of \(2, 5\), not \(1, 5\)"),
    ],
)
def test_a_broken_trace_is_one_line(path, damage, says):
    write(path, whole_rows(0, 2, 3), predictions={"gate": {"array": "predicted", "made": ""}})
    damage(path)
    with pytest.raises(InputError, match=says) as caught:
        open_trace(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["scores", "predicted", "hidden"])
def test_an_array_that_not_every_run_reads_is_checked_when_it_is_asked_for(path, name):
    write(path, whole_rows(0, 2, 3), predictions={"gate": {"array": "predicted", "made": ""}})
    file = path / f"{name}.npy"
    flip(file)
    trace = open_trace(path)
    others = {"scores", "predicted", "hidden"} - {name}
    assert all(isinstance(trace.arrays[other], np.memmap) for other in others)
    for _ in range(2):
        with pytest.raises(InputError, match=rf"{name}\.npy is not what was written") as caught:
            _ = trace.arrays[name]
        assert str(path) in str(caught.value)
    flip(file)
    assert np.array_equal(open_trace(path).arrays[name], np.load(file))
    assert set(trace.arrays) == {p.stem for p in path.glob("*.npy")}
    assert "other" not in trace.arrays
    assert trace.arrays.get("other") is None


def test_a_header_that_was_changed_to_fit_is_checked_against_the_arrays(path):
    write(path, rows(0, 2, 3) | {"ids": np.full((5, LAYERS, K), (4, 3))})
    document = json.loads((path / "trace.json").read_text())
    document["arrays"].pop("scores")
    change(path, arrays=document["arrays"], num_experts=4)
    with pytest.raises(InputError, match="names expert 4 of 4"):
        open_trace(path)


def test_embeddings_are_one_a_sequence(path):
    with pytest.raises(InputError, match="embedding has 1 rows"):
        write(path, whole_rows(0, 2, 3), {k: v[:0] if k == "embedding" else v
                                          for k, v in whole_rows(1, 2, 3).items()})  # fmt: skip


def test_prefill_after_decode_is_no_sequence(path):
    arrays = rows(0, 2, 3)
    arrays["phase"] = arrays["phase"][::-1]
    with pytest.raises(InputError, match="from decode back to prefill"):
        write(path, arrays)


def test_an_empty_trace_is_refused(path):
    with pytest.raises(InputError, match="it has no token"):
        write(path, {k: v[:0] for k, v in rows(0, 1, 1).items()})


def test_folder_without_a_trace_is_refused(path):
    with pytest.raises(InputError, match="not a trace's folder"):
        open_trace(path)


def test_a_full_disk_leaves_no_array_behind(tmp_path: Path) -> None:
    """A limit of the size of files fails like a full disk, also when buffers are flushed."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (100, 5_000, 20_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(OSError, match="large"):
                write(tmp_path / "t", *[{"ids": np.zeros((50, LAYERS, K), np.uint8)}] * 100)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "greatest"), [("num_moe_layers", 10_000), ("num_experts", 65_536), ("top_k", 65_536)]
)
def test_dimensions_of_a_trace_are_whole_numbers_within_limits(name: str, greatest: int) -> None:
    good = {"model": "m", "workload": "w", "num_moe_layers": 2, "num_experts": 4, "top_k": 1}
    for value in (1, greatest):
        assert getattr(Header.model_validate(good | {name: value}), name) == value
    for wrong in (0, greatest + 1, 2.0, "2"):
        with pytest.raises(ValueError, match=name):
            Header.model_validate(good | {name: wrong})


@pytest.mark.parametrize(("experts", "named"), [(1, "uint8"), (256, "uint8"), (257, "uint16")])
def test_ids_of_256_experts_fit_in_a_byte(experts: int, named: str) -> None:
    header = Header(model="m", workload="w", num_moe_layers=2, num_experts=experts, top_k=1)
    assert header.ids_type == named
    assert np.iinfo(named).max >= experts - 1
    assert (header.version, header.ids_order, header.lossless) == (VERSION, "score", True)


def test_arrays_are_a_mapping_whose_names_need_no_reading(path, monkeypatch):
    write(path, whole_rows(0, 2, 3))
    arrays = open_trace(path).arrays
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("an array is read"))
    names = [*arrays]
    assert len(arrays) == len(names) == len({*names})
    assert {"ids", "sequence", "position", "phase", "chosen", "scores"} <= {*names}
    assert "nothing" not in arrays
    with pytest.raises(KeyError, match="nothing"):
        arrays["nothing"]


def test_shapes_that_no_array_can_have_are_refused(path):
    write(path, whole_rows(0, 2, 3))
    whole = (path / "trace.json").read_text()
    reshape(path, "scores", [5, -1, 4])
    with pytest.raises(InputError, match=r"a broken trace, scores has shape \(5, -1, 4\); record"):
        open_trace(path)
    arrays = json.loads(whole)["arrays"]
    change(path, arrays=arrays | {"colours": arrays["ids"]})
    with pytest.raises(InputError, match="a broken trace, unknown array 'colours'; record or"):
        open_trace(path)


def test_an_array_that_is_read_later_has_a_row_for_each_token(path):
    write(path, whole_rows(0, 2, 3))
    rewrite(path, "hidden", lambda array: array[1:])
    trace = open_trace(path)
    with pytest.raises(InputError, match=r"a broken trace, hidden\.npy has 4 rows; record"):
        _ = trace.hidden_TLH
