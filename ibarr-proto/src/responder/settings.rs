// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What an administrator can set about the programs, and what is counted of their life.

use alloc::vec::Vec;
use core::num::NonZeroU16;
use core::time::Duration;

use super::work::{Hook, Mode};
use crate::ip2gid::client;
use crate::local_view::neighbours;
use crate::local_view::{LinkHeader, Pattern, ServedInterface};

/// The administrator's settings.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settings {
    /// The programs to use.
    pub mode: Mode,
    /// Exceptions for some interfaces; the first matching pattern decides.
    pub on: Vec<(Pattern, Mode)>,
    /// How long programs answer without the daemon.
    pub lease: Duration,
    /// The UDP port whose queries they answer.
    pub udp_port: NonZeroU16,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            on: Vec::new(),
            lease: Duration::from_mins(1),
            udp_port: client::Settings::default().udp_port,
        }
    }
}

impl Settings {
    /// Whether programs are to answer on any interface.
    pub fn want_kernel(&self) -> bool {
        let mut modes = self.on.iter().map(|(_, mode)| mode);
        self.mode != Mode::User || modes.any(|mode| *mode != Mode::User)
    }

    /// On which interfaces the view has to know neighbours: where XDP answers. The program needs
    /// them only on IPoIB, and the view follows no others.
    pub fn wants_neighbours(&self) -> neighbours::Selection {
        let is_xdp = |mode: Mode| mode.hooks(LinkHeader::Ipoib).contains(&Hook::XdpGeneric);
        neighbours::Selection {
            on: self.on.iter().map(|(pattern, mode)| (pattern.clone(), is_xdp(*mode))).collect(),
            otherwise: is_xdp(self.mode),
        }
    }

    pub(super) fn mode_on(&self, served: &ServedInterface) -> Mode {
        let names = (&served.name, &served.altnames);
        let found = self.on.iter().find(|(pattern, _)| pattern.matches(names.0, names.1));
        found.map_or(self.mode, |(_, mode)| *mode)
    }
}

crate::counters! {
    /// Counters of the BPF responder.
    pub enum Counter {
        /// Programs that were attached, or replaced older ones.
        Attached = normal("attached"),
        /// Programs that were attached and then found missing: another process has removed them, or
        /// the interface was replaced.
        Lost = error("lost"),
        /// How often the programs could not be loaded.
        NotLoaded = error("not-loaded"),
        /// Interfaces on which no program could be attached.
        NotAttached = error("not-attached"),
        /// How often a map or pin could not be changed. Programs answer nothing until all maps are
        /// correct again.
        Faults = error("faults"),
        /// How often the map of peers' answers could not be changed; the next daemon asks these
        /// peers again.
        MirrorFaults = error("mirror-faults"),
        /// How often the lease was renewed.
        LeaseRenewals = normal("lease-renewals"),
        /// How often the lease was due but the local view was too old.
        LeaseWithheld = error("lease-withheld"),
    }
}
