"""A script for torchrun: the loop without any launcher of the kit."""

import sys
from pathlib import Path

from clustertrain.training.distributed import join, leave
from clustertrain.training.loop import train
from clustertrain.training.settings import TrainSettings
from training.tasks import MemoryRun, Plain

if __name__ == "__main__":
    place = join()
    result = train(Plain(), TrainSettings(steps=8, batch_size=4), place, MemoryRun(place.rank), {})
    if met := {"ray", "pydantic"} & sys.modules.keys():
        raise SystemExit(f"imported: {met}")
    (Path(sys.argv[1]) / f"{place.world_size}-{place.rank}").write_text(f"{result.step} {result.finished}")
    leave()
