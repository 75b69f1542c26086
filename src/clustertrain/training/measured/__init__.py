"""What is measured of the steps: times, operations, memory, profiles.

step_watch.py       what the curve shows of the steps: times, speed, memory
step_times.py       the time of a step: waiting for data, computing, exchanging gradients
stragglers.py       names a rank that is much slower than the others
profiling.py        a profile of a few steps, a file per rank
"""
