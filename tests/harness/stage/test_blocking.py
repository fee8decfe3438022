"""Who waits for copies: the thread that submits them, where they are from pageable memory."""

import pytest

from moebench.harness.stage.simulated import copies_block
from moebench.substrate.machines.profile import load_profile
from moebench.systems.options import build


@pytest.mark.parametrize(
    ("machine", "options", "blocks"),
    [
        ("a6000", {}, False),  # pinned
        ("a6000", {"pinned_copies": "false"}, True),
        ("a6000@daop", {}, True),  # the profile's software copies from pageable memory
        ("a6000@daop", {"pinned_copies": "true"}, False),
        ("a6000@daop", {"blocking_copies": "false"}, False),  # a thread of its own submits them
        ("a6000", {"blocking_copies": "true"}, True),
    ],
)
def test_pageable_copies_keep_the_thread_that_submits_them(machine, options, blocks):
    system = build("moe-ondemand", options)
    assert copies_block(system.runtime, load_profile(machine)) is blocks
