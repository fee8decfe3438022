"""What a live run feeds its engine and scores, with an engine that answers as a test says."""

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from moebench.harness.run import live
from moebench.harness.run.live import Answers, LiveSession, decoded, open_inputs, sampling_of, up_to
from moebench.harness.run.questions import Question
from moebench.substrate.engine.records import Generation
from moebench.substrate.models.sampling import Sampling

END = 9


def spec(**more: Any) -> Any:
    base = {"scoring": "fixed-length", "batch": 2, "new_tokens": 4, "temperature": 0.0,
            "top_p": 1.0, "seed": 3, "expert_dtype": None}  # fmt: skip
    return SimpleNamespace(**base | more)


QUESTIONS = [Question([1, 2], [5], ([5],)), Question([3], [6], ([6],)), Question([4, 4, 4, 4])]


def session(questions: Any = QUESTIONS, metric: str = "exact", **more: Any) -> Any:
    made = object.__new__(LiveSession)
    made.spec, made.questions = spec(**more), questions
    tokenizer = SimpleNamespace(
        decode=lambda ids, skip_special_tokens: f"{ids}{skip_special_tokens}"
    )
    made.weights = SimpleNamespace(tokenizer=tokenizer, end=END, sharing=lambda: "shared",
                                   share=lambda one: ("share", one))  # fmt: skip
    made.workload = SimpleNamespace(metric=metric)
    made.sample = SimpleNamespace(examples=[SimpleNamespace(answer=n) for n in (1, 0, 1)])
    return made


class Engine:
    """Notes what is generated, and answers with given texts."""

    def __init__(self, *texts: list[int]) -> None:
        self.asked: list[Any] = []
        self.texts = [*texts]

    def generate(self, *given: Any) -> Generation:
        self.asked.append(given)
        return Generation([*self.texts], 0)


class Accuracy:
    """Notes what is recorded."""

    def __init__(self, *given: Any) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.calls.append((name, *given))


@pytest.fixture(autouse=True)
def noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "Accuracy", Accuracy)


def test_lengths_of_a_live_run() -> None:
    made = session()
    assert made.longest == 4 + 4
    assert made.note == (
        "prompts of 1 to 4 tokens, as the computing model's own tokenizer counts them"
    )
    assert made.share("one") == ("share", "one")


@pytest.mark.parametrize(
    ("scoring", "texts"),
    [("fixed-length", [[1, END, 2], [3]]), ("generation", [[1, END], [3]]), ("likelihood", []),
     ("prefill", [])],
)  # fmt: skip
def test_texts_that_the_model_wrote_by_itself(scoring: str, texts: Any) -> None:
    made = session(scoring=scoring)
    assert made.written(Generation([[1, END, 2], [3]], 0)) == texts


@pytest.mark.parametrize(("scoring", "most"), [("fixed-length", 3), ("prefill", 1)])
def test_the_first_batches_are_begun_without_scoring(scoring: str, most: int) -> None:
    engine, made = Engine(), session(scoring=scoring)
    stage: Any = SimpleNamespace(engine=engine)
    made.begin(stage, 3, batches=2)
    assert engine.asked == [([[1, 2], [3]], most, [[5], [6]]), ([[4, 4, 4, 4]], most, [[]])]
    engine.asked.clear()
    made.begin(stage, 30)
    assert engine.asked == [([[1, 2], [3]], 4 if most == 3 else 1, [[5], [6]])]


def test_tokens_are_drawn_where_a_temperature_is_given() -> None:
    assert sampling_of(spec()) is None
    assert sampling_of(spec(temperature=0.5, top_p=0.9)) == Sampling(0.5, 0.9, 3)


def test_a_text_is_cut_after_its_end_token() -> None:
    assert up_to(END, [1, END, 2, END]) == [1, END]
    assert up_to(END, [1, 2]) == up_to(None, [1, 2]) == [1, 2]
    tokenizer: Any = session().weights.tokenizer
    assert decoded(tokenizer, [(1, 2), []]) == ["[1, 2]False", "[]False"]


ROWS = slice(0, 2)


@pytest.mark.parametrize(
    ("options", "kept", "ended"),
    [
        ({}, [[5, 1, END, 2], [6, 7, 7, 7]], None),
        ({"scoring": "generation"}, [[5, 1, END], [6, 7, 7, 7]], END),
        ({"scoring": "generation", "temperature": 0.5}, [[5, 1, END], [6, 7, 7, 7]], END),
        ({"temperature": 0.5}, [[5, 1, END, 2], [6, 7, 7, 7]], None),
    ],
)
def test_answers_are_written_after_their_cues_and_scored(
    options: dict[str, Any], kept: list[list[int]], ended: int | None
) -> None:
    engine = Engine([5, 1, END, 2], [6, 7, 7, 7])
    decoder: Any = SimpleNamespace(history="history", sampling=None)
    made = session(**options)
    made.attach(decoder)
    assert decoder.sampling == sampling_of(made.spec)
    (generation,) = made.answer(SimpleNamespace(engine=engine), ROWS)
    assert generation.tokens == engine.texts
    assert engine.asked == [([[1, 2], [3]], 4 + 1, [[5], [6]], ended)]
    replied = ("replied", ROWS, kept, made.sample.examples[ROWS],
               [f"{one[1:]}False" for one in kept], [True, False])  # fmt: skip
    if options == {"temperature": 0.5}:
        replied = ("answered", ROWS, kept, None)
    compared = ("compare", ROWS, "shared", [[1, 2], [3]], kept, "history")
    assert made.answers.accuracy.calls == [replied, compared]


#: The first question has two options after a cue of one token, the second one has three.
OPTIONS = [
    Question([1, 2], [5], ([5, 0], [5, 1, 2]), (1, 1), ("a", "b")),
    Question([3], [], ([2], [1], [0]), (0, 0, 0), ("c", "d", "e")),
]


def likelihood(row: int, ids: list[int], first: int, history: torch.Tensor) -> float:
    chosen = history[:, row].log_softmax(-1)
    return sum(float(chosen[n, one]) for n, one in enumerate(ids) if n >= first)


@pytest.mark.parametrize("scoring", ["likelihood", "prefill"])
def test_the_likeliest_option_is_the_answer(scoring: str, monkeypatch: pytest.MonkeyPatch) -> None:
    history = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))

    class Decoder:
        @property
        def history(self) -> Any:
            return [*history]

        def pass_logits(self) -> list[torch.Tensor]:
            """Of a text's rows, the last of its prompt's is the first that predicts."""
            return [torch.cat((torch.zeros(len(one.prompt) - 1, 4), history[:, b]))
                    for b, one in enumerate(OPTIONS)]  # fmt: skip

    class Forced(Engine):
        def generate(self, prompts: Any, steps: int, forced: Any = None) -> Generation:
            self.asked.append((prompts, steps, forced))
            return Generation([[*one, 7, 7] for one in forced or [[]] * 2], 0)

    picked: list[Any] = []

    def choose(workload: Any, texts: Any, values: list[float]) -> int:
        picked.append((texts, values))
        return max(range(len(values)), key=values.__getitem__)

    monkeypatch.setattr(live, "choose", choose)
    engine, made = Forced(), session(OPTIONS, scoring=scoring)
    answers = Answers(made, Decoder())  # type: ignore[arg-type]
    found = answers.batch(engine, ROWS)  # type: ignore[arg-type]
    assert len(found) == 3
    # The first question's last option is repeated beside the second one's third.
    forced = [[[5, 0], [2]], [[5, 1, 2], [1]], [[5, 1, 2], [0]]]
    prompts = [[1, 2], [3]]
    if scoring == "likelihood":
        assert engine.asked == [(prompts, max(map(len, one)), one) for one in forced]
        compared = [("compare", ROWS, "shared", prompts, one, [*history]) for one in forced]
        got = answers.accuracy.calls[:3]
        assert [call[:5] for call in got] == [call[:5] for call in compared]
    else:
        assert engine.asked == [
            ([[*p, *f[:-1]] for p, f in zip(prompts, one, strict=True)], 1, None) for one in forced
        ]
    expected = [
        (one.texts, [likelihood(b, ids, first, history)
                     for ids, first in zip(one.continuations, one.counted, strict=True)])
        for b, one in enumerate(OPTIONS)
    ]  # fmt: skip
    for (texts, values), (those, right) in zip(picked, expected, strict=True):
        assert texts == those
        assert values == pytest.approx(right, abs=1e-5)
    best = [max(range(len(v)), key=v.__getitem__) for _, v in expected]
    values = [float(a == b) for a, b in zip(best, (1, 0), strict=True)]
    assert answers.accuracy.calls[-1] == ("answered", ROWS, [[one] for one in best], values)


def test_plain_text_is_read_token_by_token() -> None:
    history = torch.randn(2, 1, 4, generator=torch.Generator().manual_seed(0))
    decoder: Any = SimpleNamespace(history=[*history])
    made = session([Question([1], [], ([2, 3],), (0,), ("x",))], "perplexity", scoring="likelihood")
    answers = Answers(made, decoder)
    engine: Any = Engine([2, 3])
    answers.batch(engine, slice(0, 1))
    name, rows, (value,), counted = answers.accuracy.calls[-1]
    assert (name, rows, counted) == ("read", slice(0, 1), [2])
    assert value == pytest.approx(likelihood(0, [2, 3], 0, history), abs=1e-5)


# ------------------------------------------------------------------------- sessions


def test_another_spec_shares_weights_but_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "under", lambda *given: (("system", *given), {"new": "1"}))
    monkeypatch.setattr(live, "replace", lambda one, **changes: (one, changes))
    made = session()
    made.hashes, made.data_dir = {"old": "1"}, Path("d")
    other = spec(expert_dtype="int8")
    of, changes = made.varied(other)
    assert of is made
    assert changes == {
        "spec": other, "system": ("system", other, {"old": "1"}, Path("d")), "hashes": {"new": "1"},
        "weights": (made.weights, {"shared": None, "expert_dtype": "int8"}),
    }  # fmt: skip


@pytest.mark.parametrize("reads_norms", [True, False])
def test_a_stage_is_opened_with_memory_for_the_longest_text(
    reads_norms: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, norms = session(), []
    made.system = SimpleNamespace(reads_weight_norms=reads_norms, weight_norms=norms.append)
    made.weights.weight_norms = lambda scratch: f"norms in {scratch}"
    made.weights.request = lambda *given: given
    monkeypatch.setattr(live, "open_stage", lambda *given: given)
    with ExitStack() as stack:
        request, of = made.open(Path("here"), True, stack)
        assert of is stack
    assert request[:3] == (made.spec, made.system, 8)
    assert request[4:] == (Path("here"), True, made.note)
    assert norms == (["norms in here"] if reads_norms else [])
    # On a simulated machine a resident decoder computes; here, the given one.
    attached: list[Any] = []
    monkeypatch.setattr(LiveSession, "attach", lambda self, decoder: attached.append(decoder))
    made.weights.resident = lambda scoring, system: ("decoder", ("found", scoring))
    made.wrap = lambda model: ("wrapped", model)
    assert request[3](None) == ("wrapped", ("found", "fixed-length"))
    assert request[3]("given") == "given"
    assert attached == ["decoder", "given"]


def test_inputs_are_checked_before_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = SimpleNamespace(texts="texts", checkpoint="checkpoint", hashes={"w": "1"})
    sample, checked = SimpleNamespace(data_hash="d1"), []
    monkeypatch.setattr(live, "open_weights", lambda of: weights)
    monkeypatch.setattr(live, "questions_of", lambda *given: (sample, given))
    monkeypatch.setattr(live, "check_questions", lambda *given: checked.append(given))
    of = spec()
    asked = (of, Path("d"), "texts")
    assert open_inputs(of, Path("d")) == (weights, sample, asked, {"w": "1", "data": "d1"})
    assert checked == [(of, sample, asked, "checkpoint")]
