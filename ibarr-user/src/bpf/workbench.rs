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
use nix::net::if_::if_indextoname;
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use tracing::{debug, info};

use super::kernel::{Held, Hook, Kernel, MapUpdate};
use super::maps::Maps;
use super::pins::{self, Pins};
use super::programs::Programs;
use super::{Error, hooks};

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
        let namespace = pins::namespace(&options.dir)?;
        let pins = if pins.is_foreign(&namespace)? {
            info!("{}: pins of another network namespace, removed", options.dir.display());
            pins.remove()?;
            Pins::open(&options.dir)?
        } else {
            pins
        };
        let layout = pins.layout(map::ABI_VERSION);
        let mut made = Vec::new();
        let loaded = [pins.links(), namespace, layout.clone()]
            .into_iter()
            .try_for_each(|path| {
                if pins::make(&path)? {
                    made.push(path);
                }
                Ok(())
            })
            .and_then(|()| Programs::load(object, layout.clone(), options.verifier_log.clone()))
            .and_then(|programs| Ok((programs, Maps::open(&layout)?)));
        match loaded {
            Ok((programs, maps)) => Ok(Self { maps, programs, pins }),
            Err(error) => {
                for path in made {
                    pins::remove_all(&path)?;
                }
                pins.remove_if_empty()?;
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

    fn is_attached(&self, ifindex: IfIndex, hook: Hook) -> bool {
        hooks::is_attached(&self.pins, ifindex, hook)
    }

    fn attach(&mut self, interface: &Served, hook: Hook) -> Result<(), Error> {
        self.programs.attach(&self.pins, interface, hook)
    }

    fn detach(&mut self, ifindex: IfIndex, hook: Hook) -> Result<(), Error> {
        hooks::detach(&self.pins, ifindex, hook)
    }

    fn settle(&mut self) -> Result<(), Error> {
        for ifindex in self.pins.qdiscs()? {
            if if_indextoname(ifindex.get()).is_err() {
                hooks::detach_qdisc(&self.pins, ifindex)?;
            }
        }
        for version in self.pins.layouts()? {
            if version != map::ABI_VERSION {
                info!(version, "no program uses this layout of the maps any more, removed");
                self.pins.remove_layout(version)?;
            }
        }
        Ok(())
    }
}
