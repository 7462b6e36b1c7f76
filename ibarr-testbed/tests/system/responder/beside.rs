// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Other programs before and behind ours see the same packets as without it, except for the queries that
//! it answers.

use std::mem::ManuallyDrop;
use std::net::UdpSocket;
use std::time::Duration;

use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle};
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use aya::sys::{Stats, enable_stats};
use aya::{Ebpf, EbpfLoader};
use ibarr_testbed::lab::netns;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::rig::*;

#[test]
fn programs_before_and_behind_see_what_they_should() {
    for (responder, daemon_first) in
        [("tc", false), ("tc", true), ("clsact", false), ("clsact", true)]
    {
        let mut rig = Rig::new();
        if responder == "tc" && !has_tcx() {
            // Then "tc" is the same as "clsact".
            continue;
        }
        let _counting = enable_stats(Stats::RunTime).unwrap();
        let config = format!("responder = \"{responder}\"");
        if daemon_first {
            rig.start(&config);
        }
        let attach = |before| match (responder, before) {
            ("tc", before) => Theirs::tcx(before),
            // Filters run in the order of their priorities.
            (_, true) => Theirs::filter(1),
            (_, false) => Theirs::filter(65_000),
        };
        if responder == "clsact" && !daemon_first {
            tool("tc", &format!("-netns {NODE} qdisc add dev eth0 clsact"));
        }
        let before = attach(true);
        let behind = if daemon_first { Some(attach(false)) } else { None };
        if !daemon_first {
            rig.start(&config);
        }
        // On tcx the daemon attaches last, so a program behind it must be attached after it.
        let behind = behind.unwrap_or_else(|| attach(false));
        socket(V4).ask_all(1);
        rig.quiet();

        // Read again until no packet has come during the read.
        let seen = || loop {
            let seen = [&before, &behind].map(Theirs::runs);
            if before.runs() == seen[0] {
                break seen;
            }
        };
        let was = seen();
        socket(V4).ask_all(100);
        // A packet that is no query passes all three programs, and arrives.
        let [from, to] = [(PEER, "0.0.0.0:0"), (NODE, "10.7.0.1:9")].map(|(namespace, address)| {
            netns::inside(namespace, || Ok(UdpSocket::bind(address)?)).unwrap()
        });
        to.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        for _ in 0..50 {
            from.send_to(b"discard", "10.7.0.1:9").unwrap();
            to.recv(&mut [0; 8]).unwrap();
        }
        let [seen_before, seen_behind] = seen();
        let (seen_before, seen_behind) = (seen_before - was[0], seen_behind - was[1]);
        // There may also be some packets of neighbour discovery.
        assert!((150..160).contains(&seen_before), "{responder}: {seen_before}");
        assert_eq!(seen_before - seen_behind, 100, "{responder}, {daemon_first}");

        rig.end(Signal::SIGTERM);
        assert!(rig.detach().status.success());
        let was = seen();
        assert!(!socket(V4).ask(Duration::from_millis(50)));
        assert!(
            seen().iter().zip(was).all(|(now, was)| *now > was),
            "the other programs are still attached"
        );
    }
}

/// Another program, not ibarr's, at ingress of the node's eth0. It does nothing.
pub(super) struct Theirs {
    ebpf: Ebpf,
    _link: ManuallyDrop<SchedClassifierLink>,
}

impl Theirs {
    /// Attached by a tcx link, as the first or the last.
    pub(super) fn tcx(first: bool) -> Self {
        let order = if first { LinkOrder::first() } else { LinkOrder::last() };
        Self::attach(TcAttachOptions::TcxOrder(order))
    }

    /// Attached by a filter.
    pub(super) fn filter(priority: u16) -> Self {
        Self::filter_at(priority, 1)
    }

    pub(super) fn filter_at(priority: u16, handle: u32) -> Self {
        let handle = TcHandle::from(handle);
        Self::attach(TcAttachOptions::Netlink(NlOptions { priority, handle, classid: None }))
    }

    fn attach(options: TcAttachOptions) -> Self {
        let mut ebpf = EbpfLoader::new().load(ibarr_ebpf::BENCH_OBJECT).unwrap();
        let link = netns::inside(NODE, || {
            let program = Self::program(&mut ebpf);
            program.load()?;
            let link = program.attach_with_options("eth0", TcAttachType::Ingress, options)?;
            Ok(program.take_link(link)?)
        });
        Self { ebpf, _link: ManuallyDrop::new(link.unwrap()) }
    }

    fn program(ebpf: &mut Ebpf) -> &mut SchedClassifier {
        ebpf.program_mut("empty_tc").unwrap().try_into().unwrap()
    }

    /// Number of its runs.
    fn runs(&self) -> u64 {
        let id = self.ebpf.program("empty_tc").unwrap().info().unwrap().id();
        let program: Value =
            serde_json::from_str(&tool("bpftool", &format!("--json prog show id {id}"))).unwrap();
        program["run_cnt"].as_u64().unwrap_or_default()
    }
}
