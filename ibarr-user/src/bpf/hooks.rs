// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Attaching and detaching programs, for each hook.
//!
//! One system call replaces an older program, so that each packet is seen by exactly one of the
//! two.

use std::collections::BTreeSet;
use std::io;
use std::mem::ManuallyDrop;

use aya::pin::PinError;
use aya::programs::links::{FdLink, LinkError, PinnedLink};
use aya::programs::tc::{
    NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle, qdisc_add_clsact,
};
use aya::programs::xdp::{XdpError, XdpLink};
use aya::programs::{
    Link, LinkOrder, ProgramError, SchedClassifier, TcAttachType, TcError, Xdp, XdpMode,
};
use ibarr_common::IfIndex;
use ibarr_proto::local_view::ServedInterface;
use ibarr_proto::responder::Hook;
use nix::net::if_::{if_indextoname, if_nametoindex};
use thiserror::Error;
use tracing::debug;

use super::pins::{self, Pins};
use super::tc::Filter;
use super::{tc, xdp};
use crate::sys::bpf::pinned_link_info;
use crate::transport::rtnetlink;

/// Why no program is attached.
#[derive(Debug, Error)]
pub enum Error {
    /// The kernel refuses the program.
    #[error("the kernel refuses")]
    Program(#[from] ProgramError),
    /// A link of ours cannot be used.
    #[error("the kernel refuses")]
    Link(#[from] LinkError),
    /// The link cannot be pinned.
    #[error("the link cannot be pinned")]
    Pin(#[from] PinError),
    /// The pins cannot be read or written.
    #[error(transparent)]
    Pins(#[from] pins::Error),
    /// The filters cannot be read or removed.
    #[error("tc")]
    Tc(#[from] rtnetlink::Error),
    /// A filter of another program has our priority and handle.
    #[error("another filter, {0:?}, has priority {PRIORITY} and handle {HANDLE:#x}: remove it")]
    Taken(String),
    /// The kernel refuses XDP, with the remedy.
    #[error("{0}; or use responder = \"tc\"")]
    Xdp(&'static str),
    /// XDP could be attached, but would answer wrongly.
    #[error(transparent)]
    WrongXdp(#[from] xdp::Error),
    /// The interface was renamed or removed meanwhile.
    #[error("the interface was removed or renamed")]
    Moved,
}

/// Priority of our filter at the ingress qdisc, and its place in the order of tcx links.
pub(super) const PRIORITY: u16 = 4791;
pub(super) const HANDLE: u32 = 0x4791;
pub(super) const FILTER: &str = "ip2gid_tc";

pub(super) fn attach_tcx(
    pins: &Pins,
    interface: &ServedInterface,
    program: &mut SchedClassifier,
) -> Result<(), Error> {
    let path = pins.hook(interface.ifindex, Hook::Tcx);
    let replaced = replace(pins, interface.ifindex, Hook::Tcx, |link| {
        let link = SchedClassifierLink::try_from(link)?;
        let id = program.attach_to_link(link)?;
        // The pin keeps the link.
        drop(program.take_link(id)?);
        Ok(())
    })?;
    if replaced {
        return Ok(());
    }
    let name = name_of(interface.ifindex)?;
    // Last, so that programs of others see the packets first.
    let options = TcAttachOptions::TcxOrder(LinkOrder::last());
    let id = program.attach_with_options(&name, TcAttachType::Ingress, options)?;
    let link = program.take_link(id)?;
    still_called(interface.ifindex, &name)?;
    FdLink::try_from(link)?.pin(path)?;
    Ok(())
}

pub(super) fn attach_xdp(
    pins: &Pins,
    interface: &ServedInterface,
    hook: Hook,
    program: &mut Xdp,
) -> Result<(), Error> {
    xdp::check(interface, hook)?;
    let path = pins.hook(interface.ifindex, hook);
    let replaced = replace(pins, interface.ifindex, hook, |link| {
        let id = program.attach_to_link(XdpLink::try_from(link)?)?;
        drop(program.take_link(id)?);
        Ok(())
    })?;
    if replaced {
        return Ok(());
    }
    // An interface cannot have XDP in the driver and in the stack at once. The daemon answers
    // meanwhile.
    let other = if hook == Hook::XdpNative { Hook::XdpGeneric } else { Hook::XdpNative };
    pins.remove_hook(interface.ifindex, other)?;
    let mode = if hook == Hook::XdpNative { XdpMode::Driver } else { XdpMode::Skb };
    let id = program.attach_to_if_index(interface.ifindex.get(), mode).map_err(refused_xdp)?;
    // If the program could only be attached without a link, the error detaches it.
    FdLink::try_from(program.take_link(id)?)?.pin(path)?;
    Ok(())
}

pub(super) fn attach_clsact(
    pins: &Pins,
    interface: &ServedInterface,
    program: &mut SchedClassifier,
) -> Result<(), Error> {
    let name = name_of(interface.ifindex)?;
    let is_new = pins.make_filter(interface.ifindex)?;
    let attached = add_qdisc(pins, interface.ifindex, &name).and_then(|()| {
        let ours = match tc::filter_at(interface.ifindex, PRIORITY, HANDLE)? {
            None => false,
            Some(filter) if filter.name == FILTER => true,
            Some(filter) => return Err(Error::Taken(filter.name)),
        };
        let id = if ours {
            program.attach_to_link(filter(&name)?)?
        } else {
            let options = NlOptions { priority: PRIORITY, handle: handle(), classid: None };
            let options = TcAttachOptions::Netlink(options);
            program.attach_with_options(&name, TcAttachType::Ingress, options)?
        };
        // Dropping the link would detach the program.
        let _ = ManuallyDrop::new(program.take_link(id)?);
        still_called(interface.ifindex, &name)
    });
    if attached.is_err() && is_new {
        // The error to report is the earlier one.
        let _ = detach_filter(pins, interface.ifindex);
        let _ = remove_qdisc(pins, interface.ifindex);
    }
    attached
}

/// A program or qdisc cannot be removed.
#[derive(Debug, Error)]
#[error("interface {ifindex}, {hook}: cannot be detached")]
pub struct NotDetached {
    ifindex: IfIndex,
    hook: Hook,
    source: Error,
}

pub(super) fn detach(pins: &Pins, ifindex: IfIndex, hook: Hook) -> Result<(), NotDetached> {
    let detached = match hook {
        Hook::Clsact => detach_filter(pins, ifindex),
        Hook::Tcx | Hook::XdpNative | Hook::XdpGeneric => {
            pins.remove_hook(ifindex, hook).map_err(Error::from)
        }
    };
    detached.map_err(|source| NotDetached { ifindex, hook, source })
}

/// Whether one of the programs `ours` (by id) is still attached. If this cannot be read, assume
/// that it is.
///
/// A link outlives its attachment: after BPF_LINK_DETACH, or when the interface is removed, it
/// names no interface, though a new interface may have the same index.
pub(super) fn is_attached(pins: &Pins, ifindex: IfIndex, hook: Hook, ours: &BTreeSet<u32>) -> bool {
    let pin = pins.hook(ifindex, hook);
    if hook == Hook::Clsact {
        let is_ours = |filter: Filter| {
            filter.name == FILTER && filter.program.is_none_or(|program| ours.contains(&program))
        };
        return pin.exists()
            && tc::filter_at(ifindex, PRIORITY, HANDLE)
                .map_or(true, |found| found.is_some_and(is_ours));
    }
    match pinned_link_info(&pin) {
        Ok(link) => link.ifindex == ifindex.get() && ours.contains(&link.program),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Removes the qdisc of an interface if we have added it and it has no filters.
///
/// This is not done when the kind of program changes: while the kernel adds or removes a qdisc, it
/// stops the queues of the interface and drops all outgoing packets (`qdisc_graft` in
/// net/sched/sch_api.c).
pub(super) fn detach_qdisc(pins: &Pins, ifindex: IfIndex) -> Result<(), NotDetached> {
    let hook = Hook::Clsact;
    remove_qdisc(pins, ifindex).map_err(|source| NotDetached { ifindex, hook, source })
}

/// Replaces the program of the pinned link by ours. `false` if there is no link, or its interface
/// is gone.
fn replace(
    pins: &Pins,
    ifindex: IfIndex,
    hook: Hook,
    put: impl FnOnce(FdLink) -> Result<(), Error>,
) -> Result<bool, Error> {
    match PinnedLink::from_pin(pins.hook(ifindex, hook)) {
        Err(LinkError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => {
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
        Ok(link) => match put(link.into()) {
            Ok(()) => return Ok(true),
            Err(error) => {
                debug!(%ifindex, %hook, ?error, "stale link");
            }
        },
    }
    pins.remove_hook(ifindex, hook)?;
    Ok(false)
}

/// The kernel's refusal of XDP, with its remedy for the administrator.
fn refused_xdp(error: ProgramError) -> Error {
    let errno = match &error {
        ProgramError::SyscallError(error) => error.io_error.raw_os_error(),
        ProgramError::XdpError(XdpError::NetlinkError(error)) => error.raw_os_error(),
        _ => None,
    };
    let remedy = match errno {
        Some(libc::EBUSY | libc::EEXIST) => "another XDP program is there: remove it",
        Some(libc::EOPNOTSUPP) => "the driver has no XDP: use responder = \"xdp-generic\"",
        Some(libc::ERANGE) => {
            "the MTU is too large for the driver's XDP: use responder = \"xdp-generic\""
        }
        _ => return error.into(),
    };
    Error::Xdp(remedy)
}

fn add_qdisc(pins: &Pins, ifindex: IfIndex, name: &str) -> Result<(), Error> {
    let is_new = pins.make_qdisc(ifindex)?;
    let Err(error) = qdisc_add_clsact(name) else { return Ok(()) };
    if is_new {
        pins.remove_qdisc(ifindex)?;
    }
    match &error {
        TcError::AlreadyAttached => Ok(()),
        TcError::NetlinkError(netlink) if netlink.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        _ => Err(ProgramError::from(error).into()),
    }
}

fn detach_filter(pins: &Pins, ifindex: IfIndex) -> Result<(), Error> {
    unless_gone(ifindex, |name| {
        if tc::filter_at(ifindex, PRIORITY, HANDLE)?.is_some_and(|found| found.name == FILTER) {
            Link::detach(filter(name)?)?;
        }
        Ok(())
    })?;
    Ok(pins.remove_hook(ifindex, Hook::Clsact)?)
}

fn remove_qdisc(pins: &Pins, ifindex: IfIndex) -> Result<(), Error> {
    if pins.qdiscs()?.contains(&ifindex) {
        let mut is_used = false;
        unless_gone(ifindex, |_| {
            is_used = tc::has_filters(ifindex)?;
            if !is_used {
                tc::remove_clsact(ifindex)?;
            }
            Ok(())
        })?;
        // One that others use is still ours to remove later.
        if !is_used {
            pins.remove_qdisc(ifindex)?;
        }
    }
    Ok(())
}

/// An interface that is removed takes its programs along, so errors about it do not count.
fn unless_gone(
    ifindex: IfIndex,
    change: impl FnOnce(&str) -> Result<(), Error>,
) -> Result<(), Error> {
    let Ok(name) = name_of(ifindex) else { return Ok(()) };
    let changed = change(&name);
    if name_of(ifindex).is_err() { Ok(()) } else { changed }
}

fn filter(name: &str) -> Result<SchedClassifierLink, Error> {
    let ingress = TcAttachType::Ingress;
    SchedClassifierLink::attached(name, ingress, PRIORITY, handle(), None).map_err(|_| Error::Moved)
}

fn handle() -> TcHandle {
    HANDLE.into()
}

fn name_of(ifindex: IfIndex) -> Result<String, Error> {
    let name = if_indextoname(ifindex.get()).map_err(|_| Error::Moved)?;
    name.into_string().map_err(|_| Error::Moved)
}

/// aya takes names of interfaces, which can change.
fn still_called(ifindex: IfIndex, name: &str) -> Result<(), Error> {
    match if_nametoindex(name) {
        Ok(found) if found == ifindex.get() => Ok(()),
        _ => Err(Error::Moved),
    }
}
