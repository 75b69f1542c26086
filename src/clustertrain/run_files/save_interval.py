"""How often to save, by Young and Daly. Pure arithmetic.

J. W. Young: A first order approximation to the optimum checkpoint interval. CACM 17 (1974) 530.
J. T. Daly: A higher order estimate of the optimum checkpoint interval for restart dumps. FGCS 22 (2006) 303.
"""

from __future__ import annotations

from math import sqrt

from clustertrain.job.sections import Failures

_FIRST_SAVE_S = 300.0
_GUESSED_STALL_S = 1.0
_DAY_S = 86_400.0
_NODE_MTBF_S = 1000 / 6.5 * _DAY_S
"""Meta's RSC-1 had 6.5 failures per 1,000 node-days, RSC-2 2.34 (Kokolis et al., arXiv 2410.21680, 2024)."""


def mtbf_s(failures: Failures, nodes: int) -> float:
    """Return the mean seconds between two failures of a job: each of its nodes may be the next to fail."""
    return (failures.mtbf_s or _NODE_MTBF_S) / nodes


def first_interval_s(mtbf_s: float) -> float:
    """Return after how many seconds to save first: the best interval if a save stalls training for a second.

    It is at most 5 minutes. Only a save shows how long training waits for one.
    """
    return min(_FIRST_SAVE_S, best_interval_s(_GUESSED_STALL_S, mtbf_s))


def best_interval_s(stall_s: float, mtbf_s: float) -> float:
    """Return Daly's interval between the end of one save and the start of the next (his equation 37).

    Its first term is Young's, the square root of 2 × stall × MTBF. The restart time has no influence: it is
    lost once per failure, however often the run saves.
    """
    if stall_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = stall_s / (2 * mtbf_s)
    return sqrt(2 * stall_s * mtbf_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - stall_s
