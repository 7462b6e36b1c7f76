// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! An address of the other guest that moves from its first port to its second one, because the first loses its link.

use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::B_PORT;
use crate::rig::{self, Place, ip};

/// How long the address has no owner.
const TAKEOVER: Duration = Duration::from_secs(1);

/// It begins at the first port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moving {
    pub(super) address: &'static str,
    /// The interface whose neighbour entry follows it.
    pub(super) learns: (Place, &'static str),
    /// The first port's interface is on an alias, which its manager forgets with the link.
    pub(super) is_on_alias: bool,
}

impl Moving {
    /// The first port has it.
    pub(super) fn begins(self) -> Result<()> {
        self.is_given("ib0")
    }

    pub(super) fn moves(self) -> Result<()> {
        cable("off")?;
        thread::sleep(TAKEOVER);
        self.is_taken("ib0")?;
        self.is_given("ib1")
    }

    /// No port has the address, and the first port works again.
    pub(super) fn ends(self) -> Result<()> {
        cable("on")?;
        self.is_taken("ib1")?;
        rig::is_active(Place::Other, B_PORT)?;
        if self.is_on_alias {
            rig::take_alias(Place::Other, "ib0")?;
        }
        rig::is_up(Place::Other, "ib0")
    }

    fn is_given(self, name: &str) -> Result<()> {
        ip(Place::Other, &format!("address add {}/32 dev {name}", self.address))?;
        // As gratuitous ARP does it.
        let (place, device) = self.learns;
        ip(place, &format!("neighbour flush to {} dev {device}", self.address)).map(drop)
    }

    fn is_taken(self, name: &str) -> Result<()> {
        ip(Place::Other, &format!("address del {}/32 dev {name}", self.address)).map(drop)
    }
}

fn cable(state: &str) -> Result<()> {
    rig::run(Place::Here, &["ibfab", "fault", "cable", "B", state]).map(drop)
}
