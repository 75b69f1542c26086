from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist

from training.ranks import Ranks


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Ranks]]:
    """`ranks(3)`: three processes in a gloo group, started at the first use."""
    folder = tmp_path_factory.mktemp("ranks")
    started: dict[int, Ranks] = {}

    def of(world_size: int) -> Ranks:
        if world_size not in started:
            started[world_size] = Ranks(world_size, folder)
        return started[world_size]

    yield of
    for group in started.values():
        group.close()


@pytest.fixture
def group_of_one() -> Iterator[None]:
    """A process group of this process, as the check of a job has it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
