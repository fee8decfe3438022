"""Machines that run or price operations: the protocol, simulated ones, this computer, its GPU."""
