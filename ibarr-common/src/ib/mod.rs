// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The InfiniBand specification's values: [`Gid`], [`Guid`], [`SubnetPrefix`], [`IpoibHwAddr`],
//! [`Qpn`].

mod gid;
mod ipoib;

pub use gid::{Gid, Guid, ParseGidError, SubnetPrefix};
pub use ipoib::{IpoibHwAddr, Qpn};
