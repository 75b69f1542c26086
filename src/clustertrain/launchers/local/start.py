"""The program of a submitted run on this machine: `python -m clustertrain.launchers.local.start`."""

from __future__ import annotations

import json
import os
import sys

from clustertrain.launchers.local.turn import job_id_of, place_here
from clustertrain.launchers.scheduler.start import main
from clustertrain.node import variables
from clustertrain.node.processes import this_process

if __name__ == "__main__":
    job = ["local", job_id_of(this_process()), os.environ[variables.SUBMISSION]]
    sys.exit(main([*job, "--place", json.dumps(place_here()), "--given-ray"]))
