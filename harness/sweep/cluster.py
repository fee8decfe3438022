"""Runs sweep cells on a Ray cluster: one actor per worker; this process stores the results.

Every machine needs the same moebench version, and weights and data at the same paths.  Cells with
``machine: local`` measure times: they run only on nodes that offer the custom resource

    ray start --address=HEAD:6379 --resources='{"moebench-local": 1}'

one cell at a time for each unit, so that no two measurements share a machine.
"""

import logging
import socket
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from moebench.harness.run.identity import code_hash
from moebench.harness.sweep.pool import Lost, Outcome
from moebench.harness.sweep.worker import Job, Worker
from moebench.substrate.errors import InputError, UsageError

#: Ray's custom resource that marks a machine as available for measurements.
LOCAL_RESOURCE = "moebench-local"

#: Timeout in seconds for a connection to the cluster's head.
CONNECT_S = 10.0

#: Interval in seconds of the check that some node can still run the waiting cells.
PATIENCE_S = 10.0


def connect(address: str) -> None:
    """Connect this process to a Ray cluster.

    Raises InputError: no cluster can be reached at this address.
    """
    # Try the address first, since Ray itself waits for minutes before it gives up.
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (RayError, RuntimeError, ValueError, OverflowError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"--ray {address}: no Ray cluster answers there ({reason})") from error


class RayWorkers:
    """Sweep workers as actors of the connected Ray cluster, each created for its first cell.

    Args:
        limit: maximum number of workers; None for one per CPU (or unit of the resource).
        local: whether cells measure times, so that each worker needs one unit of `LOCAL_RESOURCE`.

    Raises UsageError: no node offers what the cells need.
    """

    def __init__(
        self, data_dir: Path | None, samples: bool, limit: int | None = None, local: bool = False
    ) -> None:
        self._resources = {LOCAL_RESOURCE: 1.0} if local else {}
        self._needed = LOCAL_RESOURCE if local else "CPU"
        offered = self._offered()
        if not offered:
            hint = f"; start it with --resources='{{\"{LOCAL_RESOURCE}\": 1}}'" if local else ""
            raise UsageError(f"no node of the Ray cluster offers {self._needed}{hint}")
        self.size = min(offered, limit) if limit else offered
        data = None if data_dir is None else data_dir.absolute()
        self._options = (data, Path(tempfile.gettempdir()) / "moebench", samples)
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, int] = {}

    def _offered(self) -> int:
        found: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        return int(found.get(self._needed, 0))

    def send(self, worker: int, job: Job) -> None:
        """Start a cell on a worker, creating its actor if there is none."""
        if worker not in self._actors:
            actor = ray.remote(num_cpus=1, max_restarts=0, resources=self._resources)(Worker)
            self._actors[worker] = actor.remote(*self._options)
        self._pending[self._actors[worker].run.remote(job, code_hash())] = worker

    def wait(self) -> list[tuple[int, Outcome]]:
        """Wait until an actor ends its cell, and return the outcomes by worker."""
        while True:
            ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=PATIENCE_S)
            if ready:
                return [self._receive(reference) for reference in ready]
            if not self._offered():
                raise InputError(f"no node of the Ray cluster is left that offers {self._needed}")

    def _receive(self, reference: Any) -> tuple[int, Outcome]:
        worker = self._pending.pop(reference)
        try:
            return worker, ray.get(reference)
        except RayError as error:  # the actor, its node or its result was lost
            self.release(worker)
            return worker, Lost(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")

    def release(self, worker: int) -> None:
        """End a worker's actor, since another actor may be waiting for its CPU."""
        if worker in self._actors:
            ray.kill(self._actors.pop(worker))

    def close(self) -> None:
        """End all workers' actors."""
        for worker in list(self._actors):
            self.release(worker)
