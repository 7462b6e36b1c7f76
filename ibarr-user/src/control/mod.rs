// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The control socket: how the command line asks the daemon.
//!
//! A request is one line of JSON, and so is its answer; a connection may carry many, one after the
//! other. Anyone on the machine may read; what changes something needs root, the daemon's own user
//! or group [`GROUP`]. See [`messages`] for the documents.

pub mod access;
pub mod client;
pub mod messages;
mod path_messages;
pub mod places;
pub mod run_dir;
pub mod server;

use std::path::{Path, PathBuf};

/// Members may reload and flush.
pub const GROUP: &str = "ibarr";

/// Where the daemon of `run_dir` listens.
pub fn socket_path(run_dir: &Path) -> PathBuf {
    run_dir.join("control.sock")
}
