"""Recorded streams: how many tokens they need, and how many are read."""

from pathlib import Path

import numpy as np

from moebench.harness.reproduce.field import recorded
from tests.harness.reproduce.test_field import evidence, record


def test_streams_need_96_tokens_and_are_cut(tmp_path: Path) -> None:
    """A quick reproduction reads 256 tokens of each, a full one 1024."""
    for name, tokens in (("m__a", 96), ("m__b", 95), ("m__c", 1100)):
        record(tmp_path, name, np.zeros((tokens, 1, 1), int), 4)
    quick = evidence(tmp_path, data_dir=tmp_path)
    assert [(one.workload, one.tokens) for one in recorded.streams(quick)] == [
        ("a", 96), ("c", 256),
    ]  # fmt: skip
    assert [one.tokens for one in recorded.streams(quick, whole=True)] == [96, 1100]
    assert recorded.streams(quick) is recorded.streams(quick)
    full = evidence(tmp_path, data_dir=tmp_path)
    object.__setattr__(full, "quick", False)
    assert [one.tokens for one in recorded.streams(full)] == [96, 1024]
    assert (recorded.most_tokens(quick), recorded.most_tokens(full)) == (256, 1024)
