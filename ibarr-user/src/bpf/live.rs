// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The kernel of this machine, through aya.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use ibarr_common::IfIndex;
use ibarr_common::map::{self, Program, Reason};
use ibarr_proto::local_view::Served;
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use tracing::{debug, info};

use super::Error;
use super::kernel::{Held, Hook, Kernel, MapUpdate};
use super::maps::Maps;
use super::pins::Pins;
use super::programs::Programs;

/// Where things are.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the pins.
    pub dir: PathBuf,
    /// The object to load instead of our own.
    pub object: Option<PathBuf>,
    /// Where the verifier's log goes if it refuses a program.
    pub verifier_log: PathBuf,
}

/// See the [module](self).
pub(super) struct Live {
    maps: Maps,
    programs: Programs,
    pins: Pins,
}

impl Live {
    /// Loads the programs. What this makes is removed again if it fails; what was there stays.
    pub(super) fn open(options: &Options) -> Result<Self, Error> {
        // Before Linux 5.11 maps count against this limit, which is 64 KiB for most.
        if let Err(error) = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY) {
            debug!(%error, "locked memory stays limited");
        }
        let object = match &options.object {
            None => Cow::Borrowed(ibarr_ebpf::OBJECT),
            Some(path) => match fs::read(path) {
                Ok(object) => Cow::Owned(object),
                Err(source) => return Err(Error::Object { path: path.clone(), source }),
            },
        };
        let pins = Pins::open(&options.dir)?;
        let pins = if pins.claim_namespace()? {
            pins
        } else {
            info!("{}: pins of another network namespace, removed", options.dir.display());
            pins.remove()?;
            let pins = Pins::open(&options.dir)?;
            pins.claim_namespace()?;
            pins
        };
        let is_new = pins.make_layout(map::ABI_VERSION)?;
        let layout = pins.layout(map::ABI_VERSION);
        pins.make_links()?;
        let loaded = Programs::load(object, layout.clone(), options.verifier_log.clone())
            .and_then(|programs| Ok((programs, Maps::open(&layout)?)));
        match loaded {
            Ok((programs, maps)) => Ok(Self { maps, programs, pins }),
            Err(error) => {
                if is_new {
                    pins.remove_layout(map::ABI_VERSION)?;
                    if pins.hooks()?.is_empty() && pins.layouts()?.is_empty() {
                        pins.remove()?;
                    }
                }
                Err(error)
            }
        }
    }

    /// Attaches the guard to a socket of the ip2gid port.
    pub(super) fn guard(&mut self, socket: BorrowedFd<'_>) -> Result<(), Error> {
        self.programs.guard(socket)
    }

    /// What the programs have counted.
    pub(super) fn counts(&self) -> Result<Vec<(Program, Reason, u64)>, Error> {
        Ok(self.maps.counts()?)
    }
}

impl Kernel for Live {
    fn update(&mut self, update: &MapUpdate) -> Result<(), Error> {
        Ok(self.maps.update(update)?)
    }

    fn held(&self) -> Result<Held, Error> {
        Ok(self.maps.held()?)
    }

    fn attached(&self) -> Result<BTreeSet<(IfIndex, Hook)>, Error> {
        Ok(self.pins.hooks()?)
    }

    fn attach(&mut self, interface: &Served, hook: Hook) -> Result<(), Error> {
        self.programs.attach(&self.pins, interface, hook)
    }

    fn detach(&mut self, ifindex: IfIndex, hook: Hook) -> Result<(), Error> {
        super::hooks::detach(&self.pins, ifindex, hook)
    }

    fn settle(&mut self) -> Result<(), Error> {
        for version in self.pins.layouts()? {
            if version != map::ABI_VERSION {
                info!(version, "no program uses this layout of the maps any more, removed");
                self.pins.remove_layout(version)?;
            }
        }
        Ok(())
    }
}
