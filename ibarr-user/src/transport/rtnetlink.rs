// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Links, addresses and routes from the kernel. THIN: replaced by the real transport.
#![expect(missing_docs, clippy::pedantic, reason = "thin first version, replaced whole")]

use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::{io, sync::Arc};

use ibarr_common::IfIndex;
use ibarr_proto::ip2gid::{Question, client::Route};
use ibarr_proto::local_view::*;
use nix::sys::socket::*;
use tokio::io::{Interest, unix::AsyncFd};
use tokio::sync::mpsc;

use super::Counters;
use crate::sys::fd;

pub struct Watch(mpsc::UnboundedSender<()>);
pub struct RouteAnswer {
    pub question: Question,
    pub route: Option<Route>,
}
pub struct Routes(mpsc::UnboundedSender<Question>);

fn open(groups: u32) -> io::Result<AsyncFd<OwnedFd>> {
    let s = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        SockProtocol::NetlinkRoute,
    )?;
    bind(s.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    fd::watch(s)
}

async fn tx(s: &AsyncFd<OwnedFd>, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
    let mut m = Vec::new();
    m.extend((16 + body.len() as u32).to_ne_bytes());
    m.extend(kind.to_ne_bytes());
    m.extend(flags.to_ne_bytes());
    m.extend([0; 8]);
    m.extend(body);
    s.async_io(Interest::WRITABLE, |fd| {
        Ok(sendto(fd.as_raw_fd(), &m, &NetlinkAddr::new(0, 0), MsgFlags::empty())?)
    })
    .await
    .map(drop)
}

async fn rx(s: &AsyncFd<OwnedFd>) -> io::Result<Vec<(u16, Vec<u8>)>> {
    let mut b = vec![0; 1 << 16];
    let n = s
        .async_io(Interest::READABLE, |fd| Ok(recv(fd.as_raw_fd(), &mut b, MsgFlags::empty())?))
        .await?;
    let (mut at, mut out) = (0, Vec::new());
    while at + 16 <= n {
        let len = u32::from_ne_bytes(b[at..at + 4].try_into().unwrap()) as usize;
        let kind = u16::from_ne_bytes(b[at + 4..at + 6].try_into().unwrap());
        out.push((kind, b[at + 16..at + len].to_vec()));
        at += (len + 3) & !3;
    }
    Ok(out)
}

fn attrs(b: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let h = b.get(at..at + 4)?;
        let len = u16::from_ne_bytes([h[0], h[1]]) as usize;
        let kind = u16::from_ne_bytes([h[2], h[3]]) & 0x3fff;
        let v = b.get(at + 4..at + len)?;
        at += (len + 3) & !3;
        Some((kind, v))
    })
}

fn ip(b: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(b).map(IpAddr::from).or(<[u8; 16]>::try_from(b).map(IpAddr::from)).ok()
}

fn input(kind: u16, b: &[u8], listed: bool) -> Option<Input> {
    let ifindex = IfIndex::new(u32::from_ne_bytes(b.get(4..8)?.try_into().unwrap()));
    match kind {
        16 | 17 => {
            let flags = u32::from_ne_bytes(b[8..12].try_into().unwrap());
            let (mut name, mut hw) = (None, HwAddr::default());
            for (k, v) in attrs(&b[16..]) {
                match k {
                    1 => hw = HwAddr::new(v)?,
                    3 => name = InterfaceName::new(&v[..v.len() - 1]),
                    _ => {}
                }
            }
            if kind == 17 {
                return Some(Input::LinkGone(ifindex?));
            }
            let link = Link {
                ifindex: ifindex?,
                name: name?,
                link_type: LinkType::new(u16::from_ne_bytes([b[2], b[3]])),
                hwaddr: hw,
                up: flags & 1 == 1,
                bonding: Bonding::None,
            };
            Some(if listed { Input::ListedLink(link) } else { Input::Link(link) })
        }
        20 | 21 => {
            let (mut local, mut address, mut flags) = (None, None, u32::from(b[2]));
            for (k, v) in attrs(&b[8..]) {
                match k {
                    1 => address = ip(v),
                    2 => local = ip(v),
                    8 => flags = u32::from_ne_bytes(v.try_into().ok()?),
                    _ => {}
                }
            }
            let id = AddressId::new(
                ifindex?,
                local.or(address)?,
                b[1],
                address.filter(|a| Some(*a) != local && local.is_some()),
            );
            if kind == 21 {
                return Some(Input::AddressGone(id));
            }
            let dad = match flags {
                f if f & 8 != 0 => Dad::Failed,
                f if f & 0x40 != 0 => Dad::Tentative,
                _ => Dad::Passed,
            };
            let entry = InterfaceAddress { id, dad };
            Some(if listed { Input::ListedAddress(entry) } else { Input::Address(entry) })
        }
        _ => None,
    }
}

impl Watch {
    pub fn start(_: Arc<Counters>) -> io::Result<(Self, mpsc::Receiver<Input>)> {
        let (out, inputs) = mpsc::channel(1024);
        let (ask, mut asked) = mpsc::unbounded_channel();
        let events = open(1 | 0x10 | 0x100)?;
        let out2 = out.clone();
        tokio::spawn(async move {
            while let Ok(msgs) = rx(&events).await {
                for (k, b) in msgs {
                    if let Some(i) = input(k, &b, false) {
                        let _ = out2.send(i).await;
                    }
                }
            }
        });
        tokio::spawn(async move {
            while asked.recv().await.is_some() {
                let _ = out.send(Input::DumpStarted).await;
                for kind in [18u16, 22] {
                    let Ok(s) = open(0) else { return };
                    drop(tx(&s, kind, 0x301, &[0; 16]).await);
                    'dump: while let Ok(msgs) = rx(&s).await {
                        for (k, b) in msgs {
                            if k == 3 {
                                break 'dump;
                            }
                            if let Some(i) = input(k, &b, true) {
                                let _ = out.send(i).await;
                            }
                        }
                    }
                }
                let _ = out.send(Input::DumpDone).await;
            }
        });
        Ok((Self(ask), inputs))
    }
    pub fn request_dump(&self) {
        let _ = self.0.send(());
    }
}

impl Routes {
    pub fn start(_: Arc<Counters>) -> io::Result<(Self, mpsc::Receiver<RouteAnswer>)> {
        let (out, answers) = mpsc::channel(1024);
        let (ask, mut asked) = mpsc::unbounded_channel::<Question>();
        let s = open(0)?;
        tokio::spawn(async move {
            while let Some(question) = asked.recv().await {
                let dst = match question.target() {
                    IpAddr::V4(a) => a.octets().to_vec(),
                    IpAddr::V6(a) => a.octets().to_vec(),
                };
                let v4 = dst.len() == 4;
                let mut body = vec![if v4 { 2 } else { 10 }, dst.len() as u8 * 8];
                body.resize(12, 0);
                body.extend((4 + dst.len() as u16).to_ne_bytes());
                body.extend(1u16.to_ne_bytes());
                body.extend(&dst);
                drop(tx(&s, 26, 1, &body).await);
                let Ok(msgs) = rx(&s).await else { return };
                let route = msgs.first().filter(|(k, _)| *k == 24).and_then(|(_, b)| {
                    let (mut hop, mut oif) = (question.target(), None);
                    for (k, v) in attrs(&b[12..]) {
                        match k {
                            4 => oif = IfIndex::new(u32::from_ne_bytes(v.try_into().ok()?)),
                            5 => hop = ip(v)?,
                            _ => {}
                        }
                    }
                    (b[7] == 1).then_some(Route { ifindex: oif?, next_hop: hop })
                });
                let _ = out.send(RouteAnswer { question, route }).await;
            }
        });
        Ok((Self(ask), answers))
    }
    pub fn lookup(&self, q: Question) {
        let _ = self.0.send(q);
    }
}
