"""EdgeMoE on the command line: a run searches widths; a replay and this computer are refused."""

import pytest

from tests.harness.commands import call, refused

pytestmark = pytest.mark.usefixtures("tiny_models")


@pytest.mark.slow
def test_a_run_searches_widths_and_a_replay_does_not():
    small = ("--setting", "D1", "--prompts", "2", "--new-tokens", "4", "--calibrate-texts", "2")
    quick = ("--set", "place.tokens=64")
    called = call("run", "--system", "edgemoe", *small, *quick, "--json")
    assert called.code == 0, called.err
    found = called.json
    assert set(found["provenance"]["learnt"]["place"]) == {"from", "tokens", "widths", "loss"}
    assert float(found["provenance"]["learnt"]["place"]["loss"].split()[0]) <= 2
    assert any("each expert has one record, in a form of its own" in n for n in found["notes"])
    line = refused("run", "--system", "edgemoe", *small, "--routing", "drawn")
    assert "holds no losses of rounded weights" in line
    assert line.endswith("--set place.width=int4")
    drawn = ("--routing", "drawn", "--set", "place.width=int4", "--json")
    called = call("run", "--system", "edgemoe", *small, *drawn)
    assert called.code == 0, called.err


def test_this_computer_holds_no_records_of_mixed_sizes():
    line = refused("run", "--system", "edgemoe", "--setting", "D1", "--machine", "local")
    assert "holds whole records only, but edgemoe has the form int8" in line
