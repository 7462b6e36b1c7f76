// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A server that makes the system calls of the C ibarr for an answer (`run_ipr_server` and `server_find_gid` in its
//! src/ipr_server.c): it receives one query, has the kernel list all links and addresses (`getifaddrs`), asks it for
//! the link of the address by name (`rtnl_link_get_kernel` of libnl), and sends one reply. The GID is a constant,
//! because the links of a lab have no GID. What C does beside these calls is left out: it parses, and by default it
//! writes a line of log. So C takes longer.

use std::convert::Infallible;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use ibarr_common::ib::Gid;
use ibarr_common::wire::ip2gid::{MAX_LEN, PORT, Query};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

use super::echo::say_ready;

/// Answers each query over IPv4 for an address of this node with `gid`, until killed.
///
/// # Errors
/// The port is taken, or a call fails.
pub fn serve(gid: Gid) -> Result<Infallible> {
    let queries = UdpSocket::bind(("0.0.0.0", PORT)).context("cannot bind")?;
    let links = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )
    .context("no rtnetlink")?;
    say_ready()?;
    let mut buffer = [0; MAX_LEN];
    loop {
        let (len, from) = queries.recv_from(&mut buffer).context("cannot receive")?;
        let Ok(query) = Query::parse(&buffer[..len]) else { continue };
        let Some(name) = name_of_link(query.target())? else { continue };
        find_link(&links, &name)?;
        queries.send_to(query.reply(Some(gid)).emit().as_ref(), from).context("cannot send")?;
    }
}

fn name_of_link(address: IpAddr) -> Result<Option<String>> {
    let mut all = getifaddrs().context("no addresses")?;
    let has_it = |it: &nix::ifaddrs::InterfaceAddress| {
        it.address.and_then(|at| Some(at.as_sockaddr_in()?.ip())).map(IpAddr::V4) == Some(address)
    };
    Ok(all.find(has_it).map(|it| it.interface_name))
}

/// RTM_GETLINK with the name, as libnl asks: with an acknowledgement, and for virtual functions, too.
fn find_link(links: &OwnedFd, name: &str) -> Result<()> {
    const RTM_GETLINK: u16 = 18;
    const NLM_F_REQUEST_ACK: u16 = 1 | 4;
    const IFLA_IFNAME: u16 = 3;
    const IFLA_EXT_MASK: u16 = 29;
    const RTEXT_FILTER_VF: u32 = 1;
    let mut body = [0; 16].to_vec();
    let mut add = |kind: u16, value: &[u8]| -> Result<()> {
        body.extend(u16::try_from(4 + value.len())?.to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(value);
        body.resize(body.len().next_multiple_of(4), 0);
        Ok(())
    };
    add(IFLA_IFNAME, &[name.as_bytes(), &[0]].concat())?;
    add(IFLA_EXT_MASK, &RTEXT_FILTER_VF.to_ne_bytes())?;
    let mut message = u32::try_from(16 + body.len())?.to_ne_bytes().to_vec();
    message.extend(RTM_GETLINK.to_ne_bytes());
    message.extend(NLM_F_REQUEST_ACK.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    sendto(links.as_raw_fd(), &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())
        .context("cannot ask for a link")?;
    let mut buffer = [0; 16 << 10];
    // The link, then the acknowledgement.
    for _ in 0..2 {
        let len = recv(links.as_raw_fd(), &mut buffer, MsgFlags::empty())
            .context("no answer about a link")?;
        ensure!(len >= 16, "an answer of {len} bytes about a link");
    }
    Ok(())
}
