// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Requests of every form of the protocol, right and wrong.

use anyhow::{Context as _, Result};
use ibarr_common::ib::PathRecord;
use ibarr_common::wire::acm::{Address, Ask, MAX_REQUEST_LEN, Name, Of, Request, Resolve, Tid};
use ibarr_common::wire::path_record::PathRecordWire;

use crate::rig::INTERFACES;

#[derive(Debug)]
pub(super) struct Form {
    pub(super) what: String,
    pub(super) kind: Kind,
    pub(super) bytes: Vec<u8>,
}

/// How it is asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// It may have to wait for peers or the SA.
    Waits,
    /// It is answered at once.
    AtOnce,
    /// It breaks a rule of the protocol.
    Wrong,
}

/// Where to: the ports of the rig by address and name, and what does not exist.
const DESTINATIONS: [&str; 13] = [
    "10.1.0.1",
    "10.1.0.2",
    "10.2.0.1",
    "fd00:1::1",
    "fd00:1::2",
    "fd00:2::1",
    "node1",
    "node2",
    "node3",
    "10.1.0.77",
    "fd00:1::77",
    "192.0.2.1",
    "nowhere",
];

/// Where from: anywhere, this node, another node, and what is no node.
const SOURCES: [Option<&str>; 6] =
    [None, Some("10.1.0.1"), Some("fd00:1::1"), Some("node1"), Some("10.1.0.2"), Some("nowhere")];

/// All forms, always the same in the same order.
pub(super) fn all() -> Result<Vec<Form>> {
    let mut forms = Forms(Vec::new());
    by_address(&mut forms)?;
    by_path(&mut forms)?;
    other(&mut forms)?;
    wrong(&mut forms)?;
    Ok(forms.0)
}

struct Forms(Vec<Form>);

impl Forms {
    fn add(&mut self, what: String, kind: Kind, bytes: Vec<u8>) {
        self.0.push(Form { what, kind, bytes });
    }

    fn ask(&mut self, what: String, kind: Kind, ask: Ask) {
        let number = u64::try_from(self.0.len()).unwrap_or_default();
        let mut out = [0; MAX_REQUEST_LEN];
        let request = Request { tid: Tid(number.to_be_bytes()), ask };
        self.add(what, kind, request.emit(&mut out).to_vec());
    }

    fn resolve(&mut self, what: String, resolve: Resolve) {
        self.ask(format!("{what}, from memory"), Kind::AtOnce, Ask::Resolve(resolve.from_memory()));
        self.ask(what, Kind::Waits, Ask::Resolve(resolve));
    }
}

fn address(text: &str) -> Result<Address> {
    match text.parse() {
        Ok(ip) => Ok(Address::Ip(ip)),
        Err(_) => Name::new(text).map(Address::Name).context("no name"),
    }
}

fn by_address(forms: &mut Forms) -> Result<()> {
    for destination in DESTINATIONS {
        for source in SOURCES {
            let from = source.map(address).transpose()?;
            let what = format!("{destination} from {}", source.unwrap_or("anywhere"));
            forms.resolve(what, Resolve::to(from, address(destination)?));
        }
    }
    Ok(())
}

/// A path record without any known field.
fn empty() -> PathRecordWire {
    PathRecord::from_octets([0; 64]).into()
}

fn by_path(forms: &mut Forms) -> Result<()> {
    let mut ends = Vec::new();
    for port in [0, 1, 4] {
        let (gid, lid) = (INTERFACES[port].gid()?.octets(), INTERFACES[port].lid()?);
        ends.push((format!("the GID of port {port}"), gid, 0));
        ends.push((format!("the LID of port {port}"), [0; 16], lid));
    }
    ends.push((
        "an unknown GID".to_owned(),
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7],
        0,
    ));
    ends.push(("an unknown LID".to_owned(), [0; 16], 999));
    ends.push(("no end".to_owned(), [0; 16], 0));
    let (sgid, lid) = (INTERFACES[0].gid()?.octets(), INTERFACES[0].lid()?);
    for (what, dgid, dlid) in ends {
        let known = PathRecordWire { dgid, dlid: dlid.into(), ..empty() };
        let along = |known: PathRecordWire| Resolve::along(known.into());
        forms.resolve(what.clone(), along(known));
        forms.resolve(format!("{what}, from a GID"), along(PathRecordWire { sgid, ..known }));
        let from_lid = PathRecordWire { slid: lid.into(), ..known };
        forms.resolve(format!("{what}, from a LID"), along(from_lid));
        let reversible = PathRecordWire { sgid, reversible_and_numb_path: 0x81, ..known };
        let by_the_sa = Ask::Resolve(along(reversible).by_the_sa());
        forms.ask(format!("{what}, by the SA"), Kind::Waits, by_the_sa);
    }
    Ok(())
}

fn other(forms: &mut Forms) -> Result<()> {
    for index in [0, 1, 2, 3, 5, 9, 255] {
        for port in [0, 1, 2, 255] {
            let what = format!("endpoint {index} of port {port}");
            forms.ask(what, Kind::AtOnce, Ask::Endpoint { index, port });
        }
    }
    forms.ask("counters".to_owned(), Kind::AtOnce, Ask::Counters(Of::Service));
    for index in [1, 2, 9, 255] {
        let what = format!("counters of endpoint {index}");
        forms.ask(what, Kind::AtOnce, Ask::Counters(Of::Index(index)));
    }
    for of in ["10.1.0.1", "fd00:1::1", "node1", "10.1.0.2", "nowhere"] {
        let what = format!("counters of {of}");
        forms.ask(what, Kind::AtOnce, Ask::Counters(Of::Address(address(of)?)));
    }
    Ok(())
}

/// Mistakes in a request for next door, each at its place.
fn wrong(forms: &mut Forms) -> Result<()> {
    let mut out = [0; MAX_REQUEST_LEN];
    let ask = Ask::Resolve(Resolve::to(Some(address("10.1.0.1")?), address("10.1.0.2")?));
    let right = Request { tid: Tid([9; 8]), ask }.emit(&mut out).to_vec();
    let mut change = |what: &str, at: usize, value: u8| {
        let mut bytes = right.clone();
        if let Some(byte) = bytes.get_mut(at) {
            *byte = value;
        }
        forms.add(format!("wrong: {what}"), Kind::Wrong, bytes);
    };
    // The header has 16 bytes, a record 72. Flags and type of a record are its bytes 0 to 3, and 4.
    change("version 2", 0, 2);
    change("opcode 4", 1, 4);
    change("opcode with a reserved bit", 1, 0x11);
    change("a status", 2, 3);
    change("data", 3, 7);
    change("a source of type 9", 20, 9);
    change("a destination of type 9", 92, 9);
    change("a source without its flag", 16, 0);
    change("a destination without its flag", 88, 0);
    change("two sources", 88, 1);
    change("two destinations", 16, 2);
    change("a source that is also the destination", 16, 3);
    change("a reserved field", 22, 7);
    change("the address 0.0.0.0 but for a 1", 96, 0);
    change("a length of 15", 6, 15);
    change("a longer length than the message", 6, 200);
    change("a shorter length than the message", 6, 88);
    let header =
        |opcode: u8, length: u8| vec![1, opcode, 0, 0, 0, 0, length, 0, 9, 9, 9, 9, 9, 9, 9, 9];
    forms.add("wrong: no record".to_owned(), Kind::Wrong, header(1, 16));
    forms.add("wrong: half a header".to_owned(), Kind::Wrong, vec![1, 1, 0, 0, 0, 0, 8, 0]);
    let mut cut = right;
    cut.truncate(100);
    cut[6] = 100;
    forms.add("wrong: half a record".to_owned(), Kind::Wrong, cut);
    Ok(())
}
