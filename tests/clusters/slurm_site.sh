#!/bin/bash
# PID 1 of a cluster: its switch, its munge, and the room in which the controller and the nodes live.
#   slurm_site.sh FOLDER < PIPE
# All of it lives as long as the other end of PIPE is open, so that nothing outlives the tests, whatever
# became of them.
set -eu
folder=$1

hostname controller
mount --bind "$folder/etc/hosts" /etc/hosts
mount --bind "$folder/etc/resolv.conf" /etc/resolv.conf
ip link set lo up
# By itself a bridge takes the MAC of one of its ports: it would change as nodes come and go, and the others
# would talk to the old one for seconds.
ip link add switch address 02:00:00:00:01:00 type bridge
ip link set switch up
munged --key-file="$folder/munge/key" --socket="$folder/munge/socket" --pid-file="$folder/munge/pid" \
  --seed-file="$folder/munge/seed" --log-file="$folder/log/munged" --num-threads=4
echo up
exec >&2

read -r _ || true
while kill -KILL -1 2>/dev/null; do sleep 0.01; done # the nodes too: their processes are ours as well
rm -rf --one-file-system "$folder"
