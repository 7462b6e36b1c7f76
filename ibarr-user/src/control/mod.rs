// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The control socket, by which the command line asks the daemon.
//!
//! A request is one line of JSON, and so is its answer; a connection may carry many, one after the
//! other. Any user on the machine may read; changes and traces need root, the daemon's own user or
//! group [`GROUP`]. The documents are in [`messages`].

pub(crate) mod access;
mod answers;
pub mod client;
mod commands;
pub mod messages;
pub(crate) mod places;
pub(crate) mod run_dir;
pub(crate) mod server;
mod status;
mod values;

use std::path::{Path, PathBuf};

/// Group whose members may reload, flush and trace.
pub const GROUP: &str = "ibarr";

/// Path of the control socket in `run_dir`.
pub fn socket_path(run_dir: &Path) -> PathBuf {
    run_dir.join("control.sock")
}
