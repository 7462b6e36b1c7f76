// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! An ip2gid query from a node without a daemon.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::{MAX_LEN, MsgId, PORT, Query, Reply, Version};

use super::{Place, inside};

/// The GID in the answer of `target` to a query from `place`; `None` if no answer comes in that time.
pub(crate) fn query(place: Place, target: &str, patience: Duration) -> Result<Option<Gid>> {
    let target: IpAddr = target.parse()?;
    let any: IpAddr = match target {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    inside(place, move || {
        // Each query has its own socket, so a late answer is not read.
        let socket = UdpSocket::bind((any, 0))?;
        socket.set_read_timeout(Some(patience))?;
        let query =
            Query::new(Version::V1, MsgId(7), target).context("no node can have this address")?;
        if socket.send_to(query.emit().as_ref(), (target, PORT)).is_err() {
            return Ok(None);
        }
        let mut reply = [0; MAX_LEN + 1];
        let Ok((length, _)) = socket.recv_from(&mut reply) else { return Ok(None) };
        let reply = Reply::parse(&reply[..length]).map_err(|error| anyhow::anyhow!("{error}"))?;
        ensure!(reply.msg_id == query.msg_id(), "{reply:?}");
        Ok(reply.gid)
    })
}
