"""Workers of a Ray cluster, with a made-up Ray."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from moebench.harness.sweep.pool import Lost
from moebench.substrate.errors import InputError, UsageError

NAME = "moebench.harness.sweep.cluster"


class RayError(Exception):
    """In place of Ray's own."""


class Ray(ModuleType):
    """A cluster that offers some resources, and actors that finish at once."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.offered: dict[str, float] = {"CPU": 3.0}
        self.history: list[Any] = []
        self.outcomes: dict[str, Any] = {}
        self.patience: list[bool] = []

    def init(self, **options: Any) -> None:
        self.history.append(("init", options["address"], options["log_to_driver"]))
        if options["address"] == "broken":
            raise RuntimeError("no\n  head")

    def cluster_resources(self) -> dict[str, float]:
        return self.offered

    def remote(self, **needed: Any) -> Any:
        def of(kind: Any) -> Any:
            def make(*given: Any) -> Any:
                self.history.append(("actor", kind.__name__, needed, given))
                run = SimpleNamespace(remote=lambda job, code: f"{job} {code}")
                return SimpleNamespace(run=run)

            return SimpleNamespace(remote=make)

        return of

    def wait(self, pending: list[str], num_returns: int, timeout: float) -> Any:
        assert (num_returns, timeout) == (1, 10.0)
        if self.patience:
            self.patience.pop()
            return [], pending
        return pending[:1], pending[1:]

    def get(self, reference: str) -> Any:
        outcome = self.outcomes.get(reference, f"outcome of {reference}")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def kill(self, actor: Any) -> None:
        self.history.append("kill")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    found = Ray()
    exceptions = ModuleType("ray.exceptions")
    exceptions.RayError = RayError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", found)
    monkeypatch.setitem(sys.modules, "ray.exceptions", exceptions)
    return found


@pytest.fixture
def cluster(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module with the made-up Ray, which other tests do not see."""
    before = sys.modules.pop(NAME, None)
    module = import_module(NAME)
    monkeypatch.setattr(module, "code_hash", lambda: "code")
    yield module
    sys.modules.pop(NAME, None)
    if before is not None:
        sys.modules[NAME] = before


def test_there_are_as_many_workers_as_offered_or_allowed(cluster: Any, ray: Ray) -> None:
    assert cluster.RayWorkers(None, True).size == 3
    assert cluster.RayWorkers(None, True, limit=2).size == 2
    assert cluster.RayWorkers(None, True, limit=9).size == 3
    with pytest.raises(UsageError, match=r"offers moebench-local; start it with --resources='\{"):
        cluster.RayWorkers(None, True, local=True)
    ray.offered = {"moebench-local": 2.0}
    assert cluster.RayWorkers(None, True, local=True).size == 2
    with pytest.raises(UsageError, match=r"^no node of the Ray cluster offers CPU$"):
        cluster.RayWorkers(None, True)


def test_an_actor_is_made_for_a_workers_first_cell(cluster: Any, ray: Ray) -> None:
    ray.offered = {"moebench-local": 2.0}
    workers = cluster.RayWorkers(Path("data"), True, local=True)
    workers.send(1, "a")
    assert workers.wait() == [(1, "outcome of a code")]
    workers.send(1, "b")
    workers.send(0, "c")
    actors = [entry for entry in ray.history if entry[0] == "actor"]
    assert len(actors) == 2
    _, kind, needed, (data, scratch, samples) = actors[0]
    assert kind == "Worker"
    assert needed == {"num_cpus": 1, "max_restarts": 0, "resources": {"moebench-local": 1.0}}
    assert (data, scratch.name, samples) == (Path("data").absolute(), "moebench", True)
    assert workers.wait() == [(1, "outcome of b code")]
    workers.release(1)
    workers.release(1)
    assert ray.history.count("kill") == 1
    workers.close()
    assert ray.history.count("kill") == 2
    plain = cluster.RayWorkers
    ray.offered = {"CPU": 1.0}
    plain(None, False).send(0, "d")
    assert ray.history[-1][2]["resources"] == {}
    assert ray.history[-1][3][0] is None


def test_a_lost_actor_is_made_again(cluster: Any, ray: Ray) -> None:
    workers = cluster.RayWorkers(None, True)
    ray.outcomes["a code"] = RayError("the node\n died " + "x" * 300)
    workers.send(0, "a")
    ((worker, lost),) = workers.wait()
    assert worker == 0
    assert isinstance(lost, Lost)
    assert lost.why.startswith("RayError: the node died xxx")
    assert len(lost.why) == len("RayError: ") + 200
    assert ray.history[-1] == "kill"
    workers.send(0, "b")
    assert sum(entry[0] == "actor" for entry in ray.history) == 2


def test_waiting_ends_when_no_node_is_left(cluster: Any, ray: Ray) -> None:
    workers = cluster.RayWorkers(None, True)
    workers.send(0, "a")
    ray.patience = [True, True]
    assert workers.wait() == [(0, "outcome of a code")]
    workers.send(0, "b")
    ray.patience, ray.offered = [True], {}
    with pytest.raises(InputError, match="no node of the Ray cluster is left that offers CPU"):
        workers.wait()


def test_an_address_is_tried_before_ray_waits_for_it(
    cluster: Any, ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []

    def connect(address: Any, timeout: float) -> Any:
        tried.append((address, timeout))
        if address[0] == "nobody":
            raise ConnectionRefusedError(111, "Connection refused")
        return SimpleNamespace(close=lambda: tried.append("closed"))

    monkeypatch.setattr(cluster.socket, "create_connection", connect)
    cluster.connect("ray://[::1]:6379")
    cluster.connect("auto")
    assert tried == [(("::1", 6379), 10.0), "closed"]
    assert ray.history == [("init", "ray://[::1]:6379", False), ("init", "auto", False)]
    for address, said in (("nobody:1", "Connection refused"), ("broken", "no head")):
        with pytest.raises(InputError, match=f"--ray {address}: no Ray cluster answers.*{said}"):
            cluster.connect(address)
