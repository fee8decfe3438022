"""Uncertain numbers of a profile: which they are, from where to where, and the profile moved."""

from moebench.substrate.machines.profile import HardwareProfile, load_profile
from moebench.substrate.machines.profile_ranges import Uncertain, moved, number_at, uncertain
from moebench.substrate.machines.quantity import Bandwidth, Count, Efficiency, Power, Quantity

PROFILE = load_profile("a6000")


def with_number(field: str, number: Quantity) -> HardwareProfile:
    part, name = field.split(".")
    changed = getattr(PROFILE, part).model_copy(update={name: number})
    return PROFILE.model_copy(update={part: changed})


def ends(field: str, number: Quantity) -> tuple[float, float, bool] | None:
    found = {one.field: one for one in uncertain(with_number(field, number))}
    one = found.get(field)
    return None if one is None else (one.low, one.high, one.stated)


def number(kind: type[Quantity], value: float, badge: str, **more: object) -> Quantity:
    fields = {"value": value, "unit": next(iter(kind.UNITS)), "source": "hand", "badge": badge}
    return kind.model_validate(fields | more)


def test_a_stated_range_is_taken_whatever_the_badge() -> None:
    stated = number(Bandwidth, 20.0, "datasheet", range=(15, 30))
    assert ends("link.pinned_h2d", stated) == (15, 30, True)
    assert ends("link.pinned_h2d", stated.model_copy(update={"badge": "estimate"})) == (
        15, 30, True,
    )  # fmt: skip


def test_an_estimate_without_a_range_is_a_fifth_either_way() -> None:
    assert ends("link.pinned_h2d", number(Bandwidth, 20.0, "estimate")) == (16.0, 24.0, False)


def test_an_efficiency_stays_at_most_one_and_a_count_whole() -> None:
    efficiency = number(Efficiency, 0.9, "estimate")
    low, high, _ = ends("gpu.tensor_efficiency", efficiency) or (0.0, 0.0, False)
    assert (round(low, 9), high) == (0.72, 1.0)
    assert ends("software.launches_gate", number(Count, 4, "estimate")) == (3, 5, False)
    assert ends("software.launches_gate", number(Count, 1, "estimate")) == (1, 1, False)


def test_published_figures_and_powers_are_left_out() -> None:
    assert ends("link.pinned_h2d", number(Bandwidth, 20.0, "datasheet")) is None
    assert ends("gpu.idle_power", number(Power, 20.0, "estimate")) is None
    assert not {"gpu.memory", "gpu.reserved_memory"} & {one.field for one in uncertain(PROFILE)}


def test_one_number_is_moved_and_nothing_else() -> None:
    slower = moved(PROFILE, "link.pinned_h2d", 1.5)
    assert slower.link.pinned_h2d.bytes_per_s == 1.5e9
    before, after = dict(PROFILE.quantities()), dict(slower.quantities())
    assert [field for field in before if before[field] != after[field]] == ["link.pinned_h2d"]
    assert PROFILE.link.pinned_h2d.value != 1.5


def test_places_of_a_range_are_geometric_on_either_side() -> None:
    one = Uncertain("link.pinned_h2d", number(Bandwidth, 20.0, "estimate"), 5.0, 80.0)
    assert [number_at(one, at) for at in (-1, -0.5, 0, 0.5, 1)] == [5, 10, 20, 40, 80]


def test_a_place_of_a_count_is_whole_and_zero_is_reached_by_line() -> None:
    cores = Uncertain("host.cores", number(Count, 6.0, "estimate"), 4.0, 8.0)
    assert number_at(cores, 0.5) == 7
    none = Uncertain("link.pinned_h2d", number(Bandwidth, 20.0, "estimate"), 0.0, 20.0)
    assert [number_at(none, at) for at in (-0.5, -1)] == [10, 0]


def test_a_place_without_a_range_has_the_numbers_own_value_in_all_its_digits() -> None:
    exact = Uncertain("link.pinned_h2d", number(Bandwidth, 20.12345, "estimate"), 20.12345, 40.0)
    assert [number_at(exact, at) for at in (-1, -0.5, 0)] == [20.12345] * 3
