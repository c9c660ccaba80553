#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# The first process of the guest (see machine.py): loads the modules, mounts the host's root
# read-only with the guest's own folders over it, and runs boot.sh there.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
. /settings
for module in /modules/*; do
	insmod "$module" || echo "$module did not load" >/dev/console
done
kind=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o $kind,cache=loose,ro host /mnt

# What lies below a folder that the guest covers is held, and put back over it.
number=0
echo "$shown" | while read -r path; do
	[ -n "$path" ] || continue
	mkdir "/hold/$number"
	mount --bind "/mnt$path" "/hold/$number"
	number=$((number + 1))
done
for folder in proc sys dev; do
	mount --bind "/$folder" "/mnt/$folder"
done
mkdir -p /mnt/dev/shm
mount -t tmpfs -o size=75% shm /mnt/dev/shm
for folder in /mnt/tmp /mnt/run /mnt/var/tmp; do
	mount -t tmpfs -o size=50% tmp "$folder"
done
number=0
echo "$shown" | while read -r path; do
	[ -n "$path" ] || continue
	mkdir -p "/mnt$path"
	mount --move "/hold/$number" "/mnt$path"
	number=$((number + 1))
done
number=0
echo "$written" | while read -r path; do
	[ -n "$path" ] || continue
	mkdir -p "/mnt$path"
	mount -t 9p -o $kind,cache=none,rw "written$number" "/mnt$path"
	number=$((number + 1))
done
cp /settings /command /boot /mnt/run/
chroot /mnt /bin/sh /run/boot >/dev/vport0p1 2>&1 </dev/null
# The host ends this machine as soon as it has the status; this is for when it does not.
echo o >/proc/sysrq-trigger
sleep 10
