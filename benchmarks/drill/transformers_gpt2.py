"""Transformers' Trainer on a small GPT-2 from nothing, which saves every five steps and resumes by itself."""

import os

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

FOLDER = os.environ["CLUSTERTRAIN_CHECKPOINT_DIR"]


class Counting(Dataset):
    """Sequences that count up, each from another number."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        ids = (torch.arange(16) + i) % 50
        return {"input_ids": ids, "labels": ids}


set_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2))
arguments = TrainingArguments(
    FOLDER,
    max_steps=24,
    per_device_train_batch_size=8,
    save_steps=5,
    logging_steps=1,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
Trainer(model, arguments, train_dataset=Counting()).train(resume_from_checkpoint=get_last_checkpoint(FOLDER))
