// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Debian's infiniband-diags agree with the topology file: they find its nodes, ports and links, with the LIDs that
//! the fabric has, and no others. They find no error on a healthy fabric, and a lossy link by its counters.

mod ports;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use ibarr_fabric::topology::{Node, PortId, Topology};
use ibarr_fabric::wire::smp::NodeType;

use crate::report::Report;
use crate::rig::{self, B, INTERFACES, Place, TOPOLOGY};

/// Its host has not joined.
const ABSENT: &str = "J";

/// A port on which packets get lost.
const LOSSY: &str = "N/2";

pub(crate) fn prove(report: &mut Report) {
    let Some(fabric) = report.claim("the fabric shows its ports", Expected::read()) else { return };
    report.claim("the kernel has the LIDs of the fabric", fabric.is_the_kernels());
    let programs: [(&str, &dyn Fn() -> Result<()>); 9] = [
        ("ibnetdiscover: links, LIDs and names", &|| fabric.same(&discovered()?)),
        ("iblinkinfo: links, LIDs and names", &|| fabric.same(&link_info()?)),
        ("ibhosts, ibswitches, ibnodes: nodes and number of ports", &|| fabric.nodes()),
        ("ibtracert: the route between any two ports", &|| fabric.routes()),
        ("ibroute, dump_fts: each switch's port to any LID", &|| fabric.tables()),
        ("ibstatus, ibaddr: GIDs and LIDs", &|| addresses()),
        ("perfquery: the fabric's counters, of 32 and of 64 bits", &|| counters()),
        ("ibqueryerrors: no error on a healthy fabric", &|| fabric.is_healthy()),
        ("ibqueryerrors: both ends of a lossy link, as often as the fabric", &|| lossy()),
    ];
    let Some(()) = report.claim("scripts have a shell", shell()) else { return };
    for (claim, proof) in programs {
        report.claim(claim, proof());
    }
    report.claim("ibqueryerrors: no error after it has cleared the counters", fabric.cleared());
    ports::prove(&fabric, report);
}

/// One end of a link.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct End {
    guid: u64,
    number: u8,
    lid: u16,
    name: String,
}

/// What the programs should find.
struct Expected {
    topology: Topology,
    /// Of each port with a cable.
    lids: BTreeMap<PortId, u16>,
}

impl Expected {
    /// The nodes and cables of the topology file, and the LIDs of `ibfab show`.
    fn read() -> Result<Self> {
        let topology: Topology = fs::read_to_string(TOPOLOGY).context(TOPOLOGY)?.parse()?;
        let shown = Shown::read()?;
        let mut lids = BTreeMap::new();
        for (port, columns) in shown.0 {
            let id = topology.find_port(&port).with_context(|| format!("no port {port}"))?;
            if let Ok(lid) = columns.lid.parse() {
                lids.insert(id, lid);
            }
        }
        Ok(Self { topology, lids })
    }

    fn node(&self, port: PortId) -> Result<&Node> {
        self.topology.node(port.node).context("no node")
    }

    fn end(&self, port: PortId) -> Result<End> {
        let node = self.node(port)?;
        let guid = node.port_guid(port.number).context("no port")?.get();
        let lid = *self.lids.get(&port).context("no LID")?;
        Ok(End { guid, number: port.number.get(), lid, name: node.name.clone() })
    }

    fn is_there(&self, port: PortId) -> bool {
        self.topology.node(port.node).is_some_and(|node| node.name != ABSENT)
    }

    /// Ports with a link.
    fn linked(&self) -> impl Iterator<Item = (PortId, PortId)> {
        let ports = self
            .topology
            .nodes()
            .flat_map(|(node, of)| of.port_numbers().map(move |number| PortId { node, number }));
        let linked = ports.filter_map(|port| Some((port, self.topology.peer(port)?)));
        linked.filter(|&(port, peer)| self.is_there(port) && self.is_there(peer))
    }

    /// Ports of channel adapters.
    fn hosts(&self) -> Result<Vec<PortId>> {
        let mut hosts = Vec::new();
        for (port, _) in self.linked() {
            if self.node(port)?.kind == NodeType::ChannelAdapter {
                hosts.push(port);
            }
        }
        Ok(hosts)
    }

    fn same(&self, found: &BTreeSet<[End; 2]>) -> Result<()> {
        let links = self.linked().map(|(port, peer)| Ok([self.end(port)?, self.end(peer)?]));
        let links = links.collect::<Result<BTreeSet<_>>>()?;
        let missing: Vec<_> = links.difference(found).collect();
        let added: Vec<_> = found.difference(&links).collect();
        ensure!(missing.is_empty() && added.is_empty(), "missing: {missing:?}; added: {added:?}");
        Ok(())
    }

    fn is_the_kernels(&self) -> Result<()> {
        for interface in INTERFACES {
            let number = interface.port.rsplit('/').next().unwrap_or_default();
            let port = self.topology.find_port(&format!("N/{number}")).context("no port")?;
            let lid = self.end(port)?.lid;
            ensure!(interface.lid()? == lid, "{}: {} and {lid}", interface.port, interface.lid()?);
        }
        Ok(())
    }

    fn nodes(&self) -> Result<()> {
        let nodes = |kind: NodeType, name: &str| {
            let of_kind = self.topology.nodes().map(|(_, node)| node);
            let of_kind = of_kind.filter(move |node| node.kind == kind && node.name != ABSENT);
            let line = |node: &Node| {
                format!(
                    "{name}\t: 0x{:016x} ports {} \"{}\"",
                    node.guid.get(),
                    node.port_count(),
                    node.name
                )
            };
            of_kind.map(line).collect::<BTreeSet<_>>()
        };
        let hosts = nodes(NodeType::ChannelAdapter, "Ca");
        let switches = nodes(NodeType::Switch, "Switch");
        let all = hosts.union(&switches).cloned().collect();
        for (program, expected) in [("ibhosts", hosts), ("ibswitches", switches), ("ibnodes", all)]
        {
            let said = rig::run(Place::Here, &["busybox", "env", "IBPATH=/bin", program])?;
            // Lines of switches go on behind the name.
            let whole = |line: &str| line.split(" base port").next().unwrap_or_default().to_owned();
            let found: BTreeSet<_> = said.lines().map(whole).collect();
            ensure!(found == expected, "{program}: {said}");
        }
        Ok(())
    }

    /// The ports through which packets leave, from a switch to a port. A tree has one route.
    fn toward(&self, switch: PortId, target: PortId) -> Result<PortId> {
        let at = self.topology.peer(target).context("no cable")?;
        if at.node == switch.node {
            return Ok(at);
        }
        let mut trunks =
            self.linked().filter(|(port, peer)| (port.node, peer.node) == (switch.node, at.node));
        Ok(trunks.next().context("no trunk")?.0)
    }

    fn routes(&self) -> Result<()> {
        let hosts = self.hosts()?;
        let pairs = hosts.iter().flat_map(|from| hosts.iter().map(move |to| (*from, *to)));
        for (from, to) in pairs.filter(|(from, to)| from != to) {
            let [source, target] = [self.end(from)?, self.end(to)?];
            let said = rig::run(
                Place::Here,
                &["ibtracert", &source.lid.to_string(), &target.lid.to_string()],
            )?;
            let line = |word: &str, end: &End, guid: u64| {
                let End { number, lid, name, .. } = end;
                format!("{word} ca {{0x{guid:016x}}} portnum {number} lid {lid}-{lid} \"{name}\"\n")
            };
            let mut expected = line("From", &source, self.node(from)?.guid.get());
            let mut leaves = from;
            loop {
                let enters = self.topology.peer(leaves).context("no cable")?;
                let End { guid, number, lid, name } = self.end(enters)?;
                let kind = if enters == to { "ca" } else { "switch" };
                writeln!(
                    expected,
                    "[{}] -> {kind} port {{0x{guid:016x}}}[{number}] lid {lid}-{lid} \"{name}\"",
                    leaves.number
                )?;
                if enters == to {
                    break;
                }
                leaves = self.toward(enters, to)?;
            }
            expected += &line("To", &target, self.node(to)?.guid.get());
            ensure!(said == expected, "{said} instead of {expected}");
        }
        Ok(())
    }

    fn tables(&self) -> Result<()> {
        let everywhere = rig::run(Place::Here, &["dump_fts"])?;
        for (node, switch) in
            self.topology.nodes().filter(|(_, node)| node.kind == NodeType::Switch)
        {
            let (own, _) = self.linked().find(|(port, _)| port.node == node).context("no port")?;
            let said = rig::run(Place::Here, &["ibroute", &self.end(own)?.lid.to_string()])?;
            for host in self.hosts()? {
                let End { guid, lid, name, .. } = self.end(host)?;
                let port = self.toward(own, host)?.number.get();
                let line = format!(
                    "0x{lid:04x} {port:03} : (Channel Adapter portguid 0x{guid:016x}: '{name}')\n"
                );
                ensure!(said.contains(&line), "{}: no {line} in {said}", switch.name);
            }
            // The lines of the table, and how many there are.
            let lines = said.split_once("Info \n").context("no table")?.1;
            ensure!(everywhere.contains(lines), "not in dump_fts: {lines}");
            let lids = self.hosts()?.len() + 2;
            ensure!(lines.contains(&format!("{lids} valid lids dumped")), "{lines}");
        }
        Ok(())
    }

    /// Neither errors, nor fewer or more ports.
    fn is_healthy(&self) -> Result<()> {
        let there = self.topology.nodes().map(|(_, node)| node).filter(|node| node.name != ABSENT);
        let ports: Vec<_> = there.map(|node| usize::from(node.port_count())).collect();
        let said = rig::run(Place::Here, &["ibqueryerrors"])?;
        for summary in [
            format!("{} nodes checked, 0 bad nodes found", ports.len()),
            format!("{} ports checked, 0 ports have errors", ports.iter().sum::<usize>()),
        ] {
            ensure!(said.contains(&summary), "no {summary:?} in {said}");
        }
        Ok(())
    }

    fn cleared(&self) -> Result<()> {
        // Its status says that there were errors.
        let cleared = rig::run(Place::Here, &["ibqueryerrors", "-k"]);
        ensure!(cleared.is_err(), "there was none");
        self.is_healthy()
    }
}

/// Scripts name their shell, and find programs by IBPATH.
fn shell() -> Result<()> {
    if !Path::new("/bin/sh").exists() {
        symlink("/bin/busybox", "/bin/sh").context("/bin/sh")?;
    }
    Ok(())
}

/// `ibnetdiscover -p`: a line for each port; one with a link has both ends.
fn discovered() -> Result<BTreeSet<[End; 2]>> {
    let said = rig::run(Place::Here, &["ibnetdiscover", "-p"])?;
    let mut links = BTreeSet::new();
    for line in said.lines() {
        let Some((ports, names)) = line.split_once(" ( ") else { continue };
        let (from, to) = ports.split_once(" - ").with_context(|| line.to_owned())?;
        let mut names = names.split('\'').skip(1).step_by(2);
        let mut end = |text: &str| -> Result<End> {
            let words: Vec<_> = text.split_whitespace().collect();
            let [_, lid, number, guid, ..] = words[..] else { anyhow::bail!("{line}") };
            let name = names.next().with_context(|| line.to_owned())?.to_owned();
            Ok(End { guid: hexadecimal(guid)?, number: number.parse()?, lid: lid.parse()?, name })
        };
        links.insert([end(from)?, end(to)?]);
    }
    Ok(links)
}

/// `iblinkinfo -l`: a line for each port.
fn link_info() -> Result<BTreeSet<[End; 2]>> {
    let said = rig::run(Place::Here, &["iblinkinfo", "-l"])?;
    let mut links = BTreeSet::new();
    for line in said.lines().filter(|line| line.contains("Active/  LinkUp")) {
        let (from, rest) = line.split_once("==(").with_context(|| line.to_owned())?;
        let to = rest.split_once("==>").with_context(|| line.to_owned())?.1;
        let end = |text: &str| -> Result<End> {
            let (before, name) = text.split_once('"').context("no name")?;
            let (name, behind) = name.split_once('"').context("no name")?;
            let numbers = format!("{before} {behind}").replace(['[', ']', '(', ')'], " ");
            let numbers: Vec<_> = numbers.split_whitespace().collect();
            let [guid, lid, number] = numbers[..] else { anyhow::bail!("{text}") };
            let name = name.trim().to_owned();
            Ok(End { guid: hexadecimal(guid)?, number: number.parse()?, lid: lid.parse()?, name })
        };
        links.insert([end(from)?, end(to)?]);
    }
    Ok(links)
}

fn hexadecimal(digits: &str) -> Result<u64> {
    u64::from_str_radix(digits.trim_start_matches("0x"), 16).with_context(|| digits.to_owned())
}

/// The GIDs and LIDs of sysfs.
fn addresses() -> Result<()> {
    let status = rig::run(Place::Here, &["busybox", "sh", "/bin/ibstatus", "ibtun0"])?;
    for interface in INTERFACES {
        let (gid, lid) = (interface.gid()?, interface.lid()?);
        let said = rig::run(Place::Here, &["ibaddr", &lid.to_string()])?;
        let expected = format!("GID {gid} LID start 0x{lid:x} end 0x{lid:x}\n");
        ensure!(said == expected, "{said} instead of {expected}");
        let number = interface.port.rsplit('/').next().unwrap_or_default();
        let own = status.split_once(&format!("port {number} status:")).context("no port")?.1;
        let own = own.split("Infiniband device").next().unwrap_or_default();
        let [long, lid, state] = ["gids/0", "lid", "state"].map(|name| interface.attribute(name));
        for value in [long?, lid?, state?] {
            ensure!(own.contains(&format!(" {value}\n")), "no {value} in {own}");
        }
    }
    Ok(())
}

/// The counters are between two readings of the fabric's.
fn counters() -> Result<()> {
    for interface in INTERFACES {
        let number = interface.port.rsplit('/').next().unwrap_or_default();
        for width in [&[][..], &["-x"]] {
            let lid = interface.lid()?.to_string();
            let before = Shown::read()?.port(&format!("N/{number}"))?;
            let said = rig::run(Place::Here, &[&["perfquery"], width, &[&lid, number]].concat())?;
            let after = Shown::read()?.port(&format!("N/{number}"))?;
            for (name, range) in [
                ("PortXmitPkts:", before.sent..=after.sent),
                ("PortRcvPkts:", before.received..=after.received),
            ] {
                let line = said.lines().find_map(|line| line.strip_prefix(name));
                let value = line.with_context(|| format!("no {name} in {said}"))?.trim_matches('.');
                ensure!(range.contains(&value.parse()?), "{name} {value}, not in {range:?}");
                ensure!(*range.start() > 0, "nothing was sent");
            }
        }
    }
    Ok(())
}

/// Packets get lost, and then no more, so that both count the same.
fn lossy() -> Result<()> {
    rig::run(Place::Here, &["ibfab", "fault", "link", LOSSY, "--loss", "40%"])?;
    let ping = ["ping", "-n", "-c", "30", "-i", "0.05", "-W", "1", "10.2.0.254"];
    // ping fails if all are lost.
    let pinged = rig::run(B, &ping);
    rig::run(Place::Here, &["ibfab", "fault", "link", LOSSY])?;
    let shown = Shown::read()?;
    let expected: BTreeMap<_, _> = shown
        .0
        .iter()
        .filter(|(_, columns)| columns.dropped > 0)
        .map(|(port, columns)| (port.as_str(), columns.dropped))
        .collect();
    let said =
        rig::run(Place::Here, &["ibqueryerrors"]).unwrap_or_else(|error| format!("{error:#}"));
    ensure!(
        expected.keys().copied().collect::<Vec<_>>() == [LOSSY, "S2/2"],
        "{expected:?}; {pinged:?}"
    );
    for (port, errors) in &expected {
        let number = port.rsplit('/').next().unwrap_or_default();
        let line = format!(
            " port {number}: [SymbolErrorCounter == {errors}] [PortRcvErrors == {errors}]\n"
        );
        ensure!(said.contains(&line), "no {line} in {said}");
    }
    ensure!(said.contains("22 ports checked, 2 ports have errors"), "{said}");
    Ok(())
}

/// Columns of `ibfab show` by port.
pub(crate) struct Shown(BTreeMap<String, Columns>);

#[derive(Clone, Debug)]
pub(crate) struct Columns {
    lid: String,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    dropped: u64,
}

impl Shown {
    pub(crate) fn read() -> Result<Self> {
        let said = rig::run(Place::Here, &["ibfab", "show"])?;
        let mut ports = BTreeMap::new();
        for line in said.lines().skip(1).take_while(|line| !line.is_empty()) {
            let words: Vec<_> = line.split_whitespace().collect();
            let [port, _, _, lid, sent, received, dropped] = words[..] else {
                anyhow::bail!("{line}")
            };
            let (sent, received, dropped) = (sent.parse()?, received.parse()?, dropped.parse()?);
            ports.insert(port.to_owned(), Columns { lid: lid.to_owned(), sent, received, dropped });
        }
        Ok(Self(ports))
    }

    pub(crate) fn port(&self, name: &str) -> Result<Columns> {
        Ok(self.0.get(name).with_context(|| format!("no {name}"))?.clone())
    }
}
