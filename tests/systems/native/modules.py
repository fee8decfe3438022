"""Fakes of packages: modules that note what is called, and jobs of their runs."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from moebench.systems.native.base import Job

Calls = list[tuple[Any, ...]]


def noting(calls: Calls, name: str, answer: Any = None) -> Callable[..., Any]:
    """Return a function that notes its name and arguments, and returns an answer."""

    def called(*given: Any, **more: Any) -> Any:
        calls.append((name, *given, more))
        return answer

    return called


def put_in_place(patch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    """Put a module with these contents in the place of a package."""
    module = ModuleType(name)
    vars(module).update(contents)
    patch.setitem(sys.modules, name, module)


def job(folder: Path, batch: int = 2, **options: Any) -> Job:
    return Job(
        adapter="tests", libraries=(), model=str(folder / "model"), folder=str(folder),
        options=options, context=96, batch=batch,
    )  # fmt: skip


class FakeModel:
    """A model of Transformers that notes whether it was put into evaluation mode."""

    _no_split_modules = ("Layer",)

    def __init__(self, calls: Calls, modules: tuple[Any, ...] = ()) -> None:
        self.calls, self._modules = calls, modules
        self.generation_config = SimpleNamespace()

    def eval(self) -> "FakeModel":
        self.calls.append(("eval",))
        return self

    def modules(self) -> tuple[Any, ...]:
        return self._modules


class Parameter:
    """A parameter of some elements of four bytes; DeepSpeed notes where it is."""

    def __init__(self, elements: int, where: Any = None) -> None:
        self.elements = self.ds_numel = elements
        self.ds_tensor = SimpleNamespace() if where is None else SimpleNamespace(
            final_location=where
        )  # fmt: skip

    def numel(self) -> int:
        return self.elements

    def element_size(self) -> int:
        return 4
