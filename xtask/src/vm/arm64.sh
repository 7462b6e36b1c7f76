#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

# The first process of a guest with 64-bit Arm: a node with the daemon of the package, and a peer that asks it. It
# reports in the Test Anything Protocol.

/bin/busybox mkdir -p /proc /sys /dev /run /tmp
/bin/busybox --install -s /bin
export PATH=/bin LD_LIBRARY_PATH=/lib
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t bpf bpf /sys/fs/bpf
mount -t tmpfs tmpfs /run
exec >/dev/console 2>&1 </dev/null
# Only this script writes on the console from here on.
dmesg -n 1
for module in /modules/*; do insmod "$module"; done

claims=0
failed=0
claim() {
    claims=$((claims + 1))
    if [ "$2" = "$3" ]; then
        echo "ok $claims - $1"
    else
        failed=$((failed + 1))
        echo "not ok $claims - $1"
        echo "# $2, not $3"
    fi
}
answers() {
    ibarr metrics | sed -n "s/^ibarr_ip2gid_answers_total{by=\"$1\"} //p"
}

# Addresses of IPv6 can be used at once.
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
unshare -n sleep 100000 &
peer=$!
until [ "$(readlink /proc/$peer/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
in_peer() { nsenter -t $peer -n "$@"; }
ip link add eth0 type veth
ip link set veth0 netns $peer
ip link set lo up
ip addr add 10.7.0.1/24 dev eth0
ip link set eth0 up
in_peer ip addr add 10.7.0.2/24 dev veth0
ip addr add fd00:7::1/64 dev eth0
in_peer ip addr add fd00:7::2/64 dev veth0
in_peer ip link set veth0 up

mkdir -p /run/ibarr
ibarr run --config /ibarr.toml >/run/log 2>&1 &
tries=1200
until grep -q 'peers are answered in the kernel' /run/log || [ $((tries -= 1)) = 0 ]; do sleep 0.5; done
cat /run/log

claim "the machine is of 64-bit Arm" "$(uname -m)" aarch64
claim "the kernel sends its requests to the daemon" "$(grep -c 'the kernel sends its requests to ibarr' /run/log)" 1
ibarr status --check --wait 60s
claim "all works" $? 0
ROUNDS=3
for node in 10.7.0.1 fd00:7::1; do
    by_program=$(answers tc)
    by_daemon=$(answers daemon)
    in_peer ibarr fleet $node --rounds $ROUNDS >/run/fleet 2>&1
    claim "a peer's queries for $node are answered" $? 0
    cat /run/fleet
    claim "with the GID of the configuration" "$(grep -c 'fe80::2:c903:0:701' /run/fleet)" 1
    claim "the program has answered each" "$(($(answers tc) - by_program))" $ROUNDS
    claim "the daemon has answered none" "$(($(answers daemon) - by_daemon))" 0
done
kill %2
wait %2
claim "the daemon ends without an error" $? 0
claim "the kernel has not warned" "$(dmesg | grep -cE 'WARNING:|BUG:|Oops')" 0
echo "1..$claims"
sync
poweroff -f
