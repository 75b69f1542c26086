#!/usr/bin/env bash
HOSTS=hosts.txt
deepspeed --hostfile=$HOSTS --master_port 29501 train.py \
  --deepspeed --deepspeed_config ds_zero2.json \
  --model_name_or_path "${MODEL:-tiny}" &> train.log
