"""Records that this checkout computes the same figures as an earlier one, to keep run ids valid.

    python -m benchmarks.golden ...                 # first: no figure differs from OLD's
    python -m benchmarks.equivalent OLD             # OLD: a checkout of the earlier code

Writes `results/equivalent.json`: the hashes of this checkout's shared code and of each system, with
the hash under which OLD stores the same runs.  Entries of versions in between are dropped.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).parents[1] / "results" / "equivalent.json"

#: Prints the hashes of the imported code: of the shared modules, and of each system unchanged and
#: with each single decision swapped.  Argument: ``effective`` or ``code``, see `hashes`.
SCRIPT = """
import json, sys
from moebench.harness.run import identity
from moebench.substrate.errors import MoeBenchError
from moebench.systems.options import build, build_native
from moebench.systems.registry import NATIVE, POLICIES, SYSTEMS, VARIANTS

effective = sys.argv[1] == "effective"
code = identity.code_hash if effective else identity.shared_code_hash
system = identity.system_hash if effective else identity.system_code_hash
found = {name: system(build_native(name, {})) for name in NATIVE}
swaps = [{}] + [{decision: name} for decision, names in POLICIES.items() for name in names]
for variant, names in VARIANTS.items():
    for name in names:
        for swap in swaps:
            try:
                found[f"{name} {variant} {swap}"] = system(build(name, swap, variant))
            except MoeBenchError:  # this system cannot have that policy
                continue
print(json.dumps({"code": {"shared": code()}, "systems": found}))
"""

Hashes = dict[str, dict[str, str]]


def hashes(checkout: Path, which: str) -> Hashes:
    """Return a checkout's hashes: ``effective``, as in run ids, or of its ``code`` itself."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, which], cwd=checkout, capture_output=True, text=True,
        check=True, env={**os.environ, "PYTHONPATH": str(checkout)},
    )  # fmt: skip
    found: Hashes = json.loads(done.stdout)
    return found


def equivalent(new: Hashes, old: Hashes) -> tuple[Hashes, list[str]]:
    """Return the old hash for each new hash by kind, and the swaps whose run ids change.

    Two systems with a swapped decision may come to depend on the same modules, so that their equal
    new hashes belong to different old ones: the first keeps its ids.

    Raises:
        ValueError: equal new hashes of unswapped systems belong to different old ones, or a system
            is missing.
    """
    found: Hashes = {}
    changed = []
    for kind, names in old.items():
        found[kind] = {}
        for name, hashed in names.items():
            if name not in new[kind]:
                raise ValueError(f"{name}: it has no hash in the new checkout")
            replaced = found[kind].setdefault(new[kind][name], hashed)
            if replaced != hashed and re.search(r"\{.+\}$", name):
                changed.append(name)
            elif replaced != hashed:
                raise ValueError(f"{name}: {new[kind][name]} already replaces {replaced}")
    return found, changed


def main(old: str) -> int:
    """Write `results/equivalent.json` for an earlier checkout."""
    found, changed = equivalent(
        hashes(FILE.parents[1], "code"), hashes(Path(old).resolve(), "effective")
    )
    FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{FILE.name}: {sum(map(len, found.values()))} hashes")
    print("".join(f"its run ids change: {name}\n" for name in changed), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
