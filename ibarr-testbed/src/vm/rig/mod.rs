// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The rig of the software InfiniBand, and `ibarr` and its callers on it.

mod caller;
mod ibarr;
mod manager;
mod nudges;
mod query;
mod routed;
mod scheme;
mod who;

use anyhow::{Result, bail};
use ibarr_common::ib::IpoibHwAddr;
use ibarr_testbed::lab::netns;
pub(crate) use ibtun_guest::rig::*;

pub(crate) use self::caller::Caller;
pub(crate) use self::ibarr::{Ibarr, bpf_dir};
pub(crate) use self::manager::{Manager, put};
pub(crate) use self::nudges::survive_nudges;
pub(crate) use self::query::query;
pub(crate) use self::routed::Routed;
pub(crate) use self::scheme::{Scheme, flid, router_guids, router_lids, take_alias};
pub(crate) use self::who::Who;

/// Does `work` at a place. Sockets that it makes stay there.
pub(crate) fn inside<T: Send>(place: Place, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    match place {
        Place::Here => work(),
        Place::Netns(name) => netns::inside(name, work),
        Place::Other => bail!("the other guest runs programs only"),
    }
}

/// The hardware address of an IPoIB interface, which has its GID.
pub(crate) fn hw_address(place: Place, name: &str) -> Result<IpoibHwAddr> {
    let address = run(place, &["busybox", "cat", &format!("/sys/class/net/{name}/address")])?;
    Ok(address.trim().parse()?)
}
