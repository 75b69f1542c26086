"""A start of a job up to its claim, as the launchers do it."""

from clustertrain.run_files.admission import admit
from clustertrain.run_files.records.provenance import CodeSource


def claim_next_attempt(job, options, world_sizes, echo, before_claim=lambda size: None, **more):
    """(run, attempt), or (run, result) of a run that is finished already.

    `world_sizes()`: the numbers of workers that there is room for. `before_claim(size)` follows the check.
    """
    admission = admit(job, options, echo, **more)
    if admission.finished is not None:
        return admission.run, admission.finished
    size = admission.world_size_of(world_sizes())
    before_claim(size)
    return admission.run, admission.claim(size, CodeSource(), echo)
