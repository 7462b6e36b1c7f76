// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Parses a topology in the format of `ibnetdiscover` and ibsim.
//!
//! ```text
//! switchguid=0x200000            # of the next switch; the following ones count on from it
//! Switch  8 "S1"                 # "what it calls itself"
//! [1]     "H1"[1]                # a cable; whichever end names it, or both
//!                                # an empty line ends the node
//! Ca      2 "H1"
//! [1](100001)     "S1"[1]        # with the GUID of the port
//! [2]     "S1"                   # as in ibsim: to port 1
//! ```
//!
//! `ibnetdiscover -g` puts headings between the nodes, and a number of the chassis' own after some ports: `[1][ext 5]`.

use crate::wire::smp::NodeType;
use ibarr_common::ib::{Guid, PortNum};

use super::{NodeId, PortId, Topology, TopologyError};

/// A mistake in the text of a topology, with its line.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("line {line}: {mistake}")]
pub struct ParseError {
    /// Line number, from 1 on.
    pub line: usize,
    /// The mistake and its remedy.
    pub mistake: Mistake,
}

/// A mistake in a line.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Mistake {
    /// The line is neither node, nor cable, nor assignment.
    #[error("not understood: write a node as `Switch 8 \"NAME\"`, a cable as `[1] \"NAME\"[1]`")]
    Unknown,
    /// The number of ports is not 1 to 254.
    #[error("{0:?} is not a number of ports: write 1 to 254")]
    PortCount(String),
    /// The name is not in quotes.
    #[error("the name is missing: write it in double quotes")]
    Name,
    /// The port number is not 1 to 254.
    #[error("{0:?} is not a port: write 1 to 254 in brackets")]
    PortNumber(String),
    /// The value is not a number.
    #[error("{0:?} is not a number: write it like 0x200000")]
    Number(String),
    /// The cable comes before the first node.
    #[error("a cable before the first node: begin with a line like `Switch 8 \"NAME\"`")]
    NoNode,
    /// The cable leads to a node that does not exist.
    #[error("there is no node {0:?}: add it, or correct the name")]
    NoSuchNode(String),
    /// The description is too long.
    #[error("the description is longer than 64 bytes")]
    Description,
    /// The line is well-formed, but contradicts earlier ones.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

/// GUIDs and other values, which stand before their node.
#[derive(Default)]
struct Ahead {
    ca: Option<u64>,
    switch: Option<u64>,
    router: Option<u64>,
    system_image: Option<u64>,
    vendor: u32,
    device: u16,
}

/// A cable as one end names it. A node may be named before it is defined.
struct Cable<'a> {
    line: usize,
    from: PortId,
    to: &'a str,
    to_port: PortNum,
}

pub(super) fn parse(text: &str) -> Result<Topology, ParseError> {
    let mut topology = Topology::new();
    let mut ahead = Ahead::default();
    let mut node = None;
    let mut cables = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let at = |mistake: Mistake| ParseError { line: line_number, mistake };
        let (code, comment) = split_comment(line);
        let code = code.trim();
        if code.is_empty() || code.starts_with("Chassis ") || code == "Non-Chassis Nodes" {
            continue;
        }
        if let Some(cable) = code.strip_prefix('[') {
            let node = node.ok_or_else(|| at(Mistake::NoNode))?;
            let cable = parse_cable(&mut topology, node, cable).map_err(at)?;
            cables.extend(cable.map(|(from, to, to_port)| Cable {
                line: line_number,
                from,
                to,
                to_port,
            }));
        } else if let Some((key, value)) = assignment(code) {
            parse_assignment(&mut ahead, key.trim(), value).map_err(at)?;
        } else {
            node = Some(parse_node(&mut topology, &mut ahead, code, comment).map_err(at)?);
        }
    }
    for Cable { line, from, to, to_port } in cables {
        let at = |mistake: Mistake| ParseError { line, mistake };
        let Some(node) = topology.find(to) else {
            return Err(at(Mistake::NoSuchNode(to.to_owned())));
        };
        let to = PortId { node, number: to_port };
        // Both ends may name the same cable.
        if topology.peer(from) != Some(to) {
            topology.connect(from, to).map_err(|error| at(error.into()))?;
        }
    }
    Ok(topology)
}

/// Parses `key=value`. A quoted name may contain `=` as well.
fn assignment(code: &str) -> Option<(&str, &str)> {
    code.split_once('=').filter(|(key, _)| !key.contains('"'))
}

/// Splits at the first `#` outside quotes.
fn split_comment(line: &str) -> (&str, &str) {
    let mut quoted = false;
    let hash = line.char_indices().find(|&(_, character)| {
        quoted ^= character == '"';
        character == '#' && !quoted
    });
    hash.map_or((line, ""), |(at, _)| line.split_at(at))
}

fn parse_assignment(ahead: &mut Ahead, key: &str, value: &str) -> Result<(), Mistake> {
    // `0x200000(200000) Spine 1`: the port's GUID follows that of the switch.
    let text = value.split('(').next().unwrap_or_default().trim();
    let number = number(text)?;
    let narrow = || Mistake::Number(text.to_owned());
    match key {
        "caguid" | "caguids" | "hcaguid" | "hcaguids" => ahead.ca = Some(number),
        "switchguid" | "switchguids" => ahead.switch = Some(number),
        "rtguid" => ahead.router = Some(number),
        "sysimgguid" => ahead.system_image = Some(number),
        "vendid" => ahead.vendor = u32::try_from(number).map_err(|_| narrow())? & 0x00ff_ffff,
        "devid" => ahead.device = u16::try_from(number).map_err(|_| narrow())?,
        _ => return Err(Mistake::Unknown),
    }
    Ok(())
}

fn parse_node(
    topology: &mut Topology,
    ahead: &mut Ahead,
    code: &str,
    comment: &str,
) -> Result<NodeId, Mistake> {
    let (kind, rest) = code.split_once(char::is_whitespace).ok_or(Mistake::Unknown)?;
    let (kind, guid) = match kind {
        "Ca" | "Hca" => (NodeType::ChannelAdapter, ahead.ca.take()),
        "Switch" => (NodeType::Switch, ahead.switch.take()),
        "Rt" => (NodeType::Router, ahead.router.take()),
        _ => return Err(Mistake::Unknown),
    };
    let rest = rest.trim_start();
    let count = rest.split(|character: char| !character.is_ascii_digit()).next();
    let count = count.unwrap_or_default();
    let ports = count.parse().ok().and_then(PortNum::new);
    let ports = ports.ok_or_else(|| Mistake::PortCount(count.to_owned()))?;
    let (name, _) = quoted(rest).ok_or(Mistake::Name)?;
    let id = match guid {
        Some(guid) => topology.add(kind, name, Guid::new(guid), ports)?,
        None => topology.add_next(kind, name, ports)?,
    };
    if let Some(node) = topology.nodes.get_mut(id.0) {
        if let Some((description, _)) = quoted(comment) {
            if description.len() > 64 {
                return Err(Mistake::Description);
            }
            description.clone_into(&mut node.description);
        }
        if let Some(guid) = ahead.system_image.take() {
            node.system_image_guid = Guid::new(guid);
        }
        node.vendor_id = ahead.vendor;
        node.device_id = ahead.device;
    }
    Ok(id)
}

/// The part of `[1](100001) "S1"[2]` after the first bracket.
fn parse_cable<'a>(
    topology: &mut Topology,
    node: NodeId,
    cable: &'a str,
) -> Result<Option<(PortId, &'a str, PortNum)>, Mistake> {
    let (number, rest) = port_number(cable)?;
    let from = PortId { node, number };
    let label = rest.strip_prefix("[ext ").and_then(|label| label.split_once(']'));
    let rest = label.map_or(rest, |(_, rest)| rest).trim_start();
    let (guid, rest) = match rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
        Some((guid, rest)) => {
            let hex = u64::from_str_radix(guid.trim_start_matches("0x"), 16);
            (Some(hex.map_err(|_| Mistake::Number(guid.to_owned()))?), rest)
        }
        None => (None, rest),
    };
    let name = topology.port_name(from);
    let port = topology.port_mut(from).ok_or(TopologyError::NoPort(name))?;
    if let Some(guid) = guid {
        port.guid = Guid::new(guid);
    }
    if rest.trim().is_empty() {
        return Ok(None);
    }
    let (to, rest) = quoted(rest).ok_or(Mistake::Name)?;
    let number = match rest.trim() {
        "" => "1",
        rest => rest.strip_prefix('[').ok_or_else(|| Mistake::PortNumber(rest.to_owned()))?,
    };
    Ok(Some((from, to, port_number(number)?.0)))
}

/// The number in `1] …`, and the part after the bracket.
fn port_number(text: &str) -> Result<(PortNum, &str), Mistake> {
    let (number, rest) = text.split_once(']').unwrap_or((text, ""));
    let port = number.trim().parse().ok().and_then(PortNum::new);
    Ok((port.ok_or_else(|| Mistake::PortNumber(number.to_owned()))?, rest))
}

/// The text in the first pair of double quotes, and the part after it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let (_, behind) = text.split_once('"')?;
    behind.split_once('"').filter(|(name, _)| !name.is_empty())
}

fn number(text: &str) -> Result<u64, Mistake> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number.map_err(|_| Mistake::Number(text.to_owned()))
}
