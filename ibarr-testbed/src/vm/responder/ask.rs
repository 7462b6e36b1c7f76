// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! ip2gid queries from the nodes of the rig, written byte by byte.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ibarr_common::wire::ip2gid::PORT;

use crate::rig::{B, Place, inside};

/// Long enough to find a neighbour, a path and a connection.
const PATIENCE: Duration = Duration::from_secs(20);
/// On one processor an answer takes less than a millisecond.
const SILENCE: Duration = Duration::from_millis(200);

/// A peer that asks for an address of the node that answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub(super) what: &'static str,
    place: Place,
    pub(super) target: &'static str,
}

pub(super) const ASKERS: [Asker; 6] = [
    Asker { what: "in the same subnet, IPv4", place: Place::Here, target: "10.1.0.2" },
    Asker { what: "in the same subnet, IPv6", place: Place::Here, target: "fd00:1::2" },
    Asker { what: "behind the router, IPv4", place: B, target: "10.1.0.2" },
    Asker { what: "behind the router, IPv6", place: B, target: "fd00:1::2" },
    Asker { what: "in the partition, IPv4", place: Place::Here, target: "10.3.0.2" },
    Asker { what: "in the partition, IPv6", place: Place::Here, target: "fd00:3::2" },
];

/// A reply, and its source address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Reply {
    payload: Vec<u8>,
    source: SocketAddr,
}

impl Asker {
    /// Asks once, by a query with this id. The answer must come.
    pub(super) fn ask(&self, id: u32) -> Result<Reply> {
        self.exchange(id, PATIENCE)?.with_context(|| format!("{}: no answer", self.what))
    }

    /// Asks once. No answer may come.
    pub(super) fn ask_in_vain(&self, id: u32) -> Result<()> {
        let reply = self.exchange(id, SILENCE)?;
        ensure!(reply.is_none(), "{}: {reply:x?}", self.what);
        Ok(())
    }

    fn exchange(&self, id: u32, patience: Duration) -> Result<Option<Reply>> {
        let target: IpAddr = self.target.parse()?;
        inside(self.place, || {
            let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any)?;
            socket.set_read_timeout(Some(patience))?;
            socket.send_to(&query(id, target), (target, PORT)).context(self.what)?;
            let mut payload = [0; 128];
            match socket.recv_from(&mut payload) {
                Ok((length, source)) => {
                    Ok(Some(Reply { payload: payload[..length].to_vec(), source }))
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
                Err(error) => Err(error).context(self.what),
            }
        })
    }

    /// The right reply to a query with this id: `gid`, from the address that was asked.
    pub(super) fn reply(&self, id: u32, gid: [u8; 16]) -> Result<Reply> {
        let header = [&[1, 0, 0, 0][..], &id.to_be_bytes(), &[0, 1, 0, 0, 0, 0x10, 0, 20]].concat();
        let source = SocketAddr::new(self.target.parse()?, PORT);
        Ok(Reply { payload: [&header[..], &gid].concat(), source })
    }
}

fn query(id: u32, target: IpAddr) -> Vec<u8> {
    let (kind, length, octets) = match target {
        IpAddr::V4(target) => (1, 8, target.octets().to_vec()),
        IpAddr::V6(target) => (2, 20, target.octets().to_vec()),
    };
    [&[1, 0, 0, 0][..], &id.to_be_bytes(), &[0, 1, 0, 0, 0, kind, 0, length], &octets].concat()
}
