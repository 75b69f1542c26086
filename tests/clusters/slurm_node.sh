#!/bin/bash
# PID 1 of a node, in namespaces of its own (net, pid, mount, uts, ipc), within those of its cluster.
#   slurm_node.sh FOLDER NODE ADDRESS/PREFIX MAC GATEWAY [VISIBLE…] < PIPE
# VISIBLE: what stays to be seen of the machine's /tmp and /dev/shm; the node has both for itself.
set -eu
folder=$1 node=$2 address=$3 mac=$4 gateway=$5
shift 5

hostname "$node"
# /proc is still the cluster's: its process 1 holds the switch. The same address keeps the same MAC after a
# crash, or the others would send to the old one for a while.
site=(nsenter --net=/proc/1/ns/net)
"${site[@]}" ip link add "$node" type veth peer name eth0 address "$mac" netns 1
"${site[@]}" ip link set "$node" master switch up
ip link set lo up
ip address add "$address" dev eth0
ip link set eth0 up
ip route add default via "$gateway"

# slurmd starts a login shell for a job whose --export is a list: what the profile of whoever runs the tests
# starts there holds up the job, and leaves its locks on this machine where a node crashes in the middle of it.
for profile in ~root/.bash_profile ~root/.bash_login ~root/.profile ~root/.bashrc; do
  [ ! -e "$profile" ] || mount --bind /dev/null "$profile"
done
mount --bind "$folder/etc/hosts" /etc/hosts
mount --bind "$folder/etc/resolv.conf" /etc/resolv.conf
for private in /tmp /dev/shm; do
  mount -t tmpfs -o size=4g,mode=1777 tmpfs "$folder/mount"
  for visible in "$@"; do
    [[ $visible == "$private"/* ]] || continue
    mkdir -p "$folder/mount/${visible#"$private/"}"
    mount --rbind "$visible" "$folder/mount/${visible#"$private/"}"
  done
  mount --move "$folder/mount" "$private"
done
mount -t proc proc /proc
# crun runs no container beside a version 2 of cgroups that shares the controllers with version 1.
! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified
echo up
exec >&2

SLURM_CONF=$folder/etc/slurm.conf slurmd -D -N "$node" &
read -r _ || true # a node outlives its slurmd, but not the tests
