// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Who is at the other end of a Unix socket.

use std::io;

use nix::unistd::{Gid as GroupId, Group, Uid, User, getgrouplist};
use tokio::net::UnixStream;

/// Whether the process that connected `stream` runs as root, as our own user, or is in `group`.
///
/// Membership is that of the user database (getgrouplist(3)), besides the group it runs as.
///
/// # Errors
/// Those of `SO_PEERCRED` and of reading the user database.
pub fn may_change(stream: &UnixStream, group: &str) -> io::Result<bool> {
    let peer = stream.peer_cred()?;
    if peer.uid() == 0 || peer.uid() == Uid::effective().as_raw() {
        return Ok(true);
    }
    let Some(group) = Group::from_name(group)? else { return Ok(false) };
    if GroupId::from_raw(peer.gid()) == group.gid {
        return Ok(true);
    }
    let Some(user) = User::from_uid(Uid::from_raw(peer.uid()))? else { return Ok(false) };
    let name = std::ffi::CString::new(user.name)?;
    Ok(getgrouplist(&name, user.gid)?.contains(&group.gid))
}
