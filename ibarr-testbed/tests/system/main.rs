// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Real daemons in real namespaces. Needs root; every test has a machine of its own (see
//! [`machine::Machine`]), so they neither see each other nor what else runs here.

#![deny(unsafe_code)]

mod bench;
mod burst;
mod control;
mod demo;
mod ip2gid;
mod lab;
mod machine;
mod nudge;
mod responder;
mod rtnetlink;
mod standin;
mod umad;

#[path = "../opensm/daemon.rs"]
#[expect(dead_code, reason = "the tests with OpenSM need more of it")]
mod daemon;

#[path = "../bpf/frame.rs"]
#[expect(dead_code, reason = "the tests of the programs need more of it")]
mod frame;

#[path = "../../src/vm/sys/tun.rs"]
#[expect(unsafe_code, reason = "nothing safe sets the type of a TUN device")]
mod tun;
