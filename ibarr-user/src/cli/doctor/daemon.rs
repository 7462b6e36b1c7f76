// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the daemon says of itself, and whether it has its rights.

use std::path::Path;

use super::machine::text;
use crate::control::doctor_messages::Check;
use crate::control::messages::{
    ListenerStatus, NudgeState, PathAnswer, PathStatus, PortStatus, Status,
};

/// Examines the daemon. `proc` is where procfs is mounted.
pub(super) fn checks(status: &Status, proc: &Path) -> Vec<Check> {
    vec![
        Check::ok("daemon", format!("version {}, pid {}", status.version, status.pid)),
        configuration(status),
        rights(status.pid, proc),
        addresses(status),
        kernel(status),
        responder(status),
        udp_port(status),
    ]
}

fn configuration(status: &Status) -> Check {
    const CHECK: &str = "configuration";
    match &status.failed_reload {
        None => Check::ok(CHECK, status.config.as_deref().unwrap_or("defaults")),
        Some(failed) => Check::warn(
            CHECK,
            format!("the old one is in force, because the file has mistakes: {}", failed.message),
            "correct the file (ibarr validate), then ibarr reload",
        ),
    }
}

/// The numbers of capabilities(7), and what does not work without each.
const RIGHTS: [(u32, &str, &str); 3] = [
    (12, "CAP_NET_ADMIN", "the kernel takes no answers from it"),
    (38, "CAP_PERFMON", "it loads no BPF programs"),
    (39, "CAP_BPF", "it loads no BPF programs"),
];

fn rights(pid: u32, proc: &Path) -> Check {
    const CHECK: &str = "rights";
    let remedy = "start it by its unit (systemctl start ibarr), or as root";
    let status = text(&proc.join(pid.to_string()).join("status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(effective) = line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok()) else {
        return Check::skipped(CHECK, "the daemon's capabilities are not visible here");
    };
    let missing: Vec<_> = RIGHTS.iter().filter(|(bit, ..)| effective & 1 << bit == 0).collect();
    let names = |rights: &[&(u32, &str, &str)]| {
        rights.iter().map(|(_, name, _)| *name).collect::<Vec<_>>().join(", ")
    };
    match missing.first() {
        None => Check::ok(CHECK, names(&RIGHTS.iter().collect::<Vec<_>>())),
        Some((bit, _, effect)) => {
            let found = format!("the daemon lacks {}: {effect}", names(&missing));
            if *bit == RIGHTS[0].0 {
                Check::fail(CHECK, found, remedy)
            } else {
                Check::warn(CHECK, found, remedy)
            }
        }
    }
}

fn addresses(status: &Status) -> Check {
    const CHECK: &str = "addresses";
    let served: Vec<_> = status.interfaces.iter().flat_map(|it| it.addresses.keys()).collect();
    // Other interfaces than IPoIB have no GID, and need none.
    let mut with_gid = status.interfaces.iter().filter(|it| it.gid.is_some());
    let refused = with_gid.find_map(|it| Some(format!("{}: {}", it.name, it.not_served.as_ref()?)));
    let remedy = "give the interface an address (ip address add), or write interfaces or [[static-gid]] in the \
                  configuration";
    match (served.len(), refused) {
        (0, None) => Check::fail(CHECK, "no interface is served", remedy),
        (0, Some(why)) => Check::fail(CHECK, format!("no address is answered; {why}"), remedy),
        (count, None) => Check::ok(CHECK, format!("{count} answered")),
        (count, Some(why)) => Check::warn(CHECK, format!("{count} answered; {why}"), remedy),
    }
}

fn kernel(status: &Status) -> Check {
    const CHECK: &str = "kernel";
    let kernel = &status.local_service;
    if let Some(why) = &kernel.blocked {
        return Check::fail(
            CHECK,
            format!("the kernel sends no requests to the daemon: {why}"),
            "run the daemon in the machine's first network namespace, and load ib_core",
        );
    }
    if let Some(ListenerStatus { pid, name }) = kernel.listeners.first() {
        let pid = pid.map_or(String::new(), |pid| format!(" (pid {pid})"));
        return Check::warn(
            CHECK,
            format!(
                "{name}{pid} receives the kernel's requests as well, and the first answer counts"
            ),
            "stop it: systemctl disable --now ibacm.service ibacm.socket",
        );
    }
    if kernel.nudges == NudgeState::Failing {
        return Check::warn(
            CHECK,
            "nudges fail, so rdma_resolve_addr waits for its whole time-out",
            "give the daemon CAP_NET_ADMIN; ibarr status says what the kernel refuses",
        );
    }
    Check::ok(CHECK, format!("sends requests to the daemon; {} wait", kernel.waiting))
}

fn responder(status: &Status) -> Check {
    const CHECK: &str = "responder";
    let remedy = "ibarr status says which peers the daemon answers itself, and why";
    if let Some(why) = &status.responder.blocked {
        return Check::warn(
            CHECK,
            format!("the daemon answers peers, not the kernel: {why}"),
            remedy,
        );
    }
    let served = || status.interfaces.iter().filter(|it| !it.addresses.is_empty());
    if let Some(without) = served().find(|it| it.responder.is_none()) {
        let why = without.in_user_space.as_deref().unwrap_or("no program is attached");
        let found = format!("the daemon answers peers on {}, not the kernel: {why}", without.name);
        return Check::warn(CHECK, found, remedy);
    }
    if let Some(why) = &status.responder.ends_early {
        return Check::warn(
            CHECK,
            format!("the kernel answers only while the daemon runs: {why}"),
            "mount the bpffs before the daemon starts (mount -t bpf bpf /sys/fs/bpf)",
        );
    }
    let names: Vec<_> = served().map(|it| it.name.as_str()).collect();
    if names.is_empty() {
        return Check::skipped(CHECK, "no interface has an address to answer for");
    }
    Check::ok(CHECK, format!("the kernel answers peers on {}", names.join(", ")))
}

fn udp_port(status: &Status) -> Check {
    const CHECK: &str = "udp-port";
    let blocked = status.servers.iter().find_map(|it| Some((it.family, it.blocked.as_ref()?)));
    match blocked {
        None => {
            let ports: Vec<_> =
                status.servers.iter().map(|it| format!("{} {}", it.family, it.port)).collect();
            Check::ok(CHECK, ports.join(", "))
        }
        Some((family, why)) => Check::fail(
            CHECK,
            format!("the daemon does not serve {family}: {why}"),
            "stop the other program, or unload rdma_rxe, which takes port 4791 for RoCE",
        ),
    }
}

/// The names of the checks about a subnet administrator.
pub(super) const SA: &str = "sa";

/// Examines the subnet administrator of a port, given its answer to a question for the path from the port to
/// itself.
pub(super) fn sa(port: &PortStatus, answer: Option<&PathAnswer>) -> Check {
    let name = port.port;
    let remedy = "is a subnet manager running (sminfo)? Does its switch reach it (ibtracert)?";
    if let Some(why) = &port.blocked {
        let remedy =
            "ibarr ports shows the port; under the unit, udev gives umad devices to the daemon";
        return Check::fail(SA, format!("{name}: it cannot be asked: {why}"), remedy);
    }
    match answer {
        Some(answer) if answer.status == PathStatus::Found && port.probing.is_none() => {
            let by = answer.source.map_or(String::new(), |source| format!(", {source}"));
            Check::ok(SA, format!("{name}: answers{by}, {:.2} ms", answer.ms.millis()))
        }
        Some(answer) if answer.status != PathStatus::Found => {
            Check::fail(SA, format!("{name}: {}", answer.status), remedy)
        }
        _ => match &port.probing {
            Some(probing) => Check::fail(SA, format!("{name}: {}", probing.because), remedy),
            None => Check::skipped(SA, format!("{name}: the port has no GID yet")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::doctor_messages::CheckState;
    use crate::control::messages::{Body, Response};

    /// The status of the golden documents, changed by a test.
    fn status(change: impl FnOnce(&mut Status)) -> Status {
        let golden = include_str!("../../../tests/golden/control.jsonl");
        let is_whole = |status: &Status| !status.interfaces.is_empty();
        let found = golden.lines().find_map(|line| {
            let response: Response = serde_json::from_str(line).ok()?;
            match response.body {
                Body::Status { status } if is_whole(&status) => Some(*status),
                _ => None,
            }
        });
        let mut status = found.unwrap();
        status.failed_reload = None;
        status.local_service.blocked = None;
        status.local_service.listeners.clear();
        status.local_service.nudges = NudgeState::On;
        status.responder.blocked = None;
        status.responder.ends_early = None;
        for interface in &mut status.interfaces {
            interface.not_served = None;
        }
        for server in &mut status.servers {
            server.blocked = None;
        }
        change(&mut status);
        status
    }

    #[test]
    fn each_fault_that_the_daemon_reports_is_found() {
        let golden = status(|_| {});
        let address =
            golden.interfaces.iter().find(|it| !it.addresses.is_empty()).cloned().unwrap();
        let state = |check: Check| (check.state, check.remedy.is_some());
        let (ok, warn, fail) =
            ((CheckState::Ok, false), (CheckState::Warn, true), (CheckState::Fail, true));

        assert_eq!(state(kernel(&golden)), ok);
        let refused = status(|it| it.local_service.blocked = Some("no CAP_NET_ADMIN".to_owned()));
        assert_eq!(state(kernel(&refused)), fail);
        let nudges = status(|it| it.local_service.nudges = NudgeState::Failing);
        assert_eq!(state(kernel(&nudges)), warn);
        let other = ListenerStatus { pid: Some(7), name: "ibacm".to_owned() };
        let other = kernel(&status(|it| it.local_service.listeners.push(other)));
        assert!(other.found.starts_with("ibacm (pid 7) receives"), "{}", other.found);
        assert_eq!(state(other), warn);

        assert_eq!(state(udp_port(&golden)), ok);
        let taken = status(|it| it.servers[0].blocked = Some("port taken by rxe".to_owned()));
        assert_eq!(state(udp_port(&taken)), fail);

        let one = |change: fn(&mut Status)| {
            status(|it| {
                it.interfaces = vec![address.clone()];
                change(it);
            })
        };
        assert_eq!(state(addresses(&one(|_| {}))), ok);
        assert_eq!(state(addresses(&one(|it| it.interfaces.clear()))), fail);
        assert_eq!(state(responder(&one(|it| it.interfaces[0].responder = None))), warn);
        let early = one(|it| {
            it.responder.ends_early = Some("private mounts".to_owned());
        });
        assert_eq!(state(responder(&early)), warn);
        let blocked = one(|it| it.responder.blocked = Some("no BTF".to_owned()));
        assert_eq!(state(responder(&blocked)), warn);
    }

    #[test]
    fn capability_that_the_daemon_lacks_is_named() {
        let root = std::env::temp_dir().join(format!("ibarr-doctor-rights-{}", std::process::id()));
        std::fs::create_dir_all(root.join("7")).unwrap();
        let with = |bits: &str| {
            let status = format!("Name:\tibarr\nCapEff:\t{bits}\n");
            std::fs::write(root.join("7/status"), status).unwrap();
            rights(7, &root)
        };
        assert_eq!(with("000000c000001000").state, CheckState::Ok);
        let without_bpf = with("0000000000001000");
        assert_eq!(without_bpf.state, CheckState::Warn);
        assert!(without_bpf.found.contains("CAP_PERFMON, CAP_BPF"), "{}", without_bpf.found);
        assert_eq!(with("0000000000000000").state, CheckState::Fail);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(rights(7, &root).state, CheckState::Skipped);
    }
}
