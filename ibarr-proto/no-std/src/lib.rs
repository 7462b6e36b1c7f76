// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A crate with a panic handler of its own. If any dependency linked std, there would be two, and the compiler would
//! refuse it.

#![no_std]
#![forbid(unsafe_code)]
#![cfg(feature = "prove")]

use ibarr_common as _;
use ibarr_proto as _;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
