// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The limits of connections to the control socket. Root, the group that may change the daemon, and
//! all other users have separate limits, so that no user can exhaust root's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::messages::{Failure, FailureKind};

/// The class of a connection's user.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Class {
    /// Root and the daemon's own user.
    Root,
    /// Members of the group that may change the daemon.
    Member,
    /// All others.
    Other,
}

/// Connections at once of all users of a class. With the other descriptors of the daemon this is
/// below 1,024, the usual limit of a process.
pub const OF_CLASS: usize = 128;

/// Connections at once of one user, unless it is root.
pub const OF_USER: usize = 16;

/// Counts the open connections.
#[derive(Clone, Debug)]
pub struct Places(Arc<Mutex<Taken>>);

#[derive(Debug)]
struct Taken {
    /// Connections at once of all users of a class.
    most: usize,
    of_class: [usize; 3],
    of_user: HashMap<u32, usize>,
}

/// Room for one connection; dropping it releases the room.
#[derive(Debug)]
pub struct Place {
    places: Places,
    class: Class,
    uid: u32,
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// This user has as many connections as one user may have.
    User(u32),
    /// The users of this class have all connections of the class.
    Class(Class),
}

impl Default for Places {
    fn default() -> Self {
        Self::new(OF_CLASS)
    }
}

impl Places {
    /// With `most` connections at once for all users of a class: [`OF_CLASS`], or less where there
    /// are few descriptors.
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Mutex::new(Taken { most, of_class: [0; 3], of_user: HashMap::new() })))
    }

    /// Takes room for one connection of the user `uid`, of `class`.
    ///
    /// # Errors
    /// If there is no room.
    pub fn take(&self, class: Class, uid: u32) -> Result<Place, Refusal> {
        let mut taken = self.taken();
        let of_class = taken.of_class[class as usize];
        let of_user = taken.of_user.get(&uid).copied().unwrap_or(0);
        if class != Class::Root && of_user >= OF_USER {
            return Err(Refusal::User(uid));
        }
        if of_class >= taken.most {
            return Err(Refusal::Class(class));
        }
        taken.of_class[class as usize] = of_class + 1;
        taken.of_user.insert(uid, of_user + 1);
        Ok(Place { places: self.clone(), class, uid })
    }

    /// Open connections of all users.
    pub fn len(&self) -> usize {
        self.taken().of_class.iter().sum()
    }

    /// Whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Nothing can panic while it is locked, and the numbers are consistent at any time.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.of_class[self.class as usize] -= 1;
        if let Some(of_user) = taken.of_user.get_mut(&self.uid) {
            *of_user -= 1;
            if *of_user == 0 {
                taken.of_user.remove(&self.uid);
            }
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let message = match refusal {
            Refusal::User(uid) => format!(
                "user {uid} has {OF_USER} connections to the control socket, the limit for one user: \
                 end some of them, or try again later"
            ),
            Refusal::Class(class) => {
                let whose = match class {
                    Class::Root => "root",
                    Class::Member => "the members of its group",
                    Class::Other => "unprivileged users",
                };
                format!(
                    "the connections to the control socket for {whose} are all in use: \
                     try again later"
                )
            }
        };
        Self { kind: FailureKind::Overloaded, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_at_its_limit_takes_no_room_of_another() {
        let places = Places::default();
        let taken: Vec<_> = (0..OF_USER).map(|_| places.take(Class::Other, 65534)).collect();
        assert!(taken.iter().all(Result::is_ok));
        assert_eq!(places.take(Class::Other, 65534).unwrap_err(), Refusal::User(65534));
        drop(places.take(Class::Other, 1000).unwrap());
        drop(taken);
        assert!(places.is_empty() && places.taken().of_user.is_empty());
        drop(places.take(Class::Other, 65534).unwrap());
    }

    #[test]
    fn unprivileged_users_take_no_room_of_root_or_group() {
        let places = Places::default();
        let take = |n| places.take(Class::Other, 1000 + u32::try_from(n / OF_USER).unwrap());
        let taken: Vec<_> = (0..OF_CLASS).map(take).collect();
        assert!(taken.iter().all(Result::is_ok));
        assert_eq!(places.take(Class::Other, 7).unwrap_err(), Refusal::Class(Class::Other));
        let member = places.take(Class::Member, 7).unwrap();
        let root: Vec<_> = (0..OF_CLASS).map(|_| places.take(Class::Root, 0)).collect();
        assert!(root.iter().all(Result::is_ok));
        assert_eq!(places.take(Class::Root, 0).unwrap_err(), Refusal::Class(Class::Root));
        drop(member);
    }
}
