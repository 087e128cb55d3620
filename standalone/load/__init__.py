"""Load for demo, drills and benchmarks: a latency-sensitive server, its open-loop client, and busy BE work.

All of it is plain Python without packages, so that a fresh machine can run it: `python -m standalone.load serve`
and `python -m standalone.load burn` are ordinary commands that run the same inside a pod or outside.
"""
