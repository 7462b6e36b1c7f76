// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What aya does not do about tc: looking at the filters of an interface, and removing its clsact
//! qdisc.

use std::io::{self, Cursor};
use std::os::fd::{AsRawFd, OwnedFd};

use ibarr_common::IfIndex;
use neli::FromBytesWithInput;
use neli::consts::nl::{NlmF, Nlmsg};
use neli::consts::rtnl::{Rtm, Tca};
use neli::rtnl::{RtattrBuilder, Tcmsg, TcmsgBuilder};
use neli::types::RtBuffer;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use thiserror::Error;

use crate::transport::rtnetlink::message::{self, ALL_SET, Malformed, attribute, frames, nested};

/// Why the kernel's filters are not known or changed.
#[derive(Debug, Error)]
pub enum Error {
    /// The kernel refuses.
    #[error("rtnetlink")]
    Io(#[from] io::Error),
    /// The kernel's answer makes no sense.
    #[error("rtnetlink: the answer makes no sense: {0}")]
    Malformed(String),
}

impl From<Malformed> for Error {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// The name of the filter at ingress with this priority and handle; empty if it is not of BPF.
pub(super) fn filter_at(
    ifindex: IfIndex,
    priority: u16,
    handle: u32,
) -> Result<Option<String>, Error> {
    let filters = filters(ifindex, INGRESS)?;
    Ok(filters.into_iter().find(|f| (f.priority, f.handle) == (priority, handle)).map(|f| f.name))
}

/// Whether the clsact qdisc has any filter, at ingress or egress.
pub(super) fn has_filters(ifindex: IfIndex) -> Result<bool, Error> {
    Ok(!filters(ifindex, INGRESS)?.is_empty() || !filters(ifindex, EGRESS)?.is_empty())
}

/// Removes the clsact qdisc, with all its filters. It is no error if there is none.
pub(super) fn remove_clsact(ifindex: IfIndex) -> Result<(), Error> {
    let kind = RtattrBuilder::default()
        .rta_type(Tca::Kind)
        .rta_payload(c"clsact".to_bytes_with_nul())
        .build()
        .expect(ALL_SET);
    let message = tcmsg(ifindex, CLSACT_HANDLE, CLSACT_PARENT)
        .rtattrs(RtBuffer::from_iter([kind]))
        .build()
        .expect(ALL_SET);
    match ask(&message::request(Rtm::Delqdisc, NlmF::ACK, SEQ, message), |_| Ok(())) {
        Err(Error::Io(error))
            if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) =>
        {
            Ok(())
        }
        result => result,
    }
}

struct Filter {
    priority: u16,
    handle: u32,
    name: String,
}

fn filters(ifindex: IfIndex, parent: u32) -> Result<Vec<Filter>, Error> {
    let message = tcmsg(ifindex, 0, parent).build().expect(ALL_SET);
    let mut filters = Vec::new();
    ask(&message::request(Rtm::Gettfilter, NlmF::DUMP, SEQ, message), |payload| {
        let message = Tcmsg::from_bytes_with_input(&mut Cursor::new(payload), payload.len())
            .map_err(|_| Malformed::Attributes)?;
        // A chain of filters is listed too, with no handle.
        if *message.tcm_handle() != 0 {
            let options = attribute(message.rtattrs(), Tca::Options).unwrap_or_default();
            let options = nested::<u16>(options)?;
            let name = attribute(&options, TCA_BPF_NAME).unwrap_or_default();
            let name = name.strip_suffix(b"\0").unwrap_or(name);
            filters.push(Filter {
                // The priority is in the upper half, the protocol in the lower.
                priority: u16::try_from(*message.tcm_info() >> 16).unwrap_or_default(),
                handle: *message.tcm_handle(),
                name: String::from_utf8_lossy(name).into_owned(),
            });
        }
        Ok(())
    })?;
    Ok(filters)
}

fn tcmsg(ifindex: IfIndex, handle: u32, parent: u32) -> TcmsgBuilder {
    TcmsgBuilder::default()
        .tcm_family(0)
        .tcm_ifindex(ifindex.get().cast_signed())
        .tcm_handle(handle)
        .tcm_parent(parent)
        .tcm_info(0)
}

/// Sends a request and hands each `RTM_NEWTFILTER` to `each`, until the kernel says that it is done.
fn ask(request: &[u8], mut each: impl FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
    let socket = open()?;
    sendto(socket.as_raw_fd(), request, &NetlinkAddr::new(0, 0), MsgFlags::empty())
        .map_err(io::Error::from)?;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let len =
            recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()).map_err(io::Error::from)?;
        for frame in frames(buffer.get(..len).unwrap_or_default()) {
            let frame = frame?;
            match Nlmsg::from(frame.kind) {
                Nlmsg::Done | Nlmsg::Error => {
                    return match frame.errno()? {
                        0 => Ok(()),
                        errno => Err(io::Error::from_raw_os_error(errno).into()),
                    };
                }
                _ if frame.kind == u16::from(Rtm::Newtfilter) => each(frame.payload)?,
                _ => {}
            }
        }
    }
}

fn open() -> io::Result<OwnedFd> {
    let (kind, flags) = (SockType::Raw, SockFlag::SOCK_CLOEXEC);
    let socket = socket(AddressFamily::Netlink, kind, flags, SockProtocol::NetlinkRoute)?;
    // The kernel has answered before `sendto` returns.
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(1))?;
    Ok(socket)
}

const SEQ: u32 = 1;
/// `TC_H_CLSACT`, which is also the handle of the qdisc's major part
/// (include/uapi/linux/pkt_sched.h).
const CLSACT_PARENT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
/// `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)`.
const INGRESS: u32 = 0xffff_fff2;
/// `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS)`.
const EGRESS: u32 = 0xffff_fff3;
/// Of include/uapi/linux/pkt_cls.h.
const TCA_BPF_NAME: u16 = 7;
