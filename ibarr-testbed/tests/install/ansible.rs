// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The playbook of `contrib/ansible`, which a real Ansible runs over SSH.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ibarr_testbed::start::program;
use nix::mount::{MsFlags, mount};

use crate::machine::said;
use crate::node::{ADDRESS, GID, Node, PEER, file, layer};

const CONTRIB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../contrib/ansible");
const SITE: &str = "/etc/ibarr/ibarr.d/50-site.toml";
/// The container has no InfiniBand.
const WITHOUT_INFINIBAND: &str = r#"["kernel-silent", "events-unheard"]"#;

/// Makes a program of what 1.0.0 could say of its health: it has no `--wait` and no `--accept`, does not tell the
/// node's name, and calls a failed daemon well at first.
const AS_1_0_0: &str = r#"mkdir --parents /older/usr/libexec && cd /older/usr && mv sbin/ibarr libexec/ibarr
cat > sbin/ibarr <<'END'
#!/bin/sh
case "$*" in
    *--wait*|*--accept*) echo "error: unexpected argument" >&2; exit 64 ;;
    "status --check --json") ;;
    *) exec /usr/libexec/ibarr "$@" ;;
esac
said=$(/usr/libexec/ibarr "$@") && code=0 || code=$?
show() { printf '%s\n' "$said" | sed --expression 's/"node":"[^"]*",//' "$@"; }
case "$said" in
    *'"uptime-s":'[0-9],*) show --expression 's/"health":.*"servers"/"servers"/'; exit 0 ;;
esac
show
exit $code
END
chmod 755 sbin/ibarr"#;

#[test]
fn play_stops_at_a_bad_node_and_leaves_the_next_untouched() {
    let node = Node::boot_for_deployment(|_| Vec::new());
    let controller = Controller::new(&node);
    // The next node: a port at which Ansible would log in.
    let next = TcpListener::bind((PEER, 22)).unwrap();
    next.set_nonblocking(true).unwrap();
    let later = controller.make_package("later", "+1", "true");
    let older = controller.make_package("older", "~1", AS_1_0_0);
    let mut play =
        Play { package: &later, config: config(""), accepted: "[]", hosts: 2, patience: 5 };

    // Without InfiniBand the daemon runs, and is not well.
    let red = controller.run(&play);
    assert_eq!(red.status.code(), Some(2), "{}", said(&red));
    assert!(said(&red).contains("kernel-silent"), "{}", said(&red));
    assert!(next.accept().is_err(), "the next node was touched\n{}", said(&red));
    assert!(version(&node).ends_with("+1"));

    // On the way back 1.0.0 says the same, but not at once.
    (play.package, play.patience) = (&older, 10);
    let red = controller.run(&play);
    assert_eq!(red.status.code(), Some(2), "{}", said(&red));
    assert!(said(&red).contains("kernel-silent"), "{}", said(&red));
    assert!(next.accept().is_err(), "the next node was touched\n{}", said(&red));
    assert!(version(&node).ends_with("~1"));
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));

    // The site knows that, and it is the next node's turn.
    play.accepted = WITHOUT_INFINIBAND;
    let green = controller.run(&play);
    assert!(next.accept().is_ok(), "the next node's turn never came\n{}", said(&green));
    assert!(said(&green).contains("failed=0"), "{}", said(&green));

    play.hosts = 1;
    let again = controller.run(&play);
    assert!(again.status.success() && said(&again).contains("changed=0"), "{}", said(&again));

    // A mistake does not reach the node, also not at the next start of the version that replaces 1.0.0.
    play.package = "/ibarr.deb";
    let good = node.ok(&format!("cat {SITE}"));
    let red = controller.run(&Play { config: config("lease = 1"), ..play.clone() });
    assert_eq!(red.status.code(), Some(2), "{}", said(&red));
    assert!(said(&red).contains("lease"), "{}", said(&red));
    assert_eq!(node.ok(&format!("cat {SITE}")), good);
    node.ok("systemctl restart ibarr");
    assert_eq!(node.ask(), Some(GID.parse().unwrap()));

    // A change reaches the daemon that runs.
    let pid = node.show("MainPID", "ibarr");
    let green = controller.run(&Play { config: config("log-level = 'debug'"), ..play });
    assert!(green.status.success(), "{}", said(&green));
    assert_eq!(node.ok("ibarr log-level"), "debug");
    assert_eq!(node.show("MainPID", "ibarr"), pid);
}

/// The site's configuration, which begins with a line `more`.
fn config(more: &str) -> String {
    let lines = [
        more,
        "interfaces = ['eth0']",
        "[[static-gid]]",
        &format!("ip = '{ADDRESS}'"),
        &format!("gid = '{GID}'"),
    ];
    lines.join("\n")
}

fn version(node: &Node) -> String {
    node.ok("dpkg-query --show --showformat='${Version}' ibarr")
}

/// A call of ansible-playbook.
#[derive(Clone)]
struct Play<'a> {
    package: &'a str,
    config: String,
    accepted: &'a str,
    /// The node, or the node and the next one.
    hosts: usize,
    /// How many times the node is checked.
    patience: u32,
}

/// A root file system with Ansible, at the other end of the node's wire.
struct Controller {
    root: PathBuf,
}

impl Controller {
    fn new(node: &Node) -> Self {
        let root = layer(&file("IBARR_DEPLOY_ROOT"), node.directory(), "controller");
        for shared in ["dev", "proc"] {
            let from = Path::new("/").join(shared);
            let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(&from), &root.join(shared), None::<&str>, flags, None::<&str>).unwrap();
        }
        fs::copy(file("IBARR_PACKAGE"), root.join("ibarr.deb")).unwrap();
        let copied =
            program("cp").args(["-r", CONTRIB]).arg(root.join("ansible")).output().unwrap();
        assert!(copied.status.success(), "{}", said(&copied));
        let controller = Self { root };
        // To reach the next node, which is this end of the wire.
        controller.ok("ip link set lo up");
        controller.ok("ssh-keygen -q -t ed25519 -N '' -f ~root/.ssh/id_ed25519");
        let inventory = format!("[ibarr]\n{ADDRESS}\n{PEER}\n[ibarr:vars]\nansible_user=root\n");
        fs::write(controller.root.join("inventory"), inventory).unwrap();
        let key = fs::read(controller.root.join("root/.ssh/id_ed25519.pub")).unwrap();
        node.ok("mkdir -m 0700 -p ~root/.ssh");
        fs::write(node.path("root/.ssh/authorized_keys"), key).unwrap();
        controller
    }

    /// The package as `/NAME.deb`, with `end` at the end of its version and what `change` does to its files in `/NAME`.
    fn make_package(&self, name: &str, end: &str, change: &str) -> String {
        self.ok(&format!("dpkg-deb --raw-extract /ibarr.deb /{name} && sed --in-place 's/^Version: .*/&{end}/' /{name}/DEBIAN/control"));
        self.ok(change);
        self.ok(&format!("dpkg-deb -Znone --build /{name} /{name}.deb"));
        format!("/{name}.deb")
    }

    fn run(&self, play: &Play<'_>) -> Output {
        let Play { package, config, accepted, hosts, patience } = play;
        let limit = if *hosts == 1 { format!("--limit {ADDRESS}") } else { String::new() };
        let values = format!(
            "ibarr_package: {package}\nibarr_accepted_causes: {accepted}\nibarr_patience: {patience}\nibarr_config: |\n  {}\n",
            config.replace('\n', "\n  ")
        );
        fs::write(self.root.join("values.yml"), values).unwrap();
        let line = format!(
            "cd /ansible && ansible-playbook -i /inventory rolling.yml {limit} -e @/values.yml"
        );
        self.command(&line).output().unwrap()
    }

    fn ok(&self, line: &str) {
        let output = self.command(line).output().unwrap();
        assert!(output.status.success(), "{line}: {}", said(&output));
    }

    fn command(&self, line: &str) -> Command {
        let mut command = program("chroot");
        command.arg(&self.root).args(["sh", "-c", line]);
        command.env("PATH", "/usr/sbin:/usr/bin").env("HOME", "/root").env("LC_ALL", "C.UTF-8");
        command.env("ANSIBLE_HOST_KEY_CHECKING", "false").env("ANSIBLE_PIPELINING", "true");
        command.env("ANSIBLE_TIMEOUT", "2");
        command
    }
}
