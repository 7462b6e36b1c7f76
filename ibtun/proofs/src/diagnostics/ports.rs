// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Programs that ask a port or the SA, and say the nodes, ports, LIDs and GUIDs of the topology file. Two send packets
//! from one port to another.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ibarr_fabric::topology::PortId;
use ibarr_fabric::wire::smp::NodeType;

use super::{Expected, hexadecimal};
use crate::report::Report;
use crate::rig::{self, INTERFACES, Interface, Place, spawn};

/// The subnet manager's port, which `ibping` may use beside it.
const SM: &str = "SM/1";

/// An address of a group, and the MGID that rdma_cm makes of it.
const GROUP: &str = "224.9.9.9";
const MGID: &str = "ff12:4001:ffff::9:909";

/// That of OpenSM, unless its configuration says another.
const SM_KEY: &str = "1";

/// It waits 3 s until switches forward to a group.
const MCKEY_PATIENCE: Duration = Duration::from_mins(1);

pub(super) fn prove(fabric: &Expected, report: &mut Report) {
    report.claim("saquery: nodes and links, as the SA has them", fabric.asked());
    report.claim("smpquery: each port's node, name and LIDs", fabric.each_port());
    report.claim("ibstat, ibv_devinfo: the ports of an HCA", fabric.own_ports());
    report.claim("ibping: the port with a server answers, and no other", fabric.pings());
    report.claim("mckey: a group's other member hears it, and the SA lists it", group());
}

impl Expected {
    fn lid(&self, name: &str) -> Result<u16> {
        let port = self.topology.find_port(name).with_context(|| format!("no {name}"))?;
        Ok(self.end(port)?.lid)
    }

    /// A port of each switch.
    fn switches(&self) -> impl Iterator<Item = PortId> {
        let switches = self.topology.nodes().filter(|(_, node)| node.kind == NodeType::Switch);
        switches.filter_map(|(id, _)| Some(self.linked().find(|(port, _)| port.node == id)?.0))
    }

    fn asked(&self) -> Result<()> {
        let mut nodes = BTreeSet::new();
        for port in self.hosts()?.into_iter().chain(self.switches()) {
            let (end, node) = (self.end(port)?, self.node(port)?);
            nodes.insert((end.lid, node.guid.get(), end.guid, node.port_count().into(), end.name));
        }
        let found = |record: Record<'_>| -> Result<_> {
            let guids = [record.guid("node_guid")?, record.guid("port_guid")?];
            let name = record.get("NodeDescription")?.to_owned();
            Ok((record.number("lid")?, guids[0], guids[1], record.number("num_ports")?, name))
        };
        let said = rig::run(Place::Here, &["saquery", "NR"])?;
        let there = records(&said).map(found).collect::<Result<BTreeSet<_>>>()?;
        ensure!(there == nodes, "{there:?} instead of {nodes:?}");

        let mut links = BTreeSet::new();
        for (from, to) in self.linked() {
            let [from, to] = [self.end(from)?, self.end(to)?];
            links.insert([from.lid, from.number.into(), to.lid, to.number.into()]);
        }
        let found = |record: Record<'_>| -> Result<[u16; 4]> {
            let [from, to] = [record.number("FromLID")?, record.number("ToLID")?];
            Ok([from, record.number("FromPort")?, to, record.number("ToPort")?])
        };
        let said = rig::run(Place::Here, &["saquery", "LR"])?;
        let there = records(&said).map(found).collect::<Result<BTreeSet<_>>>()?;
        ensure!(there == links, "{there:?} instead of {links:?}");
        Ok(())
    }

    fn each_port(&self) -> Result<()> {
        let sm = self.lid(SM)?;
        for port in self.hosts()?.into_iter().chain(self.switches()) {
            let (end, node) = (self.end(port)?, self.node(port)?);
            let lid = end.lid.to_string();
            let ask = |words: &[&str]| rig::run(Place::Here, &[&["smpquery"], words].concat());
            let said = ask(&["nodeinfo", &lid])?;
            let info = Record(&said);
            let guids = [info.guid("Guid")?, info.guid("PortGuid")?];
            ensure!(guids == [node.guid.get(), end.guid], "{end:?}: {said}");
            ensure!(info.number("NumPorts")? == u16::from(node.port_count()), "{end:?}: {said}");
            let said = ask(&["nodedesc", &lid])?;
            ensure!(Record(&said).get("Node Description")? == node.name, "{end:?}: {said}");
            if node.kind == NodeType::ChannelAdapter {
                let said = ask(&["portinfo", &lid, &end.number.to_string()])?;
                let info = Record(&said);
                let lids = [info.number("Lid")?, info.number("SMLid")?];
                ensure!(lids == [end.lid, sm], "{end:?}: {said}");
                ensure!(info.get("LinkState")? == "Active", "{end:?}: {said}");
            }
        }
        Ok(())
    }

    fn own_ports(&self) -> Result<()> {
        let sm = self.lid(SM)?;
        let stat = rig::run(Place::Here, &["ibstat", "ibtun0"])?;
        let info = rig::run(Place::Here, &["ibv_devinfo", "-d", "ibtun0"])?;
        let node = self.node(self.topology.find_port("N/1").context("no N/1")?)?;
        // libibverbs has a colon between groups of four digits.
        let guid = u64::from_str_radix(&Record(&info).get("node_guid")?.replace(':', ""), 16)?;
        ensure!([Record(&stat).guid("Node GUID")?, guid] == [node.guid.get(); 2], "{stat}{info}");
        let counts =
            [Record(&stat).number("Number of ports")?, Record(&info).number("phys_port_cnt")?];
        ensure!(counts == [u16::from(node.port_count()); 2], "{stat}{info}");
        for number in 1..=node.port_count() {
            let port = self.topology.find_port(&format!("N/{number}")).context("no port")?;
            let end = self.end(port)?;
            let behind = |said: &'_ str, heading: &str| {
                said.split_once(heading)
                    .map(|(_, behind)| behind.to_owned())
                    .context(heading.to_owned())
            };
            let stat = behind(&stat, &format!("\tPort {number}:\n"))?;
            let info = behind(&info, &format!("\tport:\t{number}\n"))?;
            let [stat, info] = [Record(&stat), Record(&info)];
            let lids = [stat.number("Base lid")?, info.number("port_lid")?];
            ensure!(lids == [end.lid; 2], "{end:?}: {lids:?}");
            let lids = [stat.number("SM lid")?, info.number("sm_lid")?];
            ensure!(lids == [sm; 2], "{end:?}: {lids:?}");
            let states = [stat.get("State")?, info.get("state")?];
            ensure!(states == ["Active", "PORT_ACTIVE (4)"], "{end:?}: {states:?}");
            ensure!(stat.guid("Port GUID")? == end.guid, "{end:?}");
        }
        Ok(())
    }

    fn pings(&self) -> Result<()> {
        let ping = |count: &str, lid: u16| {
            let options = ["ibping", "-C", "ibtun0", "-P", "1", "-t", "500", "-c", count];
            rig::run(Place::Here, &[&options[..], &[&lid.to_string()]].concat())
                .unwrap_or_else(|error| format!("{error:#}"))
        };
        let [there, other] = [self.lid(SM)?, self.lid("N/2")?];
        let server = ["ibping", "-S", "-C", "ibtun1", "-P", "1"];
        let server = spawn("ibping", Place::Here, &server)?;
        let answered = |said: &str, count: usize| {
            said.matches(&format!("(Lid {there}): time")).count() == count
        };
        rig::eventually(|| {
            let said = ping("1", there);
            ensure!(answered(&said, 1), "{said}");
            Ok(())
        })?;
        let said = ping("3", there);
        let all = "3 packets transmitted, 3 received, 0% packet loss";
        ensure!(answered(&said, 3) && said.contains(all), "{said}");
        let said = ping("1", other);
        ensure!(said.contains("1 packets transmitted, 0 received, 100% packet loss"), "{said}");
        server.stop()?;
        Ok(())
    }
}

/// A member waits; another sends.
fn group() -> Result<()> {
    let [sender, .., receiver] = INTERFACES;
    let mckey = |interface: Interface| {
        let address = interface.addresses[0].split('/').next().unwrap_or_default();
        ["mckey", "-m", GROUP, "-b", address]
    };
    let waits = spawn("mckey", receiver.place, &mckey(receiver))?;
    let mlid = rig::eventually(|| {
        let members = members()?;
        ensure!(members.len() == 1, "{members:?}: {}", waits.said()?);
        ensure!(members[0].1 == receiver.gid()?.to_string(), "{members:?}");
        Ok(members[0].0)
    })?;
    let said = rig::run(sender.place, &[&mckey(sender)[..], &["-s"]].concat())?;
    let joined = format!("joined dgid: {MGID} mlid 0x{mlid:x} ");
    ensure!(said.contains(&joined) && said.contains("return status 0"), "no {joined} in {said}");
    let status = waits.wait(MCKEY_PATIENCE)?;
    ensure!(status.success(), "the other member: {status}");
    rig::eventually(|| {
        let members = members()?;
        ensure!(members.is_empty(), "still members: {members:?}");
        Ok(())
    })
}

/// The MLID of the group, and the GID of a member, for each member.
fn members() -> Result<Vec<(u64, String)>> {
    // Only who knows the SM_Key is told who the members are.
    let said = rig::run(Place::Here, &["saquery", "--smkey", SM_KEY, "-m"])?;
    let mut members = Vec::new();
    for record in records(&said) {
        if record.get("MGID")? == MGID {
            members.push((record.guid("Mlid")?, record.get("PortGid")?.to_owned()));
        }
    }
    Ok(members)
}

/// Lines of a name, dots or a colon, and a value.
#[derive(Clone, Copy)]
struct Record<'a>(&'a str);

impl<'a> Record<'a> {
    fn get(self, name: &str) -> Result<&'a str> {
        let value = self.0.lines().find_map(|line| {
            let behind = line.trim_start().strip_prefix(name)?;
            let is_whole = behind.starts_with(['.', ':']);
            is_whole.then(|| behind.trim_start_matches(['.', ':', ' ', '\t']))
        });
        value.with_context(|| format!("no {name} in {}", self.0))
    }

    fn number(self, name: &str) -> Result<u16> {
        let value = self.get(name)?;
        value.parse().with_context(|| format!("{name}: {value}"))
    }

    fn guid(self, name: &str) -> Result<u64> {
        hexadecimal(self.get(name)?)
    }
}

/// What `saquery` says, each behind a line with `dump:`.
fn records(said: &str) -> impl Iterator<Item = Record<'_>> {
    said.split(" dump:\n").skip(1).map(Record)
}
