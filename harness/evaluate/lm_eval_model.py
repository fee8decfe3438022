"""Model class ``moebench`` for lm-evaluation-harness: answers requests with a system.

Importing this module registers the class.  lm-eval 0.4.13 looks for models in its own table alone,
so its command knows this one as `python -m moebench.lm_eval`:

    python -m moebench.lm_eval run --model moebench \\
        --model_args system=smoe,setting=S3,alpha=0.25 --include_path DIR --tasks gsm8k

Arguments are the options of `moebench run`, with ``_`` for ``-``; of ``set`` several, separated by
``;``.  ``mode`` and ``max_length`` are `moebench eval`'s.
"""

import atexit
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any

from lm_eval import utils
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs

from moebench.harness.arguments import find_data_dir, parse_overrides, parse_rate
from moebench.harness.evaluate.responder import Ids, Pair
from moebench.harness.evaluate.session import (
    MAX_NEW_TOKENS,
    EvaluatedSession,
    prepare_evaluated,
    resolve_evaluated,
)
from moebench.harness.run.execute import Ready, started
from moebench.substrate.errors import UsageError


class RespondingLM(TemplateLM):
    """An lm-eval model that answers requests with a started run.

    Args:
        session: of the run, whose responder has its engine.
        progress: told how many requests of a call were answered, and how many there are.
    """

    def __init__(
        self, session: EvaluatedSession,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._session, self._progress = session, progress
        self._responder = session.responder

    @property
    def batch_size(self) -> int:
        """Number of requests decoded together."""
        return self._session.spec.batch

    @property
    def max_length(self) -> int:
        """Longest input in tokens, without a text's last token, which is not fed."""
        return self._session.max_length - 1

    @property
    def eot_token_id(self) -> int:
        """Token id that ends a text."""
        if self._session.weights.end is None:
            raise UsageError(
                f"{self._session.weights.checkpoint.path}: no file says which token ends a text, "
                "and begins one without context"
            )
        return self._session.weights.end

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> Ids:
        """Return the token ids of a text."""
        special = add_special_tokens is not False
        found: Ids = self._session.weights.tokenizer.encode(string, add_special_tokens=special).ids
        return found

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Generate greedily; requests with equal settings are batched."""
        texts: list[str] = []
        for _, equal in groupby(requests, key=lambda request: repr(request.args[1])):
            group = list(equal)
            asked = normalize_gen_kwargs(dict(group[0].args[1]), MAX_NEW_TOKENS)
            if asked["do_sample"]:
                raise UsageError("a task asks for sampled texts; moebench writes greedily")
            stops = handle_stop_sequences(asked["until"], eos=None)
            for some in self._batches(group):
                contexts = [request.args[0] for request in some]
                found = self._responder.write(contexts, asked["max_gen_toks"], stops)
                for request, text in zip(some, found, strict=True):
                    self.cache_hook.add_partial("generate_until", request.args, text)
                texts += found
                self._progress(len(texts), len(requests))
        return texts

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, Ids, Ids]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        answers: list[tuple[float, bool]] = []
        for some in self._batches(requests):
            found = self._responder.read([Pair(context, asked) for _, context, asked in some])
            for (text, *_), answer in zip(some, found, strict=True):
                answers.append((answer.log_likelihood, answer.greedy))
                if text is not None:  # windows of a text are kept together
                    self.cache_hook.add_partial("loglikelihood", text, answers[-1])
            self._progress(len(answers), len(requests))
        return answers

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Return each text's log-likelihood, computed in windows if it exceeds the context."""
        windows = [self._windows(request.args[0]) for request in requests]
        found = iter(self._loglikelihood_tokens([w for ones in windows for w in ones]))
        totals = [sum(next(found)[0] for _ in ones) for ones in windows]
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def _windows(self, text: str) -> list[tuple[None, Ids, Ids]]:
        rolling = utils.get_rolling_token_windows(
            token_list=self.tok_encode(text), prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length, context_len=1,
        )  # fmt: skip
        return [(None, *utils.make_disjoint_window(window)) for window in rolling]

    def _batches(self, requests: Sequence[Any]) -> Iterator[Sequence[Any]]:
        for first in range(0, len(requests), self.batch_size):
            yield requests[first : first + self.batch_size]


@register_model("moebench")
class MoeBenchLM(RespondingLM):
    """A `RespondingLM` whose run is described by lm-eval's ``--model_args``.

    The run's document, which `moebench run` would show, is in the results under
    ``config.moebench``.

    Args:
        batch_size: lm-eval's option; ``batch`` is the same.
        device, max_batch_size: lm-eval's too; a run has its machine, and a batch that is not tried.
    """

    def __init__(
        self, system: str, batch_size: int | str | None = None, device: str | None = None,
        max_batch_size: int | None = None, mode: str | None = None, max_length: int | None = None,
        store: str = ".moebench", data_dir: str | None = None, **options: Any,
    ) -> None:  # fmt: skip
        given = {"batch": batch_size, **options}
        if not str(given["batch"] or 1).isdecimal():
            raise UsageError(f"batch_size={given['batch']}: allowed: a number")
        given["batch"] = int(given["batch"] or 1)
        overrides = parse_overrides([pair for pair in str(given.pop("set", "")).split(";") if pair])
        given["emulated_link_gb_s"] = parse_rate("emulated_link", given.pop("emulated_link", None))
        given["device_memory_gib"] = given.pop("device_memory", None)
        folder = find_data_dir(None if data_dir is None else Path(data_dir))
        spec = resolve_evaluated(folder, mode, system=system, overrides=overrides, **given)
        session = prepare_evaluated(spec, folder, max_length)
        self._stack = ExitStack()
        atexit.register(self.close)
        self._ready: Ready = self._stack.enter_context(
            started(session, Path(store), lambda done, total: None)
        )
        session.responder.engine = self._ready.stage.engine
        super().__init__(session)

    def get_model_info(self) -> dict[str, Any]:
        """Return the run's document for lm-eval's results, if any request was computed."""
        generations = self._responder.generations
        return {"moebench": self._ready.document(generations)} if generations else {}

    def close(self) -> None:
        """Close the run."""
        self._stack.close()
