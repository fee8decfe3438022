"""A sweep on a Ray cluster of several nodes, one of which is lost during the sweep."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from moebench.harness.run.rules import resolve
from moebench.harness.sweep.execute import jobs_of, keep
from moebench.harness.sweep.planned import Planned
from moebench.harness.sweep.pool import schedule
from moebench.harness.sweep.worker import Failed
from moebench.results.store import Store
from tests.harness.commands import call

ray = pytest.importorskip("ray", reason="no Ray: pip install ray")

pytestmark = pytest.mark.usefixtures("tiny_models")

ROOT = Path(__file__).parents[3]
COUNT = 8


OPTIONS = {"include_dashboard": False, "object_store_memory": 80_000_000}


@pytest.fixture(scope="module")
def cluster(tiny_models: None) -> Iterator[Any]:
    """Start a head without CPUs, and two nodes with one CPU each; the tests' order matters."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        # Nodes are processes of this computer: they find the package as this test did.
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("OMP_NUM_THREADS", "1")
        for name in ("period", "initial_delay", "timeout"):
            patch.setenv(f"RAY_health_check_{name}_ms", "500")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **OPTIONS})
        try:
            made.nodes = [made.add_node(num_cpus=1, **OPTIONS) for _ in range(2)]
            made.wait_for_nodes()
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


@pytest.mark.slow
def test_a_lost_node_costs_only_the_cell_that_it_had(cluster: Any) -> None:
    from moebench.harness.sweep.cluster import RayWorkers, connect

    specs = [
        resolve(None, system="moe-ondemand", setting="S3", workload="arithmetic", prompts=1,
                new_tokens=3, seed=seed)
        for seed in range(COUNT)
    ]  # fmt: skip
    jobs = jobs_of(specs, Planned(None))
    store = Store(Path(".moebench"))
    starts: list[str] = []
    connect(cluster.address)
    with closing(RayWorkers(None, samples=False)) as workers:
        assert workers.size == 2
        ended = schedule(jobs, workers, lambda worker, job: starts.append(job.cell_id))
        for done, (worker, job, outcome) in enumerate(ended):
            assert not isinstance(outcome, Failed), outcome
            keep(store, job, outcome)
            if done == 0:  # this worker's next cell is lost with its node
                _lose_node_of(workers._actors[worker], cluster)
    ray.shutdown()
    assert len(store.finished(job.cell_id for job in jobs)) == len(jobs)
    assert len(store.runs()) == COUNT
    assert len(starts) > COUNT, "no cell had to be started again"


def _lose_node_of(actor: Any, cluster: Any) -> None:
    """Kill the node of an idle actor and its process, so that no later cell of it succeeds."""
    ask = actor.__ray_call__.remote(
        lambda _: (ray.get_runtime_context().get_node_id(), os.getpid())
    )
    node_id, process = ray.get(ask)
    (node,) = (node for node in cluster.nodes if node.node_id == node_id)
    os.kill(process, signal.SIGKILL)
    cluster.remove_node(node, allow_graceful=False)


@pytest.mark.slow
def test_sweep_on_a_cluster_equals_a_local_run(cluster: Any) -> None:
    cells = ("--settings", "S3", "--workloads", "arithmetic", "--prompts", "1", "--new-tokens", "3")
    called = call("sweep", "--systems", "moe-ondemand", *cells, "--ray", cluster.address)
    assert called.code == 0, called.err
    (document,) = Store(Path(".moebench")).runs()
    alone = call("run", "--system", "moe-ondemand", "--setting", "S3", "--workload", "arithmetic",
                 "--prompts", "1", "--new-tokens", "3", "--store", "alone", "--json")  # fmt: skip
    assert document["metrics"] == alone.json["metrics"]
    local = ("--systems", "moe-ondemand", *cells, "--machines", "local")
    called = call("sweep", *local, "--ray", cluster.address)
    assert (called.code, called.err.count("\n")) == (2, 2)
    assert called.err.startswith("1 cell to run, ")
    assert "no node of the Ray cluster offers moebench-local" in called.err
    cluster.add_node(num_cpus=1, resources={"moebench-local": 1}, **OPTIONS)
    called = call("sweep", *local, "--ray", cluster.address)
    assert called.code == 0, called.err
    assert [run["badge"] for run in Store(Path(".moebench")).runs()].count("measured") == 1


def test_no_cluster_is_one_line() -> None:
    called = call("sweep", "--systems", "moe-ondemand", "--settings", "S3", "--ray", "127.0.0.1:1")
    assert (called.code, called.err.count("\n")) == (2, 1)
    assert "no Ray cluster answers there" in called.err


@pytest.mark.slow
def test_search_on_a_cluster_equals_a_local_search(cluster: Any, tmp_path: Path) -> None:
    asked = ("search", "--setting", "S3", "--workload", "arithmetic", "--new-tokens", "3",
             "--systems", "moe-ondemand,fiddler", "--calibrate-texts", "2", "--trials", "2",
             "--jobs", "1", "--json")  # fmt: skip
    there = call(*asked, "--ray", cluster.address, "--store", tmp_path / "there")
    here = call(*asked, "--store", tmp_path / "here")
    assert there.code == here.code, there.err
    assert there.json["history"] == here.json["history"]
