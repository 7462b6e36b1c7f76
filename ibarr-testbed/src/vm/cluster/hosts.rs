// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `vm hosts`: one fabric of 32 hosts, which come and go while others send.
//!
//! H1 and H17 are the guests. The others are network namespaces, 15 in each guest, with an Ethernet link to it. The
//! first host has the fabric. Each other one has an `ibfab` of its own, which joins over UDP, and an HCA of its guest's
//! kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};

use super::{A_PORT, B_PORT, FIRST, KEY, MASTER, OTHER, STANDBY, is_manager, link, other, there};
use crate::report::Report;
use crate::rig::verbs::{self, End, pingpong};
use crate::rig::{self, Place, Process, eventually, ip, spawn};

const HOSTS: usize = 32;
/// Those of the first guest.
const HALF: usize = HOSTS / 2;

const TOPOLOGY: &str = "/run/hosts.topo";

/// iproute2's: the shell would take its own.
const IP: &str = "/bin/ip";

/// Half of the namespaces, in both guests. They leave and join.
const COME_AND_GO: [RangeInclusive<usize>; 2] = [3..=9, 19..=25];

/// The program, and options with which it checks a few messages.
const PROGRAMS: [(&str, &str); 3] =
    [("ibv_rc_pingpong", "20000"), ("ibv_uc_pingpong", "5000"), ("ibv_ud_pingpong", "1000")];

pub(crate) fn run() -> ExitCode {
    let mut report = Report::default();
    let linked = link(FIRST).and_then(|()| eventually(other::boot)).and_then(|_| namespaces());
    report.claim("the guests have a link, and each namespace one to its guest", linked);
    if let Some(mut fabric) = report.claim("32 hosts join the fabric", Fabric::up()) {
        fabric.prove(&mut report);
    }
    // The other guest ends before it can answer.
    let _ = rig::run(Place::Other, &[there::END]);
    report.end()
}

#[derive(Clone, Copy, Debug)]
struct Host(usize);

impl Host {
    fn kernel(self) -> Place {
        if self.0 <= HALF { Place::Here } else { Place::Other }
    }

    /// Its network namespace, unless it is a guest.
    fn namespace(self) -> Option<String> {
        (self.0 % HALF != 1).then(|| format!("h{}", self.0))
    }

    fn address(self) -> String {
        format!("10.9.0.{}", self.0)
    }

    /// The last bytes of its port's GUID, as in [`topology`].
    fn guid(self) -> u64 {
        0x0211_2200_0030_0000 + self.0 as u64
    }

    /// A command in its namespace.
    fn words(self, words: &[&str]) -> Vec<String> {
        let prefix = self.namespace().map(|name| ["ip", "netns", "exec", &name].map(str::to_owned));
        prefix.into_iter().flatten().chain(words.iter().map(|&word| word.to_owned())).collect()
    }

    fn join(self) -> Result<Process> {
        let fabric = format!("udp:{FIRST}:7471");
        let name = format!("H{}", self.0);
        let words = self.words(&["ibfab", "join", &fabric, TOPOLOGY, &name, "--key", KEY]);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        spawn(&format!("ibfab-{name}"), self.kernel(), &words)
    }

    /// The directory in a class of sysfs in which a file of this pattern has its GUID, written in groups of so many
    /// digits.
    fn find(self, pattern: &str, group: usize) -> Result<String> {
        let digits = format!("{:016x}", self.guid());
        let groups: Vec<_> = (0..16).step_by(group).map(|at| &digits[at..at + group]).collect();
        let guid = groups.join(":");
        let script = format!("grep -l {guid} {pattern} 2>/dev/null || true");
        let found = shell(self.kernel(), &script)?;
        let path = found.lines().next().with_context(|| format!("{self:?} has no {pattern}"))?;
        Ok(path.split('/').nth(4).context("a path of sysfs")?.to_owned())
    }

    fn device(self) -> Result<String> {
        self.find("/sys/class/infiniband/*/ports/1/gids/0", 4)
    }

    fn port(self) -> Result<String> {
        Ok(format!("{}/ports/1", self.device()?))
    }

    /// Waits until its HCA has gone.
    fn is_gone(self) -> Result<()> {
        eventually(|| {
            ensure!(self.device().is_err(), "{self:?} is still there");
            Ok(())
        })
    }

    /// Waits until the host's port is active, and gives it the interface.
    fn equip(self) -> Result<()> {
        let port = eventually(|| self.port())?;
        rig::is_active(self.kernel(), &port)?;
        let interface = eventually(|| self.find("/sys/class/net/ib*/address", 2))?;
        let mut script = String::new();
        let mut within = String::new();
        if let Some(name) = self.namespace() {
            write!(script, "{IP} link set {interface} netns {name} && ")?;
            within = format!("-n {name} ");
        }
        let address = self.address();
        write!(script, "{IP} {within}address add {address}/24 dev {interface} && ")?;
        write!(script, "{IP} {within}link set {interface} up")?;
        shell(self.kernel(), &script).map(drop)
    }

    /// Its HCA, by which a program in the guest sends.
    fn end(self, device: &str) -> End<'_> {
        End { place: self.kernel(), device, port: "1" }
    }

    fn count(self, counter: &str) -> Result<u64> {
        let name = format!("hw_counters/{counter}");
        Ok(rig::port_attribute(self.kernel(), &self.port()?, &name)?.parse()?)
    }
}

fn all() -> impl Iterator<Item = Host> {
    (1..=HOSTS).map(Host)
}

fn shell(kernel: Place, script: &str) -> Result<String> {
    rig::run(kernel, &["busybox", "sh", "-c", script])
}

/// Two switches, with a guest and its namespaces at each.
fn topology() -> Result<String> {
    let mut text = String::from("Switch 17 \"S1\"\n[17] \"S2\"[17]\n\nSwitch 17 \"S2\"\n");
    for host in all() {
        let (switch, port) = (1 + (host.0 - 1) / HALF, 1 + (host.0 - 1) % HALF);
        write!(text, "\nCa 1 \"H{}\"\n[1]({:x}) \"S{switch}\"[{port}]\n", host.0, host.guid())?;
    }
    Ok(text)
}

/// Each namespace has a link of its own to its guest, which forwards.
fn namespaces() -> Result<()> {
    let topology = topology()?;
    for kernel in [Place::Here, Place::Other] {
        let mut script =
            format!("echo 1 > /proc/sys/net/ipv4/ip_forward\necho '{topology}' > {TOPOLOGY}\n");
        for host in all().filter(|host| host.kernel() == kernel) {
            let Some(name) = host.namespace() else { continue };
            let (number, net) = (host.0, format!("198.18.{}", host.0));
            for command in [
                format!("netns add {name}"),
                format!(
                    "link add v{number} mtu 9000 type veth peer name eth0 mtu 9000 netns {name}"
                ),
                format!("address add {net}.1/30 dev v{number}"),
                format!("link set v{number} up"),
                format!("-n {name} link set lo up"),
                format!("-n {name} address add {net}.2/30 dev eth0"),
                format!("-n {name} link set eth0 up"),
                format!("-n {name} route add default via {net}.1"),
            ] {
                writeln!(script, "{IP} {command} || exit 1")?;
            }
        }
        shell(kernel, &script)?;
    }
    ip(Place::Here, &format!("route add 198.18.0.0/16 via {OTHER}")).map(drop)
}

/// The programs of all hosts.
struct Fabric {
    /// With the numbers of their hosts.
    hosts: BTreeMap<usize, Process>,
    manager: Process,
    standby: Process,
}

impl Fabric {
    fn up() -> Result<Self> {
        let listen = format!("udp:{FIRST}:7471");
        let words = ["ibfab", "run", TOPOLOGY, "--device", "H1", "--listen", &listen, "--key", KEY];
        let first = spawn("ibfab-H1", Place::Here, &words)?;
        let mut hosts = BTreeMap::from([(1, first)]);
        // Their HCAs are the first ones of both kernels.
        let manager = rig::opensm_at(Place::Here, A_PORT, &MASTER)?;
        hosts.insert(HALF + 1, Host(HALF + 1).join()?);
        let standby = rig::opensm_at(Place::Other, B_PORT, &STANDBY)?;
        for host in all().filter(|host| host.namespace().is_some()) {
            hosts.insert(host.0, host.join()?);
        }
        for host in all() {
            host.equip().with_context(|| format!("{host:?}"))?;
        }
        Ok(Self { hosts, manager, standby })
    }

    fn prove(&mut self, report: &mut Report) {
        report.claim("each of the 32 ports has a LID of its own", lids());
        report.claim("`ibfab show` lists the 31 hosts that have joined", are_listed());
        report.claim("IPoIB, with its multicast: each host answers the first one's ping", pings());
        report.claim("RC, UC, UD: a host of each kernel exchange data, and check it", pairs());
        report.claim("14 hosts leave and join, and others lose nothing meanwhile", self.moves());
        report.claim("each host answers again", pings());
        report.claim("the manager dies, the standby takes over, and a host joins", self.failover());
        report.claim("each host answers under the other manager", pings());
        report.claim("all leave, and no HCA is left", self.down());
    }

    fn leave(&mut self, host: Host) -> Result<()> {
        self.hosts.get_mut(&host.0).context("a host")?.kill()
    }

    /// Programs of two hosts that stay go on sending.
    fn moves(&mut self) -> Result<()> {
        let (server, client) = (Host(HALF + 2), Host(2));
        let devices = [server.device()?, client.device()?];
        let ends = [server.end(&devices[0]), client.end(&devices[1])];
        let target = OTHER.to_string();
        let options = ["-c", "-s", "5000", "-n", "100000000"];
        let (mut listening, words) =
            verbs::start("ibv_rc_pingpong", ends[0], ends[1], &target, &options)?;
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let mut running = spawn("ibv_rc_pingpong-client", Place::Here, &words)?;
        let goes_on = |since: u64| {
            eventually(|| {
                let sent = client.count("tx_packets")?;
                ensure!(sent > since + 50, "{sent} packets, {since} before: {}", running.said()?);
                Ok(sent)
            })
        };
        let began = goes_on(client.count("tx_packets")?)?;
        let moving = || COME_AND_GO.into_iter().flatten().map(Host);
        for host in moving() {
            self.leave(host)?;
        }
        for host in moving() {
            host.is_gone()?;
        }
        let without = goes_on(began)?;
        for host in moving() {
            self.hosts.insert(host.0, host.join()?);
        }
        for host in moving() {
            host.equip().with_context(|| format!("{host:?}"))?;
        }
        goes_on(without)?;
        running.check_alive()?;
        for host in [server, client] {
            for name in rig::LOSSES {
                let count = host.count(name)?;
                ensure!(count == 0, "{name} of {host:?} is {count}");
            }
        }
        running.kill()?;
        listening.kill()
    }

    fn failover(&mut self) -> Result<()> {
        self.manager.kill()?;
        is_manager(Place::Other, "MASTER")?;
        let host = Host(HALF);
        self.leave(host)?;
        host.is_gone()?;
        self.hosts.insert(host.0, host.join()?);
        host.equip()
    }

    fn down(&mut self) -> Result<()> {
        self.standby.kill()?;
        for process in self.hosts.values_mut().rev() {
            process.kill()?;
        }
        for kernel in [Place::Here, Place::Other] {
            eventually(|| {
                let left = shell(kernel, "ls /sys/class/infiniband")?;
                ensure!(left.is_empty(), "{kernel:?}: {left}");
                Ok(())
            })?;
        }
        Ok(())
    }
}

fn lids() -> Result<()> {
    let lids = all().map(|host| rig::port_attribute(host.kernel(), &host.port()?, "lid"));
    let lids = lids.collect::<Result<BTreeSet<_>>>()?;
    ensure!(lids.len() == HOSTS, "{lids:?}");
    Ok(())
}

fn are_listed() -> Result<()> {
    let shown = rig::run(Place::Here, &["ibfab", "show"])?;
    let (_, joined) = shown.split_once("Hosts that have joined:\n").context("none has joined")?;
    let names: BTreeSet<_> =
        joined.split_whitespace().filter(|word| word.starts_with('H')).collect();
    ensure!(names.len() == HOSTS - 1, "{joined}");
    Ok(())
}

fn pings() -> Result<()> {
    for host in all().skip(1) {
        let address = host.address();
        rig::run(Place::Here, &["ping", "-n", "-c", "1", "-W", "20", &address])
            .with_context(|| format!("{host:?}"))?;
    }
    Ok(())
}

fn pairs() -> Result<()> {
    for number in 1..=HALF {
        let (server, client) = (Host(number + HALF), Host(number));
        let devices = [server.device()?, client.device()?];
        let ends = [server.end(&devices[0]), client.end(&devices[1])];
        let (program, size) = PROGRAMS[number % PROGRAMS.len()];
        let options = ["-c", "-e", "-s", size, "-n", "20"];
        pingpong(program, ends, &OTHER.to_string(), &options)
            .with_context(|| format!("{program}, {client:?} and {server:?}"))?;
    }
    Ok(())
}
