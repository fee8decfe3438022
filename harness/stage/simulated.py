"""Builds stages on simulated machines, whose virtual time follows from a hardware profile."""

from collections.abc import Sequence
from contextlib import ExitStack

from moebench.harness.stage.memory import Memory, Offer
from moebench.harness.stage.stage import Stage, StageRequest
from moebench.results.spec import RunSpec
from moebench.substrate.engine.loop import Engine
from moebench.substrate.engine.runtime import Runtime, Supports
from moebench.substrate.engine.system import System
from moebench.substrate.machines.costs import CostModel, HostProducts
from moebench.substrate.machines.measured_costs import cost_model
from moebench.substrate.machines.profile import HardwareProfile, load_profile
from moebench.substrate.machines.protocol import Lane, Op, OpKind
from moebench.substrate.machines.simulated import SimulatedMachine
from moebench.substrate.machines.timeline import Timeline
from moebench.substrate.memory.cache import ExpertCache
from moebench.substrate.memory.capacity import Capacity, Room, slots_by_form, used_forms
from moebench.substrate.memory.host import HostRecords
from moebench.substrate.models.catalogue import quantised
from moebench.substrate.models.shape import Form

#: Part of a note on systems whose copies are pageable because they map the file of the weights.
MAPPED = "the mapped file does not fit, the others are paged in from the disk at each use"


class SimulatedKind:
    """Simulated machines, in virtual time: a hardware profile of the catalogue or a file."""

    def supports(self, spec: RunSpec) -> Supports:
        """Return that all runtime options can be simulated; on measured profiles, two cannot.

        A measured profile has only the times of whole records, by one number of threads.
        """
        measured = load_profile(spec.machine, spec.software).measured
        only: dict[str, tuple[object, str]] = {}
        if measured is not None:
            only["threads"] = (None, "has times that were measured with the host's own threads")
        return Supports(
            where=f"--machine {spec.machine}",
            forms=measured is None,
            divides=measured is None,
            only=only,
        )

    def offer(self, spec: RunSpec) -> Offer:
        """Return the memory of the profile's machine."""
        profile = load_profile(spec.machine, spec.software)
        return Offer(Room.of(profile), profile)

    def build(self, request: StageRequest, memory: Memory, stack: ExitStack) -> Stage:
        """Build cost model, virtual machine, cache and engine; nothing needs closing."""
        spec, system = request.spec, request.system
        capacity, profile = memory.capacity, memory.profile
        assert profile is not None, "a simulated machine has a profile"
        model, runtime = request.model(None), system.runtime
        shape, stored = model.shape, quantised(spec.quant, spec.model)
        costs = cost_model(
            profile,
            request.full,
            spec.precision if stored is None else stored.bits.others,
            expert_precision=(
                spec.expert_dtype or runtime.expert_precision
                if stored is None
                else stored.bits.routed
            ),
            pinned=runtime.pinned_copies,
            module_hooks=runtime.module_hooks,
            fused_experts=system.assign.whole_layers(request.full),
            host=HostProducts(
                runtime.host_kernels,
                threads_used(runtime, profile),
                1.0 if stored is None else stored.rate,
            ),
            prediction_python=runtime.prediction_python,
            parallel_reads=runtime.parallel_reads,
            forms=runtime.forms,
        )
        chosen, largest = system.place.chosen_forms(shape), 0
        if chosen is not None:
            largest = max(used_forms(shape, chosen), key=costs.form_bytes.__getitem__)
        record_bytes = costs.form_bytes[largest]
        timeline = Timeline(request.keep_timeline)
        records = None
        if capacity.from_disk:
            records = HostRecords(capacity.host, record_bytes, runtime.host_experts)
        machine = SimulatedMachine(
            costs, timeline, records, parallel_reads=runtime.parallel_reads,
            overlap=runtime.overlap, blocking_copies=copies_block(runtime, profile),
        )  # fmt: skip
        if chosen is None:
            fit, *more = slots_by_form(runtime.forms, costs.form_bytes, capacity.slots)
            others = list(zip(more, costs.form_bytes[1:], strict=True))
        else:  # the same bytes hold more records of the largest form in use
            fit, others = capacity.slots * costs.record_bytes // record_bytes, []
            most = system.most_slots(request.full)
            fit = fit if most is None else min(fit, most)
        slots = system.place.slots(shape, fit) or fit
        cache = ExpertCache(
            shape, slots, system.scope, capacity.device, record_bytes, others, chosen
        )
        engine = Engine(
            system,
            model,
            machine,
            cache,
            timeline,
            capacity.homes,
            capacity.streams_from_disk,
            spec.context,
        )
        total = len(shape.moe_layers) * shape.num_experts
        return Stage(
            engine=engine,
            machine=machine,
            timeline=timeline,
            device=capacity.device,
            host=capacity.host,
            profile=profile,
            badge=profile.badge,
            notes=[
                *_notes(request, memory, machine, total),
                *_forms(runtime.forms, cache, costs),
                *request.notes,
                *memory.notes,
            ],
            slots=cache.slots,
            total=total,
            memory=memory.document(cache.slot_bytes, costs.record_bytes),
            load_ns=lambda placed: loading_ns(placed, costs, capacity, system, largest),
        )


def copies_block(runtime: Runtime, profile: HardwareProfile) -> bool:
    """Return whether copies keep the control thread: as the system says, else pageable ones do.

    On a measured machine copies are submitted as they were when it was measured, by a thread of
    their own.
    """
    if runtime.blocking_copies is not None:
        return runtime.blocking_copies
    pinned = profile.link.pinned if runtime.pinned_copies is None else runtime.pinned_copies
    return not pinned and profile.measured is None


def threads_used(runtime: Runtime, profile: HardwareProfile) -> int | None:
    """Return the host's threads that compute experts, at most its cores; None is all cores."""
    return None if runtime.threads is None else min(runtime.threads, profile.host.cores.count)


def threads_notes(runtime: Runtime, profile: HardwareProfile) -> list[str]:
    """Return a sentence where the host has fewer cores than threads, or no rate of a core."""
    threads, cores = runtime.threads, profile.host.cores.count
    if threads is None:
        return []
    if threads > cores:
        return [f"threads={threads} counts as {cores}: the host has {cores} cores"]
    if profile.host.core_rate is None:
        alone = "limits products of many rows alone: the profile has no host.core_rate"
        return [f"threads={threads} {alone}"]
    return []


def _notes(
    request: StageRequest, memory: Memory, machine: SimulatedMachine, total: int
) -> list[str]:
    """Sentences on what was simulated, and on what the simulation leaves out."""
    profile, runtime = memory.profile, request.system.runtime
    assert profile is not None, "a simulated machine has a profile"
    notes = [
        f"simulated on {profile.name} with {profile.software.name} software: no such hardware ran; "
        f"{profile.estimates} of the profile's {profile.numbers} numbers are estimates"
    ]
    if machine.host_memory is not None:
        notes.append(
            f"experts are on the disk: host memory has room for {machine.host_memory.capacity} of "
            f"{total}" + (f"; {MAPPED}" if runtime.pinned_copies is False else "")
        )
    notes += threads_notes(runtime, profile)
    if runtime.expert_precision is not None:
        notes.append(
            f"experts are charged as {runtime.expert_precision}; the mathematics is not quantised"
        )
    if runtime.reads_unfinished:
        notes.append(
            f"{request.spec.title} computes experts whose copy is still under way (in_flight) on "
            "whatever their slots hold: its time is simulated, its results would be wrong; "
            "accuracy here is that of the right weights"
        )
    return notes


def _forms(forms: Sequence[Form], cache: ExpertCache, costs: CostModel) -> list[str]:
    """Sentences on the slots of each form of records, where there are several."""
    if len(forms) == 1:
        return []
    if cache.forms == 1:
        size = cache.slot_bytes // cache.slots
        return [f"each expert has one record, in a form of its own: {cache.slots} slots of "
                f"{size / 1e6:.4g} MB, as large as the largest record"]  # fmt: skip
    each = zip(forms, cache.form_pools, costs.form_bytes, strict=True)
    slots = [f"{sum(n)} of {form.name} ({size / 1e6:.4g} MB)" for form, n, size in each]
    notes = [f"slots by form of record: {', '.join(slots)}"]
    parts = [form.name for form in forms if form.share < 1]
    if parts:
        notes.append(
            f"records in part ({', '.join(parts)}) are charged, the model computes whole ones"
        )
    return notes


def loading_ns(
    placed: int, costs: CostModel, capacity: Capacity, system: System, form: int = 0
) -> int:
    """Return the time to load non-expert weights and ``placed`` experts to the device, in ns.

    Experts on the disk are read from it; non-expert weights are one file, read sequentially.

    Args:
        form: the form of each expert's record.
    """
    common_ns = capacity.common_bytes / costs.h2d_bytes_per_ns
    expert_ns = costs.ns(Op(OpKind.LOAD, 0, form=form), Lane.H2D)
    if capacity.from_disk:
        read = Op(OpKind.READ, 0, form=form, queued=system.parallel_reads)
        common_ns = max(
            common_ns, costs.shape.common_bytes(costs.precision) / costs.read_bytes_per_ns
        )
        expert_ns = max(expert_ns, costs.ns(read, Lane.DISK))
    return round(common_ns + placed * expert_ns)
