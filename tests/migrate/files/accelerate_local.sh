#!/usr/bin/env bash
set -euo pipefail
NUM_GPUS=2
CUDA_VISIBLE_DEVICES=2,3 accelerate launch --multi_gpu --num_processes=$NUM_GPUS --main_process_port 0 \
    --gradient_accumulation_steps 4 train.py --report_to wandb 2>&1 | tee train.log
