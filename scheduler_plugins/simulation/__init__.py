"""The scheduler without a cluster: its own code over an API in memory, on a clock that does not wait.

What the host runs runs here too: queue, cache, cycle, permit, binding, timers. `run.Simulation` puts it together.
"""
