"""A small GPT-2 with Transformers' Trainer. Nothing here is written for clustertrain.

torchrun --nproc-per-node 2 train_transformers.py --output_dir checkpoints --num_train_epochs 1
"""

import json

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Words(Dataset):
    def __init__(self):
        self.samples = set()

    def __len__(self):
        return 16

    def __getitem__(self, index):
        self.samples.add(index)
        ids = torch.tensor([index, index + 1, index + 2])
        return {"input_ids": ids, "labels": ids}


def main():
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=4, n_embd=8, n_layer=1, n_head=1))
    words = Words()
    trainer = Trainer(model=model, args=arguments, train_dataset=words)
    last = get_last_checkpoint(arguments.output_dir)
    first_step = int(last.rpartition("-")[2]) if last else 0
    trainer.train(resume_from_checkpoint=last)
    seen = {
        "rank": arguments.process_index,
        "world_size": arguments.world_size,
        "samples": sorted(words.samples),
        "epochs": [first_step * 8 / len(words), trainer.state.epoch],
        "weight": model.lm_head.weight.sum().item(),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
