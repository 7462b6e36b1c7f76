// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The guest's side of `cargo xtask vm`, as far as all its programs need it. As the first process, such a program
//! sets up the virtual machine and runs a command. That command is usually the program again, with a scenario's
//! name.

#![forbid(unsafe_code)]
#![expect(clippy::missing_errors_doc, reason = "an error says which claim does not hold, and why")]

pub mod init;
pub mod kernel_log;
pub mod page;
pub mod report;
pub mod rig;

/// Path of the guest's own program.
pub const OWN: &str = "/bin/guest";
