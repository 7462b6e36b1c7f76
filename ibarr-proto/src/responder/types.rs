// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the responder and its driver tell each other.

use alloc::string::String;

use super::life::{Done, Order};
use super::maps::{MapElements, MapUpdate};
use super::work::Hook;
use crate::Fault;
use crate::local_view::{Event as Fact, InterfaceName};

/// What the driver reports, and what changes in the view.
#[derive(Clone, Debug)]
pub enum Input {
    /// The view has changed.
    Fact(Fact),
    /// The maps can be written from now on, even while programs are verified.
    Opened,
    /// The result of the last [`Output::Map`].
    MapDone(Result<(), Fault>),
    /// The answer to [`Output::Keys`].
    Keys(Result<MapElements, Fault>),
    /// The last order is executed.
    Done(Done),
    /// Whether programs are to report their packets.
    Report(bool),
}

/// An action for the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Write to a map, and report the result before the next output is taken.
    Map(MapUpdate),
    /// Read the keys of all maps, and report them before the next output is taken.
    Keys,
    /// Take the lease back, as far as possible, and close the maps.
    Close,
    /// Have the thread execute this.
    Program(Order),
    /// Tell the administrator what has happened.
    Event(Event),
}

/// What an administrator may want to know.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// The programs answer no longer than the mount namespace of the daemon has this directory of pins.
    PrivatePins(String),
    /// No program answers: none can be loaded, or the maps may be wrong.
    Silent(Fault),
    /// The lease cannot be revoked either, so all programs will be detached.
    Detaches(Fault),
    /// The lease is not renewed, because the last dump of this node's addresses is too old.
    Withheld,
    /// The program of the interface is not attached any more: another process has removed it.
    Lost(InterfaceName),
    /// A program answers on the interface.
    Attached(InterfaceName, Hook),
    /// No program can be attached to the interface, for this reason.
    NotAttached(InterfaceName, Fault),
    /// Old programs or maps cannot be removed.
    NotSettled(Fault),
}

/// The state of an interface that is served.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum State {
    /// Not attached yet.
    Pending,
    /// A program is attached.
    Attached(Hook),
    /// No program is wanted.
    Unwanted,
    /// No program could be attached, for this reason.
    Failed(Fault),
}
