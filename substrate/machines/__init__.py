"""Machines that run or price operations: the protocol, a simulated and a local one."""
