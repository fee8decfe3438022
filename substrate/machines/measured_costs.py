"""The cost model of a machine on which the model's operations were measured."""

from typing import Any

from moebench.substrate.errors import UsageError
from moebench.substrate.machines.costs import CostModel
from moebench.substrate.machines.measured_times import Measured, interpolated, shape_hash
from moebench.substrate.machines.profile import HardwareProfile
from moebench.substrate.machines.protocol import Lane, Op, OpKind
from moebench.substrate.models.shape import ModelShape, Precision


def cost_model(
    profile: HardwareProfile, shape: ModelShape, precision: Precision | float, *,
    parallel_reads: bool = True, **options: Any,
) -> CostModel:  # fmt: skip
    """Return a cost model by measured times if the profile has this model's, else by rooflines.

    Args:
        parallel_reads: `System.parallel_reads`: parts of a record are read at the same time.
        options: further arguments of `CostModel`.

    Raises UsageError: experts are stored in another precision than when they were measured.
    """
    if profile.measured is not None and profile.measured.shape == shape_hash(shape):
        stored_as = options.get("expert_precision")
        if stored_as not in (None, precision):
            raise UsageError(
                f"{profile.name}: its times of this model are of unquantised experts, not of "
                f"{stored_as}; measure it with --machine local, or choose another machine"
            )
        costs = MeasuredCosts(profile, shape, precision, **options)
        return costs.of(profile.measured, parallel_reads, options.get("pinned"))
    return CostModel(profile, shape, precision, **options)


class MeasuredCosts(CostModel):
    """Prices a measured model's operations by its measured times.

    The device computes what the control thread submits before that goes on (`synchronous`): both
    are one thread there.
    """

    synchronous = True

    def of(
        self, measured: Measured, parallel_reads: bool = True, pinned: bool | None = None
    ) -> "MeasuredCosts":
        """Take the times of a profile's measurement; return itself."""
        self._measured = measured
        alone_ns = 0.0 if parallel_reads else measured.read_alone_ns
        self._load_ns = alone_ns or measured.load_after_ns
        link = self.profile.link  # records were copied from pinned memory when it was measured
        self._load_ns *= link.h2d(True).bytes_per_s / link.h2d(pinned).bytes_per_s
        self.load_submit_ns = self.copy_submit_ns = round(measured.submit_ns)
        self.sync_ns, self.decision_ns = round(measured.wake_ns), round(measured.decision_ns)
        self.waits_each_layer = False
        self.lost_beside_copies = 1 - 1 / measured.beside_copies
        return self

    def _price(self, op: Op, lane: Lane) -> float:
        times = self._measured
        if op.kind is OpKind.RETURN:
            return times.return_ns
        if op.kind is OpKind.LOAD:
            return self._load_ns if op.chunk is None else self._load_ns * (1 / op.chunk[1])
        if lane is Lane.DEVICE and op.kind is OpKind.EXPERT:
            experts = sum(interpolated(times.device[op.kind], rows) for rows in op.rows)
            return times.operation_ns + experts
        if op.kind is OpKind.PREDICT and not op.network:
            attend = interpolated(times.device[OpKind.ATTEND], op.rows[0], op.pairs)
            gates = sum(interpolated(times.device[OpKind.GATE], rows) for rows in op.rows)
            return gates + (attend if op.context else 0.0)
        if lane is Lane.HOST and op.kind is OpKind.EXPERT and op.kind in times.host:
            return sum(interpolated(times.host[op.kind], rows) for rows in op.rows)
        table = times.host if lane is Lane.HOST else times.device
        if op.kind in table and lane in (Lane.DEVICE, Lane.HOST):
            return interpolated(table[op.kind], op.rows[0], op.pairs)
        return super()._price(op, lane)

    def least_load_ns(self, form: int) -> float:
        """Return the measured time of an expert's copy, which was from page-locked memory."""
        return self._load_ns

    def first_launch_ns(self, op: Op, lane: Lane) -> int:
        """Return the control thread's time before the operation begins, in ns."""
        return self.control_ns(op, lane)

    def control_ns(self, op: Op, lane: Lane) -> int:
        """Return the control thread's time to begin an operation, or to hand it to a thread."""
        own = lane in (Lane.DEVICE, Lane.PREDICT)
        return round(self._measured.gap_ns if own else self._measured.submit_ns)
