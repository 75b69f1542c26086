"""What is measured of the steps: times, operations, memory, profiles.

step_watch.py       what the curve shows of the steps: times, speed, memory
step_times.py       the time of a step: waiting for data, computing, exchanging gradients
stragglers.py       names a rank that is much slower than the others
flops.py            floating-point operations of a step, and the share of a GPU's peak
profiling.py        a profile of a few steps, a file per rank
memory_snapshot.py  what a GPU's memory held when it was exhausted
"""
