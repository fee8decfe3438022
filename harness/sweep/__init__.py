"""Many runs: planned, carried out by worker processes, resumed."""
