#!/bin/bash
# PID 1 of a cluster: the room in which its programs and its pods live, in namespaces of its own.
#   kube_site.sh FOLDER CGROUP IMAGES
# IMAGES: where podman keeps them, which the cluster sees at /run/images.
# All of it lives as long as a process holds the lock of FOLDER/users, so that nothing outlives the tests,
# whatever became of them.
set -eu
folder=$1 cgroup=$2 images=$3
exec >>"$folder/log/site" 2>&1

read -r outside _ </proc/self/stat # /proc is still the machine's
mount --make-rshared / # among the cluster's own; the machine's is private to it
mount -t proc proc /proc
hostname node1
mount --bind "$folder/hosts" /etc/hosts
mount --bind "$folder/resolv.conf" /etc/resolv.conf
# Where programs write beside their folder: nobody sees it but the cluster.
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/log
mkdir /run/upper /run/work /run/images
mkdir -p "$images"
mount --bind "$images" /run/images # before it lies below an overlay: the kernel stacks two, no third
mount -t overlay overlay -o lowerdir=/var/lib,upperdir=/run/upper,workdir=/run/work /var/lib
# What the kubelet counts as the node's CPUs: one of two has no room for two runs at once. Of their topology
# it hears nothing, so that it tells the kernel of none that there is not. Pods see the machine's own.
for place in node cpu; do mount -t tmpfs tmpfs "/sys/devices/system/$place"; done
mkdir /sys/devices/system/cpu/cpu{0..7}
ip link set lo up

if [ -f /sys/fs/cgroup/cgroup.controllers ]; then # version 2: one tree for all
  sed 's/\</+/g' /sys/fs/cgroup/cgroup.controllers >/sys/fs/cgroup/cgroup.subtree_control
  trees=(/sys/fs/cgroup)
else
  trees=(/sys/fs/cgroup/*)
fi
for tree in "${trees[@]}"; do mkdir -p "$tree/$cgroup"; done

echo "$outside" >"$folder/pid.new"
mv "$folder/pid.new" "$folder/pid"

exec 9<"$folder/users"
flock --exclusive 9 # and it is ours to the end
while kill -KILL -1 2>/dev/null; do sleep 0.01; done # the pods too: their processes are ours as well
for tree in "${trees[@]}"; do
  for _ in {1..100}; do # a process that has ended keeps its group for a moment
    find "$tree/$cgroup" -depth -type d -exec rmdir {} + && break
    sleep 0.05
  done
done
# A volume's subPath is a mount of what may be anybody's.
awk -v below="$folder/" 'index($2, below) == 1 {print $2}' /proc/mounts | sort -r | xargs -r -d '\n' umount --lazy
rm -rf --one-file-system "$folder"
