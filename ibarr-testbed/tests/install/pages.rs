// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The commands of the pages for users, on a node with a peer.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ibarr_testbed::pages::{Block, Command, blocks, spans};

use crate::kernel::Kernel;
use crate::machine::said;
use crate::node::Node;

/// Pages that begin on a node without the package. On all others the daemon runs, and a stand-in for the kernel asks it.
const BARE: &[&str] = &[
    "README.md",
    "docs/install.md",
    "docs/lab.md",
    "docs/migrate-from-c-ibarr.md",
    "docs/migrate-from-ibacm.md",
];

/// The peer of the pages: 10.2.0.5 with the GID fe80::2:c903:0:201. The other one is this node.
const PEER: &str = "
    ip netns add peer
    ip link add ib0 type veth peer name ib0 netns peer
    ip address add 10.2.0.1/24 dev ib0 && ip link set ib0 up
    ip -n peer address add 10.2.0.5/24 dev ib0 && ip -n peer link set ib0 up
    printf '[[static-gid]]\\nip = \"10.2.0.5\"\\ngid = \"fe80::2:c903:0:201\"\\n' > /etc/peer.toml
    systemd-run --quiet --unit=peer --property=NetworkNamespacePath=/run/netns/peer --property=RuntimeDirectory=peer \\
        /later/usr/sbin/ibarr run --config /etc/peer.toml --run-dir /run/peer --bpf-dir /run/peer/bpf";

/// The files that the pages name: packages in the current directory, the second one of a later version.
const FILES: &str = "
    printf '#!/bin/sh\\nexec \"$@\"\\n' > /usr/bin/sudo && chmod +x /usr/bin/sudo
    cp /ibarr.deb /srv/ibarr_1.0.0_amd64.deb
    dpkg-deb --raw-extract /ibarr.deb /later
    sed --in-place 's/^Version: .*/Version: 1.0.1/' /later/DEBIAN/control
    dpkg-deb --build /later /srv/ibarr_1.0.1_amd64.deb";

/// Stands in for ibacm, with the file of Debian's package.
const IBACM: &str = "
    mkdir /etc/rdma
    printf '[Service]\\nExecStart=/bin/sleep infinity\\n[Install]\\nWantedBy=multi-user.target\\n' > /etc/systemd/system/ibacm.service
    printf '[Socket]\\nListenStream=/run/ibacm.sock\\n[Install]\\nWantedBy=sockets.target\\n' > /etc/systemd/system/ibacm.socket
    systemctl daemon-reload && systemctl --quiet enable --now ibacm.socket ibacm.service";
const IBACM_OPTIONS: &str = include_str!("../../../ibarr-user/tests/data/ibacm_opts.cfg");

#[test]
fn commands_of_the_pages_do_what_the_pages_show() {
    let node = Node::boot();
    node.ok(FILES);
    node.ok(PEER);
    node.ok(IBACM);
    // The first line says where the file is from.
    let (_, options) = IBACM_OPTIONS.split_once('\n').unwrap();
    fs::write(node.path("/etc/rdma/ibacm_opts.cfg"), options).unwrap();
    let peer = "/later/usr/sbin/ibarr status --run-dir /run/peer";
    node.until("the peer serves", || node.run(peer).status.success());
    let (mut tried, mut mistakes) = (0, Vec::new());
    for (page, text) in pages() {
        let blocks = blocks(&text).unwrap_or_else(|mistake| panic!("{page}: {mistake}"));
        if blocks.is_empty() {
            continue;
        }
        node.ok("dpkg --purge ibarr && rm -rf /etc/ibarr");
        let _kernel = (!BARE.contains(&page.as_str())).then(|| {
            node.install();
            let kernel = Kernel::start(&node);
            node.ok("systemctl enable ibarr");
            kernel
        });
        for block in blocks {
            match block {
                Block::Session(commands) => {
                    for command in commands {
                        tried += 1;
                        let mistake = attempt(&node, &command);
                        mistakes
                            .extend(mistake.map(|what| format!("{page}:{}: {what}", command.line)));
                    }
                }
                Block::Configuration(line, text) => {
                    let file = "/srv/of-a-page.toml";
                    fs::write(node.path(file), text).unwrap();
                    let validated = node.run(&format!("ibarr validate {file}"));
                    if !validated.status.success() {
                        mistakes.push(format!("{page}:{line}: {}", said(&validated)));
                    }
                }
            }
        }
    }
    assert!(tried > 10, "only {tried} commands");
    mistakes.extend(mistakes_in_the_text(&node));
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

/// First words of code in the text that is no command: settings, and what programs print.
const NO_COMMANDS: &[&str] = &["answer", "from", "no", "not", "query", "search"];

/// Beginnings of commands that this node cannot run, and why.
const NOT_HERE: &[(&str, &str)] = &[
    ("ausearch", "needs SELinux"),
    ("cargo", "needs the source; xtask tries it"),
    ("dnf", "needs packages for dnf; dnf.rs tries it"),
    ("firewall-cmd", "needs firewalld"),
    ("ibarr ", "clap tries it"),
    ("iptables", "needs iptables"),
    ("lab ", "an argument of `cargo xtask`"),
    ("ls -l /dev/infiniband", "needs InfiniBand"),
    ("ls /dev/infiniband/", "needs InfiniBand"),
    ("lsmod", "needs kmod"),
    ("modprobe", "needs kmod"),
    ("nft ", "needs nftables"),
    ("ps -eZ", "needs SELinux"),
    ("rdma ", "needs InfiniBand"),
    ("rmmod", "needs kmod"),
    ("saquery", "needs InfiniBand"),
    ("sudo target/", "needs the source"),
    ("systemctl start opensm", "needs InfiniBand"),
    ("tcpdump", "needs tcpdump"),
];

/// What is typed for parts of a command.
const TYPED: &[(&str, &str)] = &[
    ("ADDRESS", "10.2.0.1"),
    ("IP", "10.2.0.5"),
    ("PEER", "10.2.0.5"),
    ("/proc/PID/", "/proc/$(systemctl show --value --property=MainPID ibarr)/"),
    // It does not end by itself.
    ("ip monitor", "timeout 1 ip monitor || [ $? = 124 ]"),
    // There is no terminal.
    ("systemctl edit ", "systemctl cat "),
];

/// Stand-ins for programs that this node lacks, and no change of its packages.
const STAND_INS: &str = "
    apt() { command apt --simulate \"$@\"; }
    man() { ls /usr/share/man/man?/\"$1\".?.gz; }
    sysctl() { for name; do cat /proc/sys/\"$(echo \"$name\" | tr . /)\"; done; }
";

/// Runs the commands in the running text and in the tables of the pages, beside a running daemon.
fn mistakes_in_the_text(node: &Node) -> Vec<String> {
    node.ok("dpkg --purge ibarr && rm -rf /etc/ibarr");
    node.install();
    let (mut done, mut mistakes) = (BTreeSet::new(), Vec::new());
    for (page, text) in pages() {
        for (line, span) in spans(&text) {
            if is_command(&span)
                && !NOT_HERE.iter().any(|(begin, _)| span.starts_with(begin))
                && done.insert(span.clone())
                && let Some(what) = attempt_of_text(node, &span)
            {
                mistakes.push(format!("{page}:{line}: `{span}`: {what}"));
            }
        }
    }
    assert!(done.len() > 30, "only {done:?}");
    mistakes
}

/// Whether a span of code looks like a program with arguments.
fn is_command(span: &str) -> bool {
    let is_program = |word: &str| {
        let is_of_name = |it: char| it.is_ascii_lowercase() || it == '-';
        word.starts_with(|it: char| it.is_ascii_lowercase()) && word.chars().all(is_of_name)
    };
    let is_setting = span.contains(" = \"");
    let first = span.split_once(' ').map(|(first, _)| first);
    !is_setting && first.is_some_and(|first| is_program(first) && !NO_COMMANDS.contains(&first))
}

/// Runs a command, which has to end with status 0. Returns what it says otherwise.
fn attempt_of_text(node: &Node, span: &str) -> Option<String> {
    if span.starts_with("bpftool ") {
        let words: Vec<_> = span.split(' ').collect();
        return node.with_its_network(&words).err();
    }
    let mut typed = span.to_owned();
    for (part, value) in TYPED {
        typed = typed.replace(part, value);
    }
    // What one command stops, the next one may need.
    node.ok("systemctl reset-failed && systemctl start ibarr");
    let ended = node.run(&format!("{STAND_INS}{typed}"));
    // A unit that does not run is shown, too.
    let is_shown = span.starts_with("systemctl status") && ended.status.code() == Some(3);
    (!ended.status.success() && !is_shown).then(|| said(&ended))
}

/// The names and texts of README.md and of all pages in docs.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|page| page.unwrap().path());
    let docs = docs.filter(|page| page.extension().is_some_and(|extension| extension == "md"));
    let name = |page: PathBuf| format!("docs/{}", page.file_name().unwrap().display());
    let mut names: Vec<_> = docs.map(name).collect();
    names.sort();
    names.insert(0, "README.md".to_owned());
    let texts = names.into_iter().map(|name| {
        let text = fs::read_to_string(root.join(&name)).unwrap();
        (name, text)
    });
    texts.collect()
}

/// Runs a command in /srv. Returns how its end or its output is not that of the page.
fn attempt(node: &Node, command: &Command) -> Option<String> {
    let output = node.run(&format!("cd /srv && {{ {}\n}} 2>&1", command.text));
    let printed = String::from_utf8_lossy(&output.stdout);
    let text = &command.text;
    if output.status.code() != Some(command.status) {
        Some(format!("`{text}` ends with {}, not {}:\n{printed}", output.status, command.status))
    } else if command.output.is_empty() && !printed.trim().is_empty() {
        Some(format!("`{text}` prints:\n{printed}"))
    } else {
        let missing = command.missing(&printed)?;
        Some(format!("`{text}` does not print {missing:?}, but:\n{printed}"))
    }
}
