// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The answers that the kernel gets, compared with what `saquery` gets from OpenSM.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use ibarr_common::ib::{Gid, PKey};
use ibarr_common::wire::ls::{PathUse, ResolvePath};
use ibarr_sim::kernel::{PathOutcome, Reason};

use crate::daemon::{Record, request};
use crate::rig::Rig;

/// A switch, three hosts, and a router that leads to no other subnet.
const TOPOLOGY: &str = "Switch 8 \"S1\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n[3] \"H3\"[1]\n[4] \"R1\"[1]\n\n\
    Ca 1 \"H1\"\n\nCa 1 \"H2\"\n\nCa 1 \"H3\"\n\nRt 1 \"R1\"\n";

/// The subnet has floating LID 1. The destination in another subnet has floating LID 0x22.
const PREFIX: &str = "subnet_prefix 0xfec0000000010001\n";

fn gid(text: &str) -> Gid {
    text.parse().unwrap()
}

fn own() -> Gid {
    gid("fec0:0:1:1::10:5")
}

const LOCAL: &str = "fec0:0:1:1::10:1";
const FOREIGN: &str = "fec0:0:22:2::beef:1";
const UNKNOWN: &str = "fec0:0:1:1::dead";

/// A record as `saquery` prints it.
fn printed(record: &Record) -> BTreeMap<String, String> {
    let octets = &record.octets;
    let gid = |at: usize| {
        let octets: [u8; 16] = octets[at..at + 16].try_into().unwrap();
        Ipv6Addr::from(octets).to_string()
    };
    let hex = |number: u32| format!("0x{number:X}");
    let two = |at: usize| u32::from(record.lid(at));
    let one = |at: usize| hex(octets[at].into());
    [
        ("dgid", gid(8)),
        ("sgid", gid(24)),
        ("dlid", two(40).to_string()),
        ("slid", two(42).to_string()),
        ("hop_flow_raw", hex(u32::from_be_bytes(record.word(44)))),
        ("tclass", one(48)),
        ("num_path_revers", one(49)),
        ("pkey", hex(two(50))),
        ("qos_class", hex(two(52) >> 4)),
        ("sl", hex(two(52) & 0xf)),
        ("mtu", one(54)),
        ("rate", one(55)),
        ("pkt_life", one(56)),
        ("preference", one(57)),
        ("resv2", format!("0x{}", "0".repeat(12))),
        ("service_id", format!("0x{}", "0".repeat(16))),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

#[test]
fn the_kernel_gets_what_saquery_gets() {
    let rig = Rig::new(TOPOLOGY);
    let routes = rig.file("routes", "* *\n");
    let partitions = rig.file(
        "partitions",
        "Default=0x7fff : ALL=full;\nP1=0x0001 : 0x100001=full, 0x100005=full;\n",
    );
    let config =
        format!("{PREFIX}prefix_routes_file {routes}\npartition_config_file {partitions}\n");
    let manager = rig.manager("H1", &config);
    manager.until_says("SUBNET UP");
    let lids = manager.lids();
    let [peer, here, gateway] = [0x10_0001, 0x10_0005, 0x30_0001].map(|guid| lids[&guid]);
    let _port = rig.port("H3");
    let mut daemon = rig.daemon("");
    let pkey = |pkey: u16| PKey::new(pkey).unwrap();

    let said = rig.saquery("H3", (own(), gid(LOCAL)), &["--pkey", "0xffff"]).unwrap();
    let (outcome, records) = daemon.resolve(request(own(), gid(LOCAL), 1));
    assert_eq!(outcome, PathOutcome::Resolved(vec![0x2b]));
    assert_eq!(printed(&records[0]), said);
    assert_eq!(records[0].brief(), (0x2b, peer, here, 0, 0x80));

    // By the default prefix. The SA writes its own one into the record, which the kernel has not asked for.
    let default = gid("fe80::10:1");
    assert_eq!(rig.saquery("H3", (own(), default), &["--pkey", "0xffff"]), Some(said));
    let (outcome, _) = daemon.resolve(request(own(), default, 1));
    assert_eq!(outcome, PathOutcome::AsksSa(Reason::Told));

    // In another subnet, by a router. If both ends have floating LIDs there are three records, of
    // which the first is the SA's.
    let said = rig.saquery("H3", (own(), gid(FOREIGN)), &["--pkey", "0xffff"]).unwrap();
    let (outcome, records) = daemon.resolve(request(own(), gid(FOREIGN), 1));
    assert_eq!(outcome, PathOutcome::Resolved(vec![0x2b, 0x12, 0x0a]));
    assert_eq!(printed(&records[0]), said);
    let brief: Vec<_> = records.iter().map(Record::brief).collect();
    assert_eq!(
        brief,
        [(0x2b, gateway, here, 255, 0x80), (0x12, 1, 0xffff, 255, 0), (0x0a, 0x22, here, 255, 0)]
    );
    let one = ResolvePath { path_use: PathUse::Unidirectional, ..request(own(), gid(FOREIGN), 1) };
    let (outcome, records) = daemon.resolve(one);
    assert_eq!(outcome, PathOutcome::Resolved(vec![0x0a]));
    assert_eq!(records[0].brief(), (0x0a, gateway, here, 255, 0x80));

    // An unknown GID: the kernel is told that there is no path, and does not ask the SA itself.
    assert_eq!(rig.saquery("H3", (own(), gid(UNKNOWN)), &[]), None);
    let (outcome, _) = daemon.resolve(request(own(), gid(UNKNOWN), 1));
    assert_eq!(outcome, PathOutcome::Failed);

    // In a partition with H1 and without H2.
    let in_p1 = |dgid| ResolvePath { pkey: Some(pkey(0x8001)), ..request(own(), dgid, 1) };
    let said = rig.saquery("H3", (own(), gid(LOCAL)), &["--pkey", "0x8001"]).unwrap();
    let (_, records) = daemon.resolve(in_p1(gid(LOCAL)));
    assert_eq!(printed(&records[0]), said);
    assert_eq!(records[0].lid(50), 0x8001);
    let stranger = gid("fec0:0:1:1::10:3");
    assert_eq!(rig.saquery("H3", (own(), stranger), &["--pkey", "0x8001"]), None);
    assert_eq!(daemon.resolve(in_p1(stranger)).0, PathOutcome::Failed);

    // A request for an unknown device is left to the kernel at once.
    let device = "mlx5_01".parse().unwrap();
    let (outcome, _) = daemon.resolve(ResolvePath { device, ..request(own(), gid(LOCAL), 1) });
    assert_eq!(outcome, PathOutcome::AsksSa(Reason::Told));

    // The counters of all this.
    let counted = |name: &str| daemon.count(name);
    assert_eq!(counted("paths.found-sa"), 4);
    assert_eq!(counted("paths.no-record-sa"), 2);
    assert_eq!(counted("paths.other-gids"), 1);
    assert_eq!(counted("local-service.paths-answered"), 4);
    assert_eq!(counted("local-service.paths-none"), 2);
    assert_eq!(counted("local-service.paths-unknown"), 1);
    // There were seven questions about paths, and one about the SA itself.
    assert_eq!(counted("sa.questions"), 8);
    let queries = counted("sa.queries") + counted("sa.resends");
    let requests = daemon.ask(&["status"]).unwrap()["status"]["path-requests"].clone();
    let told = serde_json::json!({
        "sa-queries": queries, "avoided": 0, "left-to-kernel": { "refused": 1, "unknown-port": 1 }
    });
    assert_eq!(requests, told);
}

/// rdma_cm puts the port number into the service id.
#[test]
fn service_is_asked_for_only_if_opensm_supports_services() {
    for has_qos in [false, true] {
        let rig = Rig::new(TOPOLOGY);
        let policy = rig.file(
            "policy",
            "qos-ulps\n    any, service-id 0x1000-0x1fff : 3\n    default : 0\nend-qos-ulps\n",
        );
        let qos = format!("qos TRUE\nqos_policy_file {policy}\n");
        let qos = if has_qos { qos.as_str() } else { "" };
        let manager = rig.manager("H1", &format!("{PREFIX}{qos}"));
        manager.until_says("SUBNET UP");
        let _port = rig.port("H3");
        let mut daemon = rig.daemon("");
        daemon.until(|daemon| (daemon.count("sa.answered") == 1).then_some(()));
        assert_eq!(daemon.port()["qos"], has_qos);
        let sl = |service: u64, daemon: &mut crate::daemon::Daemon| {
            let (_, records) = daemon.resolve(request(own(), gid(LOCAL), service));
            records[0].lid(52) & 0xf
        };
        let [served, other] = [0x1000, 0x9000].map(|first| {
            let services = first..first + 20;
            services.map(|service| sl(service, &mut daemon)).collect::<Vec<_>>()
        });
        assert_eq!(served, [if has_qos { 3 } else { 0 }; 20]);
        assert_eq!(other, [0; 20]);
        let questions = if has_qos { 40 } else { 1 };
        assert_eq!(daemon.count("sa.questions"), 1 + questions);
        assert_eq!(daemon.count("paths.found-cache"), 40 - questions);
    }
}
