// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Messages as the kernel writes them: recorded, or laid out without code of ours or neli's.

use ibarr_common::IfIndex;
use ibarr_proto::local_view::{Input, Link};

use super::super::message::{Malformed, change, frames};

/// The datagrams of a file, each with the last comment line before it.
pub(super) fn recorded(text: &str) -> Vec<(&str, Vec<u8>)> {
    let mut datagrams: Vec<(&str, Vec<u8>)> = Vec::new();
    let mut label = None;
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            label = Some(comment);
            continue;
        }
        if let Some(label) = label.take() {
            datagrams.push((label, Vec::new()));
        }
        let digits: Vec<u8> = line.bytes().filter(|&byte| byte != b' ').collect();
        let bytes = digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap());
        datagrams.last_mut().expect("a label first").1.extend(bytes);
    }
    datagrams
}

/// A message of rtnetlink.
#[derive(Clone, Debug)]
pub(super) struct Message {
    kind: u16,
    flags: u16,
    seq: u32,
    portid: u32,
    body: Vec<u8>,
}

impl Message {
    pub(super) fn new(kind: u16, body: &[u8]) -> Self {
        Self { kind, flags: 0, seq: 0, portid: 0, body: body.to_vec() }
    }

    /// `struct ifinfomsg`.
    pub(super) fn link(kind: u16, ifindex: u32, link_type: u16, flags: u32) -> Self {
        let mut body = vec![0, 0];
        body.extend(link_type.to_ne_bytes());
        for word in [ifindex, flags, 0] {
            body.extend(word.to_ne_bytes());
        }
        Self::new(kind, &body)
    }

    /// `struct ifaddrmsg`.
    pub(super) fn address(kind: u16, family: u8, bits: u8, flags: u8, ifindex: u32) -> Self {
        let mut body = vec![family, bits, flags, 0];
        body.extend(ifindex.to_ne_bytes());
        Self::new(kind, &body)
    }

    pub(super) fn family(mut self, family: u8) -> Self {
        self.body[0] = family;
        self
    }

    pub(super) fn with(mut self, attr: Attr) -> Self {
        self.body.extend(attr.0);
        self
    }

    pub(super) fn cut(mut self, bytes: usize) -> Self {
        self.body.truncate(self.body.len() - bytes);
        self
    }

    /// As part of the answer to a request.
    pub(super) fn answering(mut self, seq: u32, portid: u32) -> Self {
        self.flags |= 2;
        (self.seq, self.portid) = (seq, portid);
        self
    }

    /// With `NLM_F_DUMP_INTR`.
    pub(super) fn interrupted(mut self) -> Self {
        self.flags |= 0x10;
        self
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = u32::try_from(16 + self.body.len()).unwrap().to_ne_bytes().to_vec();
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend(self.flags.to_ne_bytes());
        bytes.extend(self.seq.to_ne_bytes());
        bytes.extend(self.portid.to_ne_bytes());
        bytes.extend(&self.body);
        bytes
    }

    pub(super) fn parse(&self) -> Result<Option<Input>, Malformed> {
        let bytes = self.bytes();
        let frames: Vec<_> = frames(&bytes).collect();
        let [Ok(frame)] = frames.as_slice() else { panic!("{frames:?}") };
        change(frame)
    }

    pub(super) fn parse_link(&self) -> Link {
        match self.parse() {
            Ok(Some(Input::Link(link))) => link,
            other => panic!("{other:?}"),
        }
    }
}

/// An attribute (`struct nlattr`), padded.
#[derive(Clone, Debug)]
pub(super) struct Attr(Vec<u8>);

impl Attr {
    pub(super) fn new(kind: u16, payload: &[u8]) -> Self {
        let mut bytes = u16::try_from(4 + payload.len()).unwrap().to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        Self(bytes)
    }

    pub(super) fn text(kind: u16, text: &str) -> Self {
        Self::new(kind, &[text.as_bytes(), b"\0"].concat())
    }

    pub(super) fn u32(kind: u16, number: u32) -> Self {
        Self::new(kind, &number.to_ne_bytes())
    }

    pub(super) fn nest(kind: u16, attrs: &[Self]) -> Self {
        let payload: Vec<u8> = attrs.iter().flat_map(|attr| attr.0.clone()).collect();
        Self::new(kind, &payload)
    }
}

pub(super) fn index(ifindex: u32) -> IfIndex {
    IfIndex::new(ifindex).unwrap()
}
