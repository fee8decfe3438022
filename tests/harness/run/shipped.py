"""Systems that stand for what authors' code does, in `test_variants`."""

from moebench.systems.daop import DAOP as PUBLISHED_DAOP
from moebench.systems.smoe import SMoE


class SMOE(SMoE):
    """Another class, nothing else."""


class DAOP(PUBLISHED_DAOP):
    """Another class, nothing else."""
