// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Which processes may change the daemon: root, the daemon's own user, and members of a group.
//!
//! The gid of the group is in the user database, and a module of nsswitch.conf may take arbitrarily
//! long to answer. So a thread looks it up, at the start and at each reload; until it has an
//! answer, the group has no members. The kernel identifies peers ([`crate::sys::peer`]).

use std::os::fd::BorrowedFd;
use std::{fmt, io, thread};

use ibarr_proto::health::GroupUnknown;
use nix::unistd::Group;
use tokio::sync::{mpsc, watch};
use tracing::warn;

use crate::sys::peer::{self, Peer};

/// Decides which peers may change the daemon, see the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Access {
    group: watch::Receiver<GroupId>,
    look: mpsc::Sender<()>,
}

/// The gid of the group whose members may change the daemon.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum GroupId {
    /// It is not known yet.
    Unknown(GroupUnknown),
    /// The user database has no such group.
    Absent,
    /// The gid of the group.
    Is(u32),
}

impl Access {
    /// Starts the thread, which calls `find_group` now and after each [`Self::look_again`].
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(
        find_group: impl Fn() -> io::Result<Option<u32>> + Send + 'static,
    ) -> io::Result<Self> {
        let (told, group) = watch::channel(GroupId::Unknown(GroupUnknown::NoAnswerYet));
        let (look, mut looks) = mpsc::channel(1);
        thread::Builder::new().name("groups".to_owned()).spawn(move || {
            loop {
                let found = find_group();
                if let Err(error) = &found {
                    warn!(%error, group = super::GROUP, "the user database cannot be read");
                }
                told.send_modify(|group| match found {
                    Ok(Some(gid)) => *group = GroupId::Is(gid),
                    Ok(None) => *group = GroupId::Absent,
                    // The last known gid stays.
                    Err(_) if !matches!(group, GroupId::Unknown(_)) => {}
                    Err(error) => {
                        *group = GroupId::Unknown(GroupUnknown::Unreadable(error.into()));
                    }
                });
                if looks.blocking_recv().is_none() {
                    return;
                }
            }
        })?;
        Ok(Self { group, look })
    }

    /// Asks the user database again, without waiting for the answer.
    pub(crate) fn look_again(&self) {
        // A pending look-up is enough.
        self.look.try_send(()).ok();
    }

    /// The state of the look-up.
    pub(crate) fn group(&self) -> GroupId {
        self.group.borrow().clone()
    }

    /// Waits until the user database has answered.
    #[cfg(test)]
    pub(super) async fn known(&self) {
        let is_known = |group: &GroupId| *group != GroupId::Unknown(GroupUnknown::NoAnswerYet);
        drop(self.group.clone().wait_for(is_known).await.unwrap());
    }

    /// Whether the process that connected `socket` may change the daemon.
    pub(crate) fn may_change(&self, socket: BorrowedFd<'_>, peer: Peer) -> bool {
        peer.is_root_or_us() || self.has_member(socket, peer)
    }

    /// Whether the process that connected `socket` is in the group, by the groups of the process
    /// and not those of the user database.
    pub(crate) fn has_member(&self, socket: BorrowedFd<'_>, peer: Peer) -> bool {
        let GroupId::Is(gid) = *self.group.borrow() else { return false };
        peer.gid == gid || peer::groups(socket).is_ok_and(|groups| groups.contains(&gid))
    }
}

/// The gid of the group `name` in the user database. May block arbitrarily long.
///
/// # Errors
/// Errors of getgrnam_r(3).
pub(crate) fn find_group(name: &str) -> io::Result<Option<u32>> {
    Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()))
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(reason) => reason.fmt(f),
            Self::Absent => f.write_str("there is no such group"),
            Self::Is(gid) => write!(f, "gid {gid}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc as std_mpsc;

    use super::*;
    use crate::causes::fault;

    /// Who runs no tests.
    const OTHER: Peer = Peer { uid: 3_999_999_999, gid: 3_999_999_999 };

    /// An access whose look-ups return what the sender sends, in that order.
    fn access() -> (Access, std_mpsc::Sender<io::Result<Option<u32>>>) {
        let (answers, answer) = std_mpsc::channel();
        (Access::start(move || answer.recv().unwrap_or(Ok(None))).unwrap(), answers)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn only_root_and_own_user_may_change_until_the_group_is_known() {
        let (mut access, answers) = access();
        let (socket, _other) = UnixStream::pair().unwrap();
        let (us, member) = (Peer::of(socket.as_fd()).unwrap(), Peer { gid: 123, ..OTHER });
        assert_eq!(access.group(), GroupId::Unknown(GroupUnknown::NoAnswerYet));
        assert!(access.may_change(socket.as_fd(), us));
        assert!(!access.may_change(socket.as_fd(), member));
        answers.send(Ok(Some(123))).unwrap();
        access.group.changed().await.unwrap();
        assert!(access.may_change(socket.as_fd(), member));
        assert!(!access.may_change(socket.as_fd(), OTHER));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn failed_find_group_keeps_the_last_gid() {
        let (mut access, answers) = access();
        let unreadable = GroupUnknown::Unreadable(fault!("sssd is down"));
        let steps = [
            (Err(io::Error::other("sssd is down")), GroupId::Unknown(unreadable)),
            (Ok(Some(7)), GroupId::Is(7)),
            (Err(io::Error::other("again")), GroupId::Is(7)),
            (Ok(None), GroupId::Absent),
        ];
        for (answer, expected) in steps {
            answers.send(answer).unwrap();
            access.group.changed().await.unwrap();
            assert_eq!(access.group(), expected);
            access.look_again();
        }
    }
}
