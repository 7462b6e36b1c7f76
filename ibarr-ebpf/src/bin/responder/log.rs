// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Stands in for the module that reports packets, in programs that report none.

use ibarr_common::map::{Program, Reason};

/// Whether [`packet`] does anything.
pub(crate) const IS_ON: bool = false;

/// The programs of [`logging`](../../logging/log.rs) report the packet; these do not.
#[inline]
pub(crate) fn packet(_: Program, _: u32, _: [u8; 16], _: [u8; 16], _: Reason) {}

/// See [`packet`].
#[inline]
pub(crate) fn report(_: Program) {}
