"""Which policies make sense together: read from their classes, before anything runs.

scope      a policy may need slots that all layers share (``shares_slots``)
evict      ``makes_room`` for all experts that a layer loads, for one at a time, or for none
assign     ``loads`` experts that stay, experts for one use, or none; ``uses_host``
place      ``leaves_slots`` empty for experts of one use; may leave experts to the host
route      tokens may use experts on the device alone (``resident_only``): nothing is loaded
prefetch   may commit to whole layers, which need room
admit      uploads what the host computed, if it computes any
"""

from moebench.substrate.engine.policies import Admission
from moebench.substrate.engine.system import System


def why_not(system: System) -> str | None:
    """Return why a system's policies make no sense together; None if they do.

    A composition that is refused either ends with an error where the device does not hold every
    expert, or one of its policies never does anything.  What the options of policies, the model or
    a trace refuse is not known here.
    """
    sharing = [name for name, policy in system.policies.items() if policy.shares_slots]
    if system.scope == "layer" and sharing:
        return f"{' and '.join(sharing)} need slots that all layers share, but scope is layer"
    place, assign, evict = system.place, system.assign, system.evict
    if place.needs_host and not assign.uses_host:
        return "place leaves experts to the host, but assign computes none there"
    if evict.makes_room == "all" and evict.needs_host and not assign.uses_host:
        return "evict leaves experts to the host, but assign computes none there"
    loads = "none" if system.route.resident_only else assign.loads
    if evict.makes_room == "one" and loads == "kept":
        return "evict makes room for one expert at a time, but assign loads experts that stay"
    if evict.makes_room == "named" and loads == "kept":
        return "evict makes room for no expert that a layer loads, but assign loads such ones"
    if evict.makes_room == "named" and loads == "passing" and not place.leaves_slots:
        return "evict makes no room and place leaves none, but assign loads experts for one use"
    whole_layers = system.prefetch.whole_layers and not place.leaves_slots
    if whole_layers and evict.makes_room != "all":
        return "evict does not make room for whole layers, but prefetch fetches such ones"
    if _only_uploads(system.admit) and not (assign.uses_host or system.route.resident_only):
        return "admit uploads experts that the host computed, but assign computes none there"
    return None


def _only_uploads(admit: Admission) -> bool:
    asks = type(admit).uploads is not Admission.uploads
    asks = asks or type(admit).pass_ends is not Admission.pass_ends
    return asks and not admit.chooses
