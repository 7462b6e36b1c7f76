// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Where the daemon meets the kernel: the clock, UDP sockets with packet info, peer credentials.
//! System calls are made here and nowhere above.

pub mod clock;
pub mod fd;
pub mod peer;
pub mod udp;
