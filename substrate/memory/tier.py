"""A memory tier: a budget of bytes, and how much of it each purpose reserved."""

from moebench.substrate.errors import BudgetError


class Tier:
    """A memory with a budget of bytes, and how much of it each purpose reserved."""

    def __init__(self, name: str, budget_bytes: int) -> None:
        self.name = name
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        self._spent: dict[str, int] = {}

    @property
    def free_bytes(self) -> int:
        """The bytes that can still be reserved."""
        return self.budget_bytes - self.used_bytes

    def reserved(self, what: str) -> int:
        """Return the bytes that are reserved for a purpose."""
        return self._spent.get(what, 0)

    def reserve(self, what: str, count_bytes: int) -> None:
        """Reserve bytes of the budget for a purpose.

        Raises BudgetError: the budget does not hold them.
        """
        if count_bytes > self.free_bytes:
            spent = ", ".join(f"{k} {v / 1e9:.4g} GB" for k, v in self._spent.items())
            raise BudgetError(
                f"{self.name} memory: {what} needs {count_bytes / 1e9:.4g} GB, "
                f"{self.free_bytes / 1e9:.4g} of {self.budget_bytes / 1e9:.4g} GB is free"
                + (f" (spent: {spent})" if spent else "")
            )
        self._spent[what] = self._spent.get(what, 0) + count_bytes
        self.used_bytes += count_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
