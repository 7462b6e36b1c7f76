// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The command and the capabilities of `contrib/container` and `contrib/k8s`, in a container of Debian 12
//! without the unit.

use crate::machine::said;
use crate::node::{GID, Node};

const CONTAINERFILE: &str = include_str!("../../../contrib/container/Containerfile");
const DAEMONSET: &str = include_str!("../../../contrib/k8s/daemonset.yaml");

#[test]
fn image_runs_as_root_with_three_capabilities_on_a_read_only_root() {
    let node = Node::installed();
    let command = [words(CONTAINERFILE, "ENTRYPOINT "), words(DAEMONSET, "args: ")].concat();
    let capabilities = words(DAEMONSET, "add: ").concat().to_lowercase();
    assert_eq!(capabilities, "net_admin bpf perfmon ");
    let bounds = format!("-all,+{}", capabilities.trim().replace(' ', ",+"));
    // The host of an image has no package, which would have made it for another user.
    node.ok("rmdir /sys/fs/bpf/ibarr");
    // The volumes of the daemonset stay writable.
    node.ok("mkdir -p /run/ibarr /var/lib/ibarr && mount --bind /run/ibarr /run/ibarr && mount --bind /var/lib/ibarr /var/lib/ibarr");
    let start = format!(
        "setsid unshare --mount --propagation private sh -c 'mount -o remount,bind,ro / && exec setpriv --no-new-privs --inh-caps=-all --bounding-set={bounds} {}' > /run/log.ibarr 2>&1 &",
        command.concat()
    );
    node.ok(&start);
    node.until("the kernel answers", || {
        said(&node.run("ibarr status")).contains("answered by the kernel")
    });
    assert_eq!(node.ask(), Some(GID.parse().unwrap()), "{}", node.ok("cat /run/log.ibarr"));
    assert_eq!(node.counter("bpf.tc.answered"), 1, "{}", node.ok("cat /run/log.ibarr"));
    let status = node.ok("cat /proc/$(pidof ibarr)/status");
    // CAP_NET_ADMIN (12), CAP_PERFMON (38), CAP_BPF (39).
    let expected = format!("CapEff:\t{:016x}", 1_u64 << 12 | 1 << 38 | 1 << 39);
    assert!(status.lines().any(|line| line == expected), "{status}");
    // A pod ends by SIGTERM, and the kernel answers until the next one is there.
    node.ok("kill -TERM $(pidof ibarr)");
    node.until("it ends", || !node.run("pidof ibarr").status.success());
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
}

/// The words of the list after `key`, each followed by a space.
fn words(text: &str, key: &str) -> Vec<String> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(key)).expect(key);
    let list = line.trim_start_matches('[').trim_end_matches(']');
    list.split(',').map(|word| format!("{} ", word.trim().trim_matches('"'))).collect()
}
