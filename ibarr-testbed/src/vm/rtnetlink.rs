// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Changes links, addresses, routes and neighbours in a guest without iproute2.

use std::fs;
use std::io::{self, Cursor};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::{Context as _, Result, ensure};
use ibarr_common::IfIndex;
use ibarr_common::wire::ls::{Kind, messages};
use neli::consts::nl::NlmF;
use neli::consts::rtnl::{
    Arphrd, Ifa, IfaF, Iff, Nda, Nud, RtAddrFamily, RtScope, RtTable, Rta, Rtm, Rtn, Rtprot,
};
use neli::nl::{NlPayload, NlmsghdrBuilder};
use neli::rtnl::{IfaddrmsgBuilder, IfinfomsgBuilder, NdmsgBuilder, RtattrBuilder, RtmsgBuilder};
use neli::types::{Buffer, RtBuffer};
use neli::{Size, ToBytes};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto,
    socket,
};

/// An rtnetlink socket. A change is done when its method returns.
#[derive(Debug)]
pub(crate) struct Rtnetlink {
    fd: OwnedFd,
}

impl Rtnetlink {
    pub(crate) fn open() -> Result<Self> {
        let fd = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )
        .context("no rtnetlink")?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0)).context("rtnetlink cannot be bound")?;
        Ok(Self { fd })
    }

    /// `ip link set … arp on up`.
    pub(crate) fn set_up(&self, link: IfIndex) -> Result<()> {
        let message = IfinfomsgBuilder::default()
            .ifi_family(RtAddrFamily::Unspecified)
            .ifi_type(Arphrd::None)
            .ifi_index(signed(link)?)
            .ifi_flags(Iff::UP)
            .ifi_change(Iff::UP | Iff::NOARP)
            .build()?;
        self.request(Rtm::Newlink, NlmF::empty(), message)
    }

    /// `ip address add …/PREFIX dev … nodad`.
    pub(crate) fn add_address(&self, link: IfIndex, address: IpAddr, prefix: u8) -> Result<()> {
        let mut attributes = RtBuffer::<Ifa, Buffer>::new();
        for kind in [Ifa::Local, Ifa::Address] {
            attributes.push(attribute(kind, &octets(address))?);
        }
        let message = IfaddrmsgBuilder::default()
            .ifa_family(family(address))
            .ifa_prefixlen(prefix)
            .ifa_flags(IfaF::NODAD)
            .ifa_scope(RtScope::Universe)
            .ifa_index(link.get())
            .rtattrs(attributes)
            .build()?;
        self.request(Rtm::Newaddr, NlmF::CREATE | NlmF::EXCL, message)
    }

    /// `ip route add DESTINATION/PREFIX via GATEWAY dev …`.
    pub(crate) fn add_route(
        &self,
        link: IfIndex,
        (destination, prefix): (IpAddr, u8),
        gateway: IpAddr,
    ) -> Result<()> {
        let mut attributes = RtBuffer::<Rta, Buffer>::new();
        attributes.push(attribute(Rta::Dst, &octets(destination))?);
        attributes.push(attribute(Rta::Gateway, &octets(gateway))?);
        attributes.push(attribute(Rta::Oif, &link.get().to_ne_bytes())?);
        let message = RtmsgBuilder::default()
            .rtm_family(family(destination))
            .rtm_dst_len(prefix)
            .rtm_src_len(0)
            .rtm_tos(0)
            .rtm_table(RtTable::Main)
            .rtm_protocol(Rtprot::Static)
            .rtm_scope(RtScope::Universe)
            .rtm_type(Rtn::Unicast)
            .rtattrs(attributes)
            .build()?;
        self.request(Rtm::Newroute, NlmF::CREATE | NlmF::EXCL, message)
    }

    /// Makes the kernel look at its pending address requests again: makes and removes a permanent
    /// neighbour of lo, for an address for documentation (RFC 3849).
    ///
    /// Never an IPv4 neighbour: on lo it would be the neighbour of all of 127.0.0.0/8.
    pub(crate) fn nudge(&self) -> Result<()> {
        self.add_neighbour(0)?;
        self.delete_neighbour(0)
    }

    /// The first half of [`nudge`](Self::nudge), with a neighbour of this number.
    pub(crate) fn add_neighbour(&self, number: u16) -> Result<()> {
        self.neighbour(Rtm::Newneigh, NlmF::CREATE | NlmF::REPLACE, number)
    }

    /// The second half of [`nudge`](Self::nudge).
    pub(crate) fn delete_neighbour(&self, number: u16) -> Result<()> {
        self.neighbour(Rtm::Delneigh, NlmF::empty(), number)
    }

    fn neighbour(&self, kind: Rtm, flags: NlmF, number: u16) -> Result<()> {
        let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 7, number);
        let lo = IfIndex::new(1).context("lo is the first device of a network namespace")?;
        self.neighbour_of(lo, address.into(), kind, flags)
    }

    /// `ip neighbour delete ADDRESS dev …`.
    pub(crate) fn forget(&self, link: IfIndex, address: IpAddr) -> Result<()> {
        self.neighbour_of(link, address, Rtm::Delneigh, NlmF::empty())
    }

    fn neighbour_of(&self, link: IfIndex, address: IpAddr, kind: Rtm, flags: NlmF) -> Result<()> {
        let mut attributes = RtBuffer::<Nda, Buffer>::new();
        attributes.push(attribute(Nda::Dst, &octets(address))?);
        let message = NdmsgBuilder::default()
            .ndm_family(family(address))
            .ndm_index(signed(link)?)
            .ndm_state(Nud::PERMANENT)
            .ndm_type(Rtn::Unspec)
            .rtattrs(attributes)
            .build()?;
        self.request(kind, flags, message)
    }

    fn request(&self, kind: Rtm, flags: NlmF, payload: impl Size + ToBytes) -> Result<()> {
        let what = format!("{kind:?}");
        let message = NlmsghdrBuilder::default()
            .nl_type(kind)
            .nl_flags(NlmF::REQUEST | NlmF::ACK | flags)
            .nl_payload(NlPayload::Payload(payload))
            .build()?;
        let mut bytes = Cursor::new(Vec::new());
        message.to_bytes(&mut bytes)?;
        let kernel = NetlinkAddr::new(0, 0);
        sendto(self.fd.as_raw_fd(), bytes.get_ref(), &kernel, MsgFlags::empty())
            .with_context(|| format!("{what} cannot be sent"))?;
        let mut reply = [0; 4096];
        let length = recv(self.fd.as_raw_fd(), &mut reply, MsgFlags::empty())
            .with_context(|| format!("{what} has no acknowledgement"))?;
        let verdict = messages(&reply[..length]).next().context("an empty acknowledgement")??;
        ensure!(verdict.kind() == Kind::Verdict, "{what}: the answer is no acknowledgement");
        match verdict.errno() {
            Some(0) => Ok(()),
            errno => Err(io::Error::from_raw_os_error(-errno.unwrap_or_default()))
                .with_context(|| format!("{what} is refused")),
        }
    }
}

/// The index of the interface called `name`.
pub(crate) fn ifindex(name: &str) -> Result<IfIndex> {
    let file = format!("/sys/class/net/{name}/ifindex");
    let text = fs::read_to_string(&file).with_context(|| file.clone())?;
    IfIndex::new(text.trim().parse().context(file)?).context("an interface with number 0")
}

fn attribute<T: neli::consts::rtnl::RtaType>(
    kind: T,
    value: &[u8],
) -> Result<neli::rtnl::Rtattr<T, Buffer>> {
    Ok(RtattrBuilder::default().rta_type(kind).rta_payload(value).build()?)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().into(),
        IpAddr::V6(address) => address.octets().into(),
    }
}

fn family(address: IpAddr) -> RtAddrFamily {
    match address {
        IpAddr::V4(_) => RtAddrFamily::Inet,
        IpAddr::V6(_) => RtAddrFamily::Inet6,
    }
}

fn signed(link: IfIndex) -> Result<i32> {
    i32::try_from(link.get()).context("an interface number that netlink cannot hold")
}
