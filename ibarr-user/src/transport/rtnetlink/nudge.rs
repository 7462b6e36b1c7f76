// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Makes the kernel look at its answers at once, by a neighbour entry that exists for a moment.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc as sync;
use std::thread;

use ibarr_common::IfIndex;
use ibarr_proto::local_view::HwAddr;
use neli::consts::nl::NlmF;
use neli::consts::rtnl::{Nda, Nud, Rtm};
use nix::errno::Errno;
use nix::sys::socket::SockProtocol;
use thiserror::Error;
use tokio::sync::mpsc;

use super::ask::{self, Error, ask_on};
use super::message::{self, ALL_SET, rtattr};
use super::neigh::{self, ADDRESS_V4, ADDRESS_V6};
use crate::sys::local_service::Quiet;
use crate::sys::netlink;

/// Creates a permanent neighbour entry and deletes it at once, so that the kernel's RDMA core looks
/// at the answers it has (`netevent_callback` in drivers/infiniband/core/addr.c).
///
/// The entry is for [`ADDRESS_V6`] on the loopback interface, which every network namespace has and
/// no program sends through. If IPv6 is off, the entry is for [`ADDRESS_V4`] on an IPoIB interface;
/// never on the loopback interface, where all IPv4 addresses share one entry, and deleting it would
/// break their traffic.
///
/// The work is done on a thread: the kernel may block it while another process changes the network.
#[derive(Debug)]
pub struct Nudger {
    orders: sync::SyncSender<Order>,
}

/// `LOOPBACK_IFINDEX`, the same in every network namespace.
pub const LOOPBACK: IfIndex = IfIndex::MIN;

/// An interface that can have an IPv4 neighbour.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "its fields are named for what they hold")]
pub struct NudgeTarget {
    pub ifindex: IfIndex,
    /// Hardware address of the interface. The neighbour gets the same one, because it has the right
    /// length.
    pub hwaddr: HwAddr,
}

/// The outcome of a nudge.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NudgeResult {
    /// The entry was created and deleted on this interface.
    On(IfIndex),
    /// No entry was created, because the kernel has sent a request meanwhile.
    Postponed,
}

#[derive(Debug)]
struct Order {
    fallback: Option<NudgeTarget>,
    quiet: Option<Quiet>,
}

/// Why a nudge failed.
#[derive(Debug, Error)]
pub enum NudgeError {
    /// The netlink socket failed.
    #[error("netlink")]
    Netlink(#[from] io::Error),
    /// Neither interface can be used.
    #[error(
        "no entry for {ADDRESS_V6} on the loopback interface ({0}; is IPv6 off?), and there is no \
         IPoIB interface to use instead"
    )]
    NoPlace(Errno),
    /// The kernel refused the entry.
    #[error("neighbour entry for {0} refused; the daemon needs CAP_NET_ADMIN")]
    Refused(IpAddr, #[source] Errno),
}

impl Nudger {
    /// Starts the thread in the network namespace of the caller. It ends when the nudger is
    /// dropped. Removes an entry that a crashed daemon has left.
    ///
    /// # Errors
    /// If the netlink socket or the thread cannot be made.
    pub fn start() -> io::Result<(Self, mpsc::Receiver<Result<NudgeResult, NudgeError>>)> {
        let mut neighbours = Neighbours::open()?;
        let (orders, order) = sync::sync_channel(1);
        // The core has at most one nudge in flight.
        let (outcome, outcomes) = mpsc::channel(1);
        thread::Builder::new().name("nudge".to_owned()).spawn(move || {
            // This fails unless a crashed daemon has left an entry.
            drop(neighbours.delete(&Entry::on_loopback()));
            while let Ok(Order { fallback, quiet }) = order.recv() {
                // Checked here, not when the order was sent: this thread may have waited for a
                // processor while new requests came.
                let nudged = match quiet.filter(Quiet::is_over) {
                    Some(_) => Ok(NudgeResult::Postponed),
                    None => neighbours.nudge(fallback).map(NudgeResult::On),
                };
                if outcome.blocking_send(nudged).is_err() {
                    return;
                }
            }
        })?;
        Ok((Self { orders }, outcomes))
    }

    /// Makes a nudge unless `quiet` is over; the outcome follows. `fallback` is the interface to
    /// use if IPv6 is off.
    pub fn nudge(&self, fallback: Option<NudgeTarget>, quiet: Option<Quiet>) {
        // This fails only if the thread is gone, which ends the process, too.
        let _ = self.orders.try_send(Order { fallback, quiet });
    }
}

/// The kernel's neighbour tables.
struct Neighbours {
    fd: OwnedFd,
    seq: u32,
    /// Kept: to clear one for each nudge would cost more than the nudge.
    buffer: Vec<u8>,
}

struct Entry {
    address: IpAddr,
    ifindex: IfIndex,
    hwaddr: Option<HwAddr>,
}

impl Entry {
    fn on_loopback() -> Self {
        Self { address: ADDRESS_V6.into(), ifindex: LOOPBACK, hwaddr: None }
    }

    fn on(place: NudgeTarget) -> Self {
        let NudgeTarget { ifindex, hwaddr } = place;
        Self { address: ADDRESS_V4.into(), ifindex, hwaddr: Some(hwaddr) }
    }
}

impl Neighbours {
    /// If the entry exists already, left behind or made by another daemon, it is deleted, and the
    /// next attempt creates it again. Another daemon could interfere again, but not for ever.
    const ATTEMPTS: u32 = 4;

    fn open() -> io::Result<Self> {
        let fd = netlink::open(SockProtocol::NetlinkRoute, 0)?;
        Ok(Self { fd, seq: 0, buffer: ask::buffer() })
    }

    fn nudge(&mut self, fallback: Option<NudgeTarget>) -> Result<IfIndex, NudgeError> {
        let entry = Entry::on_loopback();
        let no_ipv6 = match self.flash(&entry)? {
            Ok(()) => return Ok(entry.ifindex),
            Err(Errno::EPERM) => {
                return Err(NudgeError::Refused(entry.address, Errno::EPERM));
            }
            // EINVAL if an administrator has disabled IPv6, EAFNOSUPPORT if the kernel has none.
            Err(errno) => errno,
        };
        let entry = Entry::on(fallback.ok_or(NudgeError::NoPlace(no_ipv6))?);
        let flashed = self.flash(&entry)?;
        flashed.map_err(|errno| NudgeError::Refused(entry.address, errno)).map(|()| entry.ifindex)
    }

    /// Creates and deletes the entry by one system call, so that nothing can happen in between.
    fn flash(&mut self, entry: &Entry) -> io::Result<Result<(), Errno>> {
        let mut created = Err(Errno::EEXIST);
        for _ in 0..Self::ATTEMPTS {
            let (create, create_seq) = self.request(entry, Rtm::Newneigh);
            // Refused if the entry could not be created, or another process has deleted it.
            let (delete, _) = self.request(entry, Rtm::Delneigh);
            created = self.verdict(&[create, delete].concat(), create_seq)?;
            if created != Err(Errno::EEXIST) {
                break;
            }
        }
        Ok(created)
    }

    fn delete(&mut self, entry: &Entry) -> io::Result<Result<(), Errno>> {
        let (delete, seq) = self.request(entry, Rtm::Delneigh);
        self.verdict(&delete, seq)
    }

    fn request(&mut self, entry: &Entry, kind: Rtm) -> (Vec<u8>, u32) {
        let (family, address) = message::octets(entry.address);
        let hwaddr = entry.hwaddr.map(|hwaddr| rtattr(Nda::Lladdr, hwaddr.as_bytes()));
        let message = neigh::message(family)
            .ndm_index(entry.ifindex.get().cast_signed())
            .ndm_state(Nud::PERMANENT)
            .rtattrs([rtattr(Nda::Dst, &address)].into_iter().chain(hwaddr).collect())
            .build()
            .expect(ALL_SET);
        let flags = match kind {
            Rtm::Newneigh => NlmF::ACK | NlmF::CREATE | NlmF::EXCL,
            _ => NlmF::ACK,
        };
        self.seq = self.seq.wrapping_add(1);
        (message::request(kind, flags, self.seq, message), self.seq)
    }

    /// The kernel's answer to the request with `seq`, one of these.
    fn verdict(&mut self, requests: &[u8], seq: u32) -> io::Result<Result<(), Errno>> {
        match ask_on(&self.fd, &mut self.buffer, requests, seq, |_| Ok(None::<()>)) {
            Ok(_) => Ok(Ok(())),
            Err(Error::Refused(error)) => Ok(Err(Errno::try_from(error)?)),
            Err(error) => Err(error.into()),
        }
    }
}
