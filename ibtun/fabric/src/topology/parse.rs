// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Parses a topology in the format of `ibnetdiscover` and ibsim.
//!
//! ```text
//! switchguid=0x200000            # of the next switch; the following ones count on from it
//! Switch  8 "S1"                 # "what it calls itself"
//! [1]     "H1"[1]                # a cable; whichever end names it, or both
//!                                # an empty line ends the node
//! Ca      2 "H1"
//! [1](100001)     "S1"[1] # lid 3 lmc 0 "S1" lid 2 4xNDR
//! [2]     "S1"                   # as in ibsim: to port 1
//! ```
//!
//! `ibnetdiscover -g` puts headings between the nodes, and a number of the chassis' own after some ports: `[1][ext 5]`.
//! What its libraries say on stderr may stand between the lines.

mod line;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use ibarr_common::ib::Guid;
use thiserror::Error;

use self::line::{Cable, Far, Node};
use super::{NodeId, PortId, Rate, Rates, Routing, Topology, TopologyError};
use crate::wire::smp::NodeType;

/// A mistake in the text of a topology, with its line.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{}line {line}: {mistake}", .file.as_ref().map(|file| format!("{file}, ")).unwrap_or_default())]
pub struct ParseError {
    /// The included file that has the line; `None` for the text itself.
    pub file: Option<String>,
    /// Line number, from 1 on.
    pub line: usize,
    /// The mistake and its remedy.
    pub mistake: Mistake,
}

/// A mistake in a line.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
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
    /// The cable leads to an alias that does not exist.
    #[error("there is no alias {0:?}: define it as `@[1] \"ALIAS\"` at its port")]
    NoSuchAlias(String),
    /// Two ports have the same alias.
    #[error("there is an alias {0:?} already: give each its own")]
    AliasTaken(String),
    /// The description is too long.
    #[error("the description is longer than 64 bytes")]
    Description,
    /// A width or speed that is not known.
    #[error("{0:?} is not a width and speed: write it like 4xNDR")]
    Rate(String),
    /// Bits of widths or speeds that are not defined.
    #[error(
        "{0:?} is not an option of a port: width w=1 to 31, speed s=0 to 7, extended speed e=0 to \
         15, 32 for XDR"
    )]
    Option(String),
    /// Not a way in which a router finds LIDs.
    #[error("{0:?} is not how a router finds LIDs: write guid or lid")]
    Routing(String),
    /// Nodes, but no cables between them.
    #[error("a list of nodes has no cables: call ibnetdiscover without -l, -H, -S and -R")]
    List,
    /// A line for each port, without cables.
    #[error("a report of ports lacks the nodes' ids: call ibnetdiscover without -p")]
    Report,
    /// The lines in which two fabrics differ.
    #[error("a comparison is not a topology: call ibnetdiscover without --diff")]
    Difference,
    /// A command for ibsim's console.
    #[error("a command for ibsim's console: leave it out, and use `ibfab fault` when it runs")]
    Console,
    /// An included file cannot be read.
    #[error("cannot read {0}: {1}")]
    Include(String, String),
    /// Files include each other, or too deeply.
    #[error("more than {MAX_DEPTH} files that include each other")]
    Depth,
    /// The line is well-formed, but contradicts earlier ones.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

/// How deeply files include each other, as in ibsim.
const MAX_DEPTH: usize = 9;

impl Routing {
    fn named(name: &str) -> Result<Self, Mistake> {
        match name {
            "guid" => Ok(Self::Guid),
            "lid" => Ok(Self::Lid),
            _ => Err(Mistake::Routing(name.to_owned())),
        }
    }
}

/// GUIDs and other values, which stand before their node.
#[derive(Default)]
struct Ahead {
    ca: Guids,
    switch: Guids,
    router: Guids,
    system_image: Option<u64>,
    vendor: u32,
    device: u16,
    routing: Routing,
}

/// The GUID of the next node of a kind, and the base of relative ones.
#[derive(Default)]
struct Guids {
    next: Option<u64>,
    base: Option<u64>,
}

/// A cable as one end names it. A node may be named before it is defined.
struct Named {
    file: Option<String>,
    line: usize,
    from: PortId,
    guid: Option<Guid>,
    /// What the comment says of the link.
    seen: Option<Rate>,
    to: Option<Far>,
}

struct Parser<'a> {
    /// Reads an included file.
    files: &'a mut dyn FnMut(&str) -> io::Result<Vec<u8>>,
    /// The included files that are being read.
    open: Vec<String>,
    topology: Topology,
    ahead: Ahead,
    node: Option<NodeId>,
    /// Stands before the names of nodes and aliases.
    module: String,
    rates: Rates,
    aliases: BTreeMap<String, PortId>,
    cables: Vec<Named>,
    /// Ports whose own line says how fast they are.
    told: BTreeSet<PortId>,
}

pub(super) fn parse(
    bytes: &[u8],
    files: &mut dyn FnMut(&str) -> io::Result<Vec<u8>>,
) -> Result<Topology, ParseError> {
    let mut parser = Parser {
        files,
        open: Vec::new(),
        topology: Topology::new(),
        ahead: Ahead::default(),
        node: None,
        module: String::new(),
        rates: Rates::default(),
        aliases: BTreeMap::new(),
        cables: Vec::new(),
        told: BTreeSet::new(),
    };
    parser.text(bytes)?;
    parser.connect()
}

/// The text with a question mark for each byte that is not UTF-8: a node may call itself anything.
fn text(bytes: &[u8]) -> String {
    let chunks = bytes.utf8_chunks();
    chunks.flat_map(|chunk| [chunk.valid().to_owned(), "?".repeat(chunk.invalid().len())]).collect()
}

impl Parser<'_> {
    fn text(&mut self, bytes: &[u8]) -> Result<(), ParseError> {
        for (index, line) in text(bytes).lines().enumerate() {
            let line_number = index + 1;
            if let Some(name) = line::include(line) {
                let at = |mistake| self.at(line_number, mistake);
                let name = name.map_err(at)?.to_owned();
                if self.open.len() == MAX_DEPTH {
                    return Err(self.at(line_number, Mistake::Depth));
                }
                let bytes = (self.files)(&name).map_err(|error| {
                    self.at(line_number, Mistake::Include(name.clone(), error.to_string()))
                })?;
                self.open.push(name);
                self.text(&bytes)?;
                self.open.pop();
            } else {
                self.line(line_number, line).map_err(|mistake| self.at(line_number, mistake))?;
            }
        }
        Ok(())
    }

    fn at(&self, line: usize, mistake: Mistake) -> ParseError {
        ParseError { file: self.open.last().cloned(), line, mistake }
    }

    fn line(&mut self, number: usize, line: &str) -> Result<(), Mistake> {
        let (code, comment) = line::split_comment(line);
        let code = code.trim();
        if code.is_empty() || line::is_heading(code) || line::is_message(line.trim()) {
            return Ok(());
        }
        if let Some(alias) = code.strip_prefix("@[") {
            return self.alias(&line::cable(alias)?);
        }
        if let Some(cable) = code.strip_prefix('[') {
            let seen = line::seen(comment)?;
            return self.cable(number, &line::cable(cable)?, seen);
        }
        if let Some((key, value, is_relative)) = line::assignment(code) {
            return self.assign(key, value, is_relative);
        }
        self.node = Some(self.add(&line::node(code, comment)?)?);
        Ok(())
    }

    fn assign(&mut self, key: &str, value: &str, is_relative: bool) -> Result<(), Mistake> {
        if key == "module" {
            line::name(value)?.clone_into(&mut self.module);
            return Ok(());
        }
        if key == "routing" {
            self.ahead.routing = Routing::named(value)?;
            return Ok(());
        }
        // `0x200000(200000) Spine 1`: the port's GUID follows that of the switch.
        let value = value.split('(').next().unwrap_or_default().trim();
        let number = line::number(value)?;
        let narrow = || Mistake::Number(value.to_owned());
        let rates = |rates: Option<Rates>| rates.ok_or_else(|| Mistake::Option(value.to_owned()));
        let ahead = &mut self.ahead;
        let (guids, first) = match key {
            "caguid" | "caguids" | "hcaguid" | "hcaguids" => (&mut ahead.ca, super::FIRST_CA_GUID),
            "switchguid" | "switchguids" => (&mut ahead.switch, super::FIRST_SWITCH_GUID),
            "rtguid" | "rtguids" => (&mut ahead.router, super::FIRST_ROUTER_GUID),
            _ if is_relative => return Err(Mistake::Unknown),
            "sysimgguid" => {
                ahead.system_image = Some(number);
                return Ok(());
            }
            "vendid" => {
                ahead.vendor = u32::try_from(number).map_err(|_| narrow())? & 0x00ff_ffff;
                return Ok(());
            }
            "devid" => {
                ahead.device = u16::try_from(number).map_err(|_| narrow())?;
                return Ok(());
            }
            "width" => {
                self.rates = rates(self.rates.with_widths(number))?;
                return Ok(());
            }
            "speed" => {
                self.rates = rates(self.rates.with_speeds(number))?;
                return Ok(());
            }
            "extspeed" => {
                self.rates = rates(self.rates.with_extended_speeds(number))?;
                return Ok(());
            }
            // How much ibsim says of its parsing.
            "pdebug" => return Ok(()),
            _ => return Err(Mistake::Unknown),
        };
        if is_relative {
            guids.next = Some(guids.base.unwrap_or(first).wrapping_add(number));
        } else {
            *guids = Guids { next: Some(number), base: Some(number) };
        }
        Ok(())
    }

    fn add(&mut self, line: &Node<'_>) -> Result<NodeId, Mistake> {
        let ahead = &mut self.ahead;
        let guid = match line.kind {
            NodeType::ChannelAdapter => ahead.ca.next.take(),
            NodeType::Switch => ahead.switch.next.take(),
            NodeType::Router => ahead.router.next.take(),
        };
        let name = in_module(&self.module, line.name);
        let description = line.description.unwrap_or(&name);
        if description.len() > 64 {
            return Err(Mistake::Description);
        }
        let id = match guid {
            Some(guid) => self.topology.add(line.kind, &name, Guid::new(guid), line.ports)?,
            None => self.topology.add_next(line.kind, &name, line.ports)?,
        };
        if let Some(node) = self.topology.nodes.get_mut(id.0) {
            description.clone_into(&mut node.description);
            if let Some(guid) = ahead.system_image.take() {
                node.system_image_guid = Guid::new(guid);
            }
            node.vendor_id = ahead.vendor;
            node.device_id = ahead.device;
            node.routing = ahead.routing;
            node.ports.iter_mut().for_each(|port| port.rates = self.rates);
        }
        Ok(id)
    }

    /// The port of a line, with the widths and speeds that the line gives it.
    fn port(&mut self, line: &Cable<'_>) -> Result<PortId, Mistake> {
        let id = PortId { node: self.node.ok_or(Mistake::NoNode)?, number: line.number };
        let name = self.topology.port_name(id);
        let port = self.topology.port_mut(id).ok_or(TopologyError::NoPort(name))?;
        for option in &line.options {
            port.rates = option.apply(port.rates)?;
            self.told.insert(id);
        }
        Ok(id)
    }

    fn alias(&mut self, line: &Cable<'_>) -> Result<(), Mistake> {
        let port = self.port(line)?;
        let (name, _) = line.to.ok_or(Mistake::Name)?;
        let alias = format!("{}@{name}", self.module);
        match self.aliases.insert(alias.clone(), port) {
            None => Ok(()),
            Some(_) => Err(Mistake::AliasTaken(alias)),
        }
    }

    fn cable(
        &mut self,
        number: usize,
        line: &Cable<'_>,
        seen: Option<Rate>,
    ) -> Result<(), Mistake> {
        let from = self.port(line)?;
        let to = line.to.map(|(name, port)| {
            let name = if name.starts_with('@') {
                format!("{}{name}", self.module)
            } else if name.contains(['@', '#']) {
                name.to_owned()
            } else {
                in_module(&self.module, name)
            };
            Far { name, port, guid: line.far_guid }
        });
        let file = self.open.last().cloned();
        // An option says more than what was once seen.
        let seen = seen.filter(|_| line.options.is_empty());
        self.cables.push(Named { file, line: number, from, guid: line.guid, seen, to });
        Ok(())
    }

    fn connect(mut self) -> Result<Topology, ParseError> {
        let topology = &mut self.topology;
        for named in &self.cables {
            if let (Some(rate), Some(port)) = (named.seen, topology.port_mut(named.from)) {
                port.rates = Rates::up_to(rate);
                self.told.insert(named.from);
            }
        }
        for Named { file, line, from, seen, to, .. } in &self.cables {
            let at = |mistake| ParseError { file: file.clone(), line: *line, mistake };
            let Some(far) = to else { continue };
            let to = match (topology.find(&far.name), self.aliases.get(&far.name)) {
                (Some(node), _) => PortId { node, number: far.port },
                (None, Some(&port)) => port,
                (None, None) if far.name.contains('@') => {
                    return Err(at(Mistake::NoSuchAlias(far.name.clone())));
                }
                (None, None) => return Err(at(Mistake::NoSuchNode(far.name.clone()))),
            };
            // Both ends may name the same cable.
            if topology.peer(*from) != Some(to) {
                topology.connect(*from, to).map_err(|error| at(error.into()))?;
            }
            if let Some(port) = topology.port_mut(to) {
                if let Some(guid) = far.guid {
                    port.guid = guid;
                }
                if let Some(rate) = seen.filter(|_| !self.told.contains(&to)) {
                    port.rates = Rates::up_to(rate);
                }
            }
        }
        for Named { file, line, from, guid, .. } in &self.cables {
            if let (Some(guid), Some(port)) = (guid, topology.port_mut(*from)) {
                port.guid = *guid;
            }
            let peer = topology.peer(*from);
            if let Some(peer) = peer.filter(|_| topology.rate(*from).is_none()) {
                let (port, peer) = (topology.port_name(*from), topology.port_name(peer));
                let mistake = TopologyError::NoRate { port, peer }.into();
                return Err(ParseError { file: file.clone(), line: *line, mistake });
            }
        }
        Ok(self.topology)
    }
}

fn in_module(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}#{name}") }
}
