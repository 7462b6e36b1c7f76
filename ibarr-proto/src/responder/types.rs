// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

use alloc::string::String;

use super::maps::{Fault, Held, MapUpdate};
use super::work::{Arranged, Hook, Work};
use crate::local_view::InterfaceName;

/// What the driver reports.
#[derive(Clone, Debug)]
pub enum Input {
    /// The maps can be written from now on.
    Opened,
    /// The maps cannot be written any more.
    Closed,
    /// The result of the last [`Output::Map`].
    MapDone(Result<(), Fault>),
    /// The answer to [`Output::Keys`].
    Keys(Result<Held, Fault>),
    /// The outcome of the last work.
    Arranged(Arranged),
    /// Another variant of the programs is wanted: look at the attachments soon.
    Look,
}

/// An action for the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Write to a map, and report the result before the next output is taken.
    Map(MapUpdate),
    /// Read the keys of all maps, and report them before the next output is taken.
    Keys,
    /// Have programs attached and detached.
    Program(Work),
    /// Tell the administrator what has happened.
    Event(Event),
}

/// What an administrator may want to know.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// No program answers: the maps may be wrong.
    Revoked(Fault),
    /// The lease cannot be revoked either, so all programs will be detached.
    Detaches(Fault),
    /// The lease is not renewed, because the last dump of this node's addresses is too old.
    Withheld,
    /// The program of the interface is not attached any more: another process has removed it.
    Lost(InterfaceName),
    /// A program answers on the interface.
    Attached(InterfaceName, Hook),
    /// No program can be attached to the interface, for this reason.
    NotAttached(InterfaceName, String),
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
    /// No program could be attached, for this reason.
    Failed(String),
}
