// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The programs by name. Their code is in the files beside this one, so that the bench can use it.

use aya_ebpf::macros::{classifier, socket_filter, xdp};
use aya_ebpf::programs::{SkBuffContext, TcContext, XdpContext};
use ibarr_common::map::Program;

use crate::{guard, log, tc};

#[classifier]
pub(crate) fn ip2gid_tc(ctx: TcContext) -> i32 {
    let action = tc::respond(&ctx);
    log::report(Program::Tc);
    action
}

#[xdp]
pub(crate) fn ip2gid_xdp(ctx: XdpContext) -> u32 {
    let action = crate::xdp::respond(&ctx);
    log::report(Program::Xdp);
    action
}

#[socket_filter]
pub(crate) fn ip2gid_guard(ctx: SkBuffContext) -> i64 {
    let kept = guard::judge(&ctx);
    log::report(Program::Guard);
    kept
}
