"""OpenCompass model class that sends each request to the moebench process that started it.

Only the standard library and OpenCompass are imported here, so that OpenCompass may have its own
environment.  The first line that it sends over a local socket is a token from its environment.
Then a request is one line of JSON, and so is its answer:

    {"ask": "generate", "inputs": [...], "max_out_len": 16, "stops": []}   {"texts": [...]}
    {"ask": "ppl", "inputs": [...], "mask_length": null}                   {"values": [...]}
    {"ask": "token_len", "input": "..."}                                   {"value": 12}
    any                                                                    {"failed": "..."}
"""

import json
import os
import socket
from typing import Any

import numpy as np
from opencompass.models.base import BaseModel, LMTemplateParser


class MoeBenchModel(BaseModel):
    """OpenCompass model whose computation runs in the moebench process.

    Args:
        path: path of the socket on which the moebench process listens.
        max_seq_len: tokens of the longest prompt; OpenCompass omits examples from longer ones.
    """

    def __init__(self, path: str, max_seq_len: int = 2048, tokenizer_only: bool = False,
                 **_: Any) -> None:  # fmt: skip
        self.path, self.max_seq_len, self.tokenizer_only = path, max_seq_len, tokenizer_only
        self.template_parser = LMTemplateParser()
        self.eos_token_id = None
        self.generation_kwargs: dict[str, Any] = {}
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.connect(path)
        self._lines = self._connection.makefile("rw", encoding="utf-8")
        self._lines.write(os.environ["MOEBENCH_OPENCOMPASS_TOKEN"] + "\n")

    def _ask(self, **request: Any) -> Any:
        self._lines.write(json.dumps(request) + "\n")
        self._lines.flush()
        line = self._lines.readline()
        if not line:
            raise ConnectionError("the moebench process has ended")
        answer = json.loads(line)
        if "failed" in answer:
            raise RuntimeError(answer["failed"])
        return answer

    def generate(
        self, inputs: list[str], max_out_len: int, stopping_criteria: list[str] | None = None,
        **_: Any,
    ) -> list[str]:  # fmt: skip
        """Return greedily generated texts, up to end-of-text or a stop string."""
        asked = self._ask(
            ask="generate", inputs=[*map(str, inputs)], max_out_len=max_out_len,
            stops=stopping_criteria or [],
        )  # fmt: skip
        texts: list[str] = asked["texts"]
        return texts

    def get_ppl(self, inputs: list[str], mask_length: list[int] | None = None) -> Any:
        """Return each text's mean negative log-likelihood, as OpenCompass's models compute it."""
        mask = None if mask_length is None else [int(n) for n in mask_length]
        return np.array(
            self._ask(ask="ppl", inputs=[*map(str, inputs)], mask_length=mask)["values"]
        )

    def get_token_len(self, prompt: str, add_special_tokens: bool = True) -> int:
        """Return the number of tokens of a prompt."""
        return int(self._ask(ask="token_len", input=str(prompt))["value"])
