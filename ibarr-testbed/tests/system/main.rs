// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Real daemons in real namespaces. Needs root. Every test has a machine of its own (see
//! [`machine::Machine`]), so tests do not see each other or other programs.

#![deny(unsafe_code)]

mod acm;
mod asking;
mod bench;
mod burst;
mod calls;
mod control;
mod demo;
mod doctor;
mod ip2gid;
mod lab;
mod machine;
mod mixed;
mod nudge;
mod responder;
mod rtnetlink;
mod standin;
mod umad;

#[path = "../opensm/daemon.rs"]
#[expect(dead_code, reason = "the tests with OpenSM use the rest")]
mod daemon;

#[path = "../bpf/frame.rs"]
#[expect(dead_code, reason = "the tests of the programs use the rest")]
mod frame;

#[path = "../../src/vm/sys/tun.rs"]
#[expect(unsafe_code, reason = "the type of a TUN device has no safe wrapper")]
mod tun;
