"""`faulty`, waiting in mid-epoch until a file is there: what looks at a run has the time that it needs."""

import time
from pathlib import Path

from faulty import Faulty


class Held(Faulty):
    def __init__(self, until: str, at_call: int = 8, **of_faulty: object) -> None:
        super().__init__(**of_faulty)
        self.until, self.held_at = Path(until), at_call

    def loss(self, model, batch):
        while model.training and self.calls + 1 >= self.held_at and not self.until.exists():
            time.sleep(0.1)
        return super().loss(model, batch)
