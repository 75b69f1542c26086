import torch
from torch.multiprocessing import spawn


def main(rank, world_size):
    torch.cuda.set_device(rank)


if __name__ == "__main__":
    spawn(main, (torch.cuda.device_count(),), torch.cuda.device_count())
