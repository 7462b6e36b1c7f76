// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The places of connections, each of which a task serves until it has to give way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ibarr_proto::places::{Full, Places, Room};
use ibarr_proto::shares::User;
use tokio::sync::oneshot;

/// Connections at once to the control socket. With the other descriptors of the daemon this is
/// below 1,024, the usual limit of a process.
pub(crate) const CONTROL: Room = Room { all: 384, of_user: 16 };

#[derive(Clone, Debug)]
pub(crate) struct Connections(Arc<Mutex<Open>>);

#[derive(Debug)]
struct Open {
    places: Places<u64>,
    /// Dropped to tell a connection that it gives way.
    stay: HashMap<u64, oneshot::Sender<()>>,
    next: u64,
}

/// Room for one connection; dropping it releases the room.
#[derive(Debug)]
pub(crate) struct Slot {
    connections: Connections,
    key: u64,
}

impl Connections {
    pub(crate) fn new(room: Room) -> Self {
        let open = Open { places: Places::new(room), stay: HashMap::new(), next: 0 };
        Self(Arc::new(Mutex::new(open)))
    }

    /// Takes room for one connection of a user, perhaps that of another. The receiver ends when it has to give way.
    ///
    /// # Errors
    /// If there is no room.
    pub(crate) fn take(&self, user: User) -> Result<(Slot, oneshot::Receiver<()>), Full> {
        let mut open = self.open();
        let key = open.next;
        if let Some(gone) = open.places.take(user, key)? {
            open.stay.remove(&gone);
        }
        open.next += 1;
        let (stay, stays) = oneshot::channel();
        open.stay.insert(key, stay);
        Ok((Slot { connections: self.clone(), key }, stays))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.open().places.taken()
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        // Nothing can panic while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// The connection has sent a request.
    pub(crate) fn touch(&self) {
        self.connections.open().places.touch(self.key);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut open = self.connections.open();
        open.places.leave(self.key);
        open.stay.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn connection_that_gives_way_is_told_and_leaves_its_room() {
        let connections = Connections::new(Room { all: 3, of_user: 2 });
        let mut held = [(); 2].map(|()| connections.take(User(1)).unwrap());
        assert_eq!(connections.take(User(1)).unwrap_err(), Full::User);
        held[0].0.touch();
        let mut other = connections.take(User(2)).unwrap();
        let all = held.iter_mut().chain([&mut other]);
        let gone: Vec<_> = all.map(|(_, stays)| stays.now_or_never().is_some()).collect();
        assert_eq!(gone, [false, true, false]);
        let root = connections.take(User::ROOT).unwrap();
        assert_eq!(connections.count(), 3);
        drop((held, other, root));
        assert_eq!((connections.count(), connections.open().stay.len()), (0, 0));
    }
}
