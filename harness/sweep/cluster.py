"""Runs cells on a Ray cluster: one actor for each worker; results come back to this process.

Every machine needs moebench at the same version, and the same paths where weights or data are
given.  Cells with ``machine: local`` measure: they run only where a node offers the custom resource

    ray start --address=HEAD:6379 --resources='{"moebench-local": 1}'

one at a time for each unit of it, so that no two measurements share a machine.
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

#: The custom resource of a machine that may be measured.
LOCAL_RESOURCE = "moebench-local"

#: How long a cluster's head may take to answer.
CONNECT_S = 10.0

#: How often it is checked that a node is left which can run the waiting cells.
PATIENCE_S = 10.0


def connect(address: str) -> None:
    """Join a cluster.

    Raises:
        InputError: there is none at this address.
    """
    # Ray itself waits for minutes before it gives up on an address.
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (RayError, RuntimeError, ValueError, OverflowError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"--ray {address}: no Ray cluster answers there ({reason})") from error


class RayWorkers:
    """Actors of a cluster that is connected already, each begun with its first cell.

    Args:
        limit: workers at most; None takes one for each CPU (or unit of the resource).
        local: for cells that measure: each worker holds one unit of `LOCAL_RESOURCE`.

    Raises:
        UsageError: no node offers what the cells need.
    """

    def __init__(
        self, data_dir: Path | None, samples: bool, limit: int | None = None, local: bool = False
    ) -> None:
        self._resources = {LOCAL_RESOURCE: 1.0} if local else {}
        self._needed = LOCAL_RESOURCE if local else "CPU"
        offered = self._offered()
        if not offered:
            hint = f"start it with --resources='{{\"{LOCAL_RESOURCE}\": 1}}'" if local else ""
            raise UsageError(f"no node of the Ray cluster offers {self._needed}; {hint}")
        self.size = min(offered, limit) if limit else offered
        data = None if data_dir is None else data_dir.absolute()
        self._options = (data, Path(tempfile.gettempdir()) / "moebench", samples)
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, int] = {}

    def _offered(self) -> int:
        found: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        return int(found.get(self._needed, 0))

    def send(self, worker: int, job: Job) -> None:
        """Start a cell, and first its actor where there is none."""
        if worker not in self._actors:
            actor = ray.remote(num_cpus=1, max_restarts=0, resources=self._resources)(Worker)
            self._actors[worker] = actor.remote(*self._options)
        self._pending[self._actors[worker].run.remote(job, code_hash())] = worker

    def wait(self) -> list[tuple[int, Outcome]]:
        """Outcomes of the first actors that have one."""
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
        except RayError as error:  # the actor, its node or its result is gone
            self.release(worker)
            return worker, Lost(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")

    def release(self, worker: int) -> None:
        """End an actor: its CPU may be what another one waits for."""
        if worker in self._actors:
            ray.kill(self._actors.pop(worker))

    def close(self) -> None:
        """End all actors."""
        for worker in list(self._actors):
            self.release(worker)
