// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use neli::consts::nl::Nlmsg;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use thiserror::Error;

use crate::transport::rtnetlink::message::{Frame, Malformed, frames};

/// Why a request to rtnetlink failed.
#[derive(Debug, Error)]
pub enum Error {
    #[error("rtnetlink")]
    Io(#[from] io::Error),
    /// The kernel's answer is malformed.
    #[error("rtnetlink: the answer makes no sense: {0}")]
    Malformed(String),
}

impl From<Malformed> for Error {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// The sequence number of every request: each has its own socket.
pub(super) const SEQ: u32 = 1;

/// Sends a request with acknowledgement, or a dump, and hands each message of the answer to `each`.
/// The kernel executes the request during sendmsg(2), so this hardly blocks.
pub(super) fn ask(
    request: &[u8],
    mut each: impl FnMut(&Frame<'_>) -> Result<(), Malformed>,
) -> Result<(), Error> {
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
                _ => each(&frame)?,
            }
        }
    }
}

fn open() -> io::Result<OwnedFd> {
    let (kind, flags) = (SockType::Raw, SockFlag::SOCK_CLOEXEC);
    let socket = socket(AddressFamily::Netlink, kind, flags, SockProtocol::NetlinkRoute)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(1))?;
    Ok(socket)
}
