// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Machines that lack something. The journal and `ibarr status` say each fault in one sentence with its remedy,
//! systemd does the right thing with the exit status, and all that does not need the missing thing still works.

use ibarr_user::logging::ids;

use crate::machine::said;
use crate::node::{GID, Node};

#[test]
fn configuration_that_cannot_be_used_is_named_and_not_tried_again() {
    let node = Node::installed();
    let gid = Some(GID.parse().unwrap());
    node.ok("systemctl start ibarr");
    assert_eq!(node.ask(), gid);
    let fails = |saying: &[&str], status: &str| {
        assert!(!node.run("systemctl restart ibarr").status.success());
        node.until("it fails", || node.show("ActiveState", "ibarr") == "failed");
        let journal = format!(
            "journalctl --no-pager --output=cat --unit=ibarr --priority=err --lines=1 MESSAGE_ID={}",
            ids::NOT_STARTED
        );
        let places =
            [node.ok(&journal), node.show("StatusText", "ibarr"), said(&node.run("ibarr status"))];
        for (place, words) in
            places.iter().flat_map(|place| saying.iter().map(move |words| (place, words)))
        {
            assert!(place.contains(words), "{words:?} is not in: {place}");
        }
        assert_eq!(node.show("ExecMainStatus", "ibarr"), status);
        assert_eq!(node.show("NRestarts", "ibarr"), "0");
        assert_eq!(node.ask(), gid, "the kernel answers until the lease ends");
    };
    node.ok("mkdir -p /etc/ibarr/ibarr.d && echo 'lease = \"soon\"' > /etc/ibarr/ibarr.d/50.toml");
    fails(&["/etc/ibarr/ibarr.d/50.toml:1:9: lease \"soon\" is not a duration"], "78");
    node.ok("rm /etc/ibarr/ibarr.d/50.toml && chmod 600 /etc/ibarr/ibarr.toml");
    fails(&["/etc/ibarr/ibarr.toml: cannot be read", "Permission denied", "chmod a+r"], "78");
    node.ok("chmod 644 /etc/ibarr/ibarr.toml && systemctl start ibarr");
    assert_eq!(node.ask(), gid);

    // The same while a daemon runs: it goes on.
    node.ok("echo 'lease = \"soon\"' > /etc/ibarr/ibarr.d/50.toml");
    assert!(!node.run("systemctl reload ibarr").status.success());
    for place in [node.journal(), node.show("StatusText", "ibarr"), node.ok("ibarr status")] {
        assert!(place.contains("50.toml:1:9: lease \"soon\" is not a duration"), "{place}");
    }
    node.ok("rm /etc/ibarr/ibarr.d/50.toml && systemctl reload ibarr");
    let status = node.show("StatusText", "ibarr");
    assert!(status.contains("kernel answers on eth0, reloaded "), "{status}");
    assert_eq!(node.ask(), gid);
}

#[test]
fn second_daemon_says_so_and_leaves_the_first_alone() {
    let node = Node::installed();
    node.ok("systemctl start ibarr");
    let second = node.run("ibarr run");
    assert!(said(&second).contains("another ibarr"), "{}", said(&second));
    assert_eq!(second.status.code(), Some(75), "{}", said(&second));
    assert_eq!(node.ask(), Some(GID.parse().unwrap()), "the first goes on");

    // The service as the second one waits until the first has ended.
    node.ok("systemctl stop ibarr && mkdir -p /run/ibarr");
    node.ok("setsid ibarr run > /run/log.first 2>&1 < /dev/null & echo $! > /run/first");
    node.until("it is there", || node.run("ibarr status --json").status.success());
    let first = node.ok("cat /run/first");
    let has_first = || node.ok("ibarr status").contains(&format!("pid {first},"));
    assert!(has_first());
    node.ok("systemctl start --no-block ibarr");
    node.until("it is tried again", || node.show("NRestarts", "ibarr").parse::<u32>().unwrap() > 1);
    assert!(has_first());
    assert!(node.journal().contains("another ibarr"), "{}", node.journal());
    // At the begin of each try, systemd forgets the text.
    node.until("its status says so", || node.show("StatusText", "ibarr").contains("another ibarr"));
    node.ok(&format!("kill -TERM {first}"));
    node.until("the service runs", || node.show("ActiveState", "ibarr") == "active");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
}

#[test]
fn service_without_a_writable_bpffs_answers_from_user_space() {
    let node = Node::installed();
    node.limit("BindPaths=\\nBindReadOnlyPaths=-/sys/fs/bpf/ibarr:/run/ibarr/bpf");
    node.ok("systemctl start ibarr");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    assert_eq!(node.counter("bpf.tc.answered"), 0);
    let name_and_remedy = |place: &str| {
        place.contains("Read-only file system") && place.contains("mount the bpffs for writing")
    };
    assert!(name_and_remedy(&node.journal()), "{}", node.journal());
    node.until("status says so", || name_and_remedy(&node.ok("ibarr status")));
}

#[test]
fn port_whose_umad_device_is_forbidden_is_named_with_the_remedy() {
    let node = Node::installed();
    let port = "/run/sys/class/infiniband/mlx5_0/ports/1";
    node.ok(&format!("mkdir -p {port}/gids {port}/pkeys /run/dev/infiniband"));
    for (file, text) in [
        ("link_layer", "InfiniBand"),
        ("state", "4: ACTIVE"),
        ("lid", "0x5"),
        ("lid_mask_count", "0"),
        ("sm_lid", "0x1"),
        ("sm_sl", "0"),
        ("gids/0", "fe80:0000:0000:0000:0002:c903:0000:0201"),
        ("pkeys/0", "0xffff"),
    ] {
        node.ok(&format!("echo '{text}' > {port}/{file}"));
    }
    let umad = "/run/sys/class/infiniband_mad/umad0";
    node.ok(&format!("mkdir -p {umad} && echo mlx5_0 > {umad}/ibdev && echo 1 > {umad}/port"));
    // As the kernel makes it, without the udev rule.
    node.ok("install --mode=600 /dev/null /run/dev/infiniband/umad0");
    node.limit(
        "ExecStart=\\nExecStart=/usr/sbin/ibarr run --bpf-dir /run/ibarr/bpf --sys-dir /run/sys --dev-dir /run/dev",
    );
    node.ok("systemctl start ibarr");
    let name_and_remedy = |place: &str| {
        ["mlx5_0/1", "umad0: Permission denied", "udevadm trigger"]
            .iter()
            .all(|words| place.contains(words))
    };
    node.until("the journal says so", || name_and_remedy(&node.journal()));
    node.until("status says so", || name_and_remedy(&node.ok("ibarr status")));
    assert_eq!(node.show("ActiveState", "ibarr"), "active");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()), "peers are answered");
}

#[test]
fn full_disk_costs_only_the_snapshot_and_is_said_once() {
    let node = Node::installed();
    node.ok("systemctl start ibarr");
    node.ok("systemctl stop ibarr && mount -t tmpfs -o size=8k tmpfs /var/lib/ibarr");
    node.ok("systemctl start ibarr && ! head -c 9000 /dev/zero > /var/lib/ibarr/filler");
    let config = node.ok("cat /etc/ibarr/ibarr.toml");
    node.configure(&format!("{config}\n[paths]\nsnapshot = \"/var/lib/ibarr/paths\"\n"));
    node.ok("systemctl reload ibarr");
    let full = "/var/lib/ibarr/paths: No space left on device";
    let says_it = |place: &str| place.contains(full) && place.contains("name another file");
    node.until("status says so", || says_it(&node.ok("ibarr status")));
    assert!(says_it(&node.journal()), "{}", node.journal());
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    node.ok("systemctl stop ibarr.service");
    assert_eq!(node.show("Result", "ibarr"), "success");
    assert_eq!(node.ok("ls --almost-all /var/lib/ibarr"), "filler");
}

#[test]
fn service_needs_no_type_information_of_the_kernel() {
    let node = Node::installed();
    node.limit("InaccessiblePaths=-/sys/kernel/btf");
    node.ok("systemctl start ibarr");
    let pid = node.show("MainPID", "ibarr");
    assert!(
        !node
            .run(&format!("nsenter --target {pid} --mount cat /sys/kernel/btf/vmlinux"))
            .status
            .success()
    );
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));
    assert_eq!(node.counter("bpf.tc.answered"), 1);
}
