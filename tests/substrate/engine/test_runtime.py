"""Forms that a system may declare, and runtime options that a machine does not support."""

import pytest

from moebench.substrate.engine.runtime import Runtime, Supports, check_forms, refuse
from moebench.substrate.errors import UsageError
from moebench.substrate.models.shape import Form


def test_defaults() -> None:
    plain = Runtime()
    true = {"overlap", "parallel_reads", "prediction_python"}
    nothing = {"blocking_copies", "pinned_copies", "expert_precision", "host_experts", "threads"}
    others = {"host_kernels": "unpacking", "forms": (Form(),)}
    for name in Runtime.__slots__:
        wanted = others.get(name, None if name in nothing else name in true)
        assert getattr(plain, name) == wanted, name
    assert (Supports(where="x").forms, Supports(where="x").divides) == (True, False)
    assert Supports(where="x").only == {}


HALF = Form("half", share=0.5, pool=0.4)


@pytest.mark.parametrize(
    "forms",
    [
        (Form(),), (Form(), HALF), (Form(), HALF, Form("int4", dtype="int4", pool=0.5)),
        (Form(), Form("whole", share=1.0, pool=0.01)),
    ],
)  # fmt: skip
def test_forms_that_a_system_may_have(forms: tuple[Form, ...]) -> None:
    check_forms(forms)


@pytest.mark.parametrize(
    ("forms", "says"),
    [
        ((), "form 0 is None; allowed: the whole record"), ((HALF,), "form 0 is Form.*half"),
        ((Form(dtype="int4"),), "form 0 is"), ((Form(), HALF, Form()), "pool between 0 and 1"),
        ((Form(), HALF._replace(share=0.0)), "allowed: share more than 0 to 1"),
        ((Form(), HALF._replace(share=1.01)), "allowed: share more than 0 to 1"),
        ((Form(), HALF._replace(pool=0.0)), "pool between 0 and 1"),
        ((Form(), HALF._replace(pool=1.0)), "pool between 0 and 1"),
        ((Form(), HALF, HALF._replace(pool=0.6)), "leave no slot to form 0; allowed: less than 1"),
    ],
)  # fmt: skip
def test_other_forms_are_refused(forms: tuple[Form, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_forms(forms)
    if forms and forms[0].full:
        check_forms(forms, one_each=True)  # no form has slots of its own
    else:
        with pytest.raises(UsageError, match="form 0"):
            check_forms(forms, one_each=True)


ONLY = {"overlap": (True, "runs lanes at once"), "threads": (None, "takes all cores")}


@pytest.mark.parametrize(
    ("runtime", "supports", "says"),
    [
        ({"divides": True}, {}, "here: has no KV cache in host memory and computes passes whole, "
         "but mine divides them into micro-batches"),
        ({"divides": True, "overlap": False}, {"divides": True, "only": ONLY},
         "here: runs lanes at once, but mine has overlap=false; allowed: --set overlap=true"),
        ({"threads": 3}, {"only": ONLY},
         "here: takes all cores, but mine has threads=3; allowed: --set threads=null"),
        ({"forms": (Form(), HALF)}, {"forms": False},
         "here: holds whole records only, but mine has the form half; allowed: a simulated"),
    ],
)  # fmt: skip
def test_what_a_machine_does_not_support(runtime: dict, supports: dict, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        refuse("mine", Runtime(**runtime), Supports(where="here", **supports))
    assert str(caught.value).startswith(says)


def test_what_a_machine_supports() -> None:
    refuse("mine", Runtime(), Supports(where="here", forms=False, only=ONLY))
    refuse("mine", Runtime(divides=True), Supports(where="here", divides=True))
    refuse("mine", Runtime(forms=(Form(), HALF)), Supports(where="here"))
