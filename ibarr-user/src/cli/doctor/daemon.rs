// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the daemon says of its health, and what is visible of it from outside: its rights, and whether subnet
//! administrators answer.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use ibarr_proto::{health, paths};
use nix::sys::utsname::uname;
use nix::unistd::{Uid, User};

use crate::bpf::charges_maps;
use crate::cli::status::head;
use crate::control::messages::{
    Check, CheckState, HealthReason, PathAnswer, PortStatus, Status, SubsystemHealth,
};
use crate::regular_file::text;

/// Examines the daemon. `proc` is where procfs is mounted.
pub(super) fn checks(status: &Status, proc: &Path) -> Vec<Check> {
    let Status { version, node, pid, uptime_s, .. } = status;
    let daemon = Check::ok("daemon", head(version, node.as_deref(), *pid, *uptime_s));
    let process = proc.join(pid.to_string());
    let health = status.health.iter().flat_map(health);
    let unknown = status.unknown.iter().map(|unknown| {
        Check::skipped(
            &unknown.subsystem,
            format!("{unknown} is not known yet: {}", unknown.awaited),
        )
    });
    let kernel = uname().ok().map(|kernel| kernel.release().to_string_lossy().into_owned());
    [daemon, rights(&process), limits(&process, kernel.as_deref())]
        .into_iter()
        .chain(health)
        .chain(unknown)
        .collect()
}

/// A check for each reason of a subsystem, or one that says that it works. Only the daemon decides what works.
fn health(of: &SubsystemHealth) -> Vec<Check> {
    let SubsystemHealth { subsystem, of, reasons, .. } = of;
    let what = of.as_ref().map_or(String::new(), |of| format!("{of}: "));
    if reasons.is_empty() {
        return vec![Check::ok(subsystem, format!("{what}works"))];
    }
    let check = |reason: &HealthReason| Check {
        check: subsystem.clone(),
        state: match reason.state {
            health::State::Ok => CheckState::Ok,
            health::State::Degraded => CheckState::Warn,
            health::State::Failed => CheckState::Fail,
        },
        found: format!("{what}{}", reason.why),
        remedy: Some(reason.remedy.clone()),
    };
    reasons.iter().map(check).collect()
}

/// The numbers of capabilities(7), and what does not work without each.
const RIGHTS: [(u32, &str, &str); 3] = [
    (12, "CAP_NET_ADMIN", "the kernel takes no answers from it"),
    (38, "CAP_PERFMON", "it loads no BPF programs"),
    (39, "CAP_BPF", "it loads no BPF programs"),
];

fn rights(process: &Path) -> Check {
    const CHECK: &str = "rights";
    let remedy = "start it by its unit (systemctl start ibarr), or as root";
    let status = text(&process.join("status")).unwrap_or_default();
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

/// The daemon's limits. Before Linux 5.11 the memory of BPF maps counts as locked.
fn limits(process: &Path, kernel: Option<&str>) -> Check {
    const CHECK: &str = "limits";
    let limits = text(&process.join("limits")).unwrap_or_default();
    let soft = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next().map(str::to_owned)
    };
    let (Some(files), Some(locked)) = (soft("Max open files"), soft("Max locked memory")) else {
        return Check::skipped(CHECK, "the daemon's limits are not visible here");
    };
    if kernel.is_some_and(charges_maps) && locked != "unlimited" {
        return Check::warn(
            CHECK,
            format!("locked memory: {locked} bytes, and this kernel counts BPF maps as such"),
            "LimitMEMLOCK=infinity in the unit, systemctl restart ibarr",
        );
    }
    Check::ok(CHECK, format!("open files: {files}; locked memory: {locked}"))
}

/// Whether the daemon's user may open the devices by which it asks subnet administrators. They are tried as that user.
pub(super) fn user(pid: u32, proc: &Path, dev: &Path) -> Check {
    const CHECK: &str = "user";
    let status = text(&proc.join(pid.to_string()).join("status")).unwrap_or_default();
    // Real, effective, saved, of file systems.
    let effective = |name: &str| -> Option<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    let (Some(uid), Some(gid)) = (effective("Uid:"), effective("Gid:")) else {
        return Check::skipped(CHECK, "the daemon's user is not visible here");
    };
    let name = User::from_uid(uid.into()).ok().flatten().map(|user| user.name);
    let name = name.unwrap_or_else(|| format!("user {uid}"));
    if !Uid::effective().is_root() {
        return Check::skipped(CHECK, format!("{name}; run this as root to try what it may do"));
    }
    let may_open = |device: &PathBuf| {
        let mut test = Command::new("test");
        test.arg("-r").arg(device).arg("-a").arg("-w").arg(device).uid(uid).gid(gid);
        test.status().is_ok_and(|status| status.success())
    };
    let devices = super::machine::entries(&dev.join("infiniband"));
    let is_wanted = |device: &PathBuf| {
        let name = device.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("umad") || name.starts_with("uverbs")
    };
    let (open, shut): (Vec<_>, Vec<_>) = devices.into_iter().filter(is_wanted).partition(may_open);
    let names = |devices: &[PathBuf]| {
        devices.iter().map(|device| device.display().to_string()).collect::<Vec<_>>().join(", ")
    };
    if shut.is_empty() {
        return Check::ok(
            CHECK,
            format!("{name} may open {} devices in {}", open.len(), dev.display()),
        );
    }
    Check::warn(
        CHECK,
        format!("{name} may not open {}", names(&shut)),
        "the udev rule of the package gives them to it: udevadm control --reload && udevadm trigger",
    )
}

/// Examines the answer of a port's subnet administrator to a question for the path from the port to itself. `None` if
/// it was not asked.
pub(super) fn answer(port: &PortStatus, answer: Option<&PathAnswer>) -> Check {
    const CHECK: &str = "sa-answer";
    let name = port.port;
    let remedy = "is a subnet manager running (sminfo)? Does its switch reach it (ibtracert)?";
    match answer {
        None => Check::skipped(CHECK, format!("{name}: not asked, because the port has no GID")),
        Some(PathAnswer { status: paths::Status::Found, ms, .. }) => {
            Check::ok(CHECK, format!("{name}: {:.2} ms", ms.millis()))
        }
        Some(answer) => Check::fail(CHECK, format!("{name}: {}", answer.status), remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::messages::Body;

    #[test]
    fn each_reason_of_the_daemon_is_a_check_with_its_remedy() {
        let reason = |cause: &str, state| HealthReason {
            cause: cause.to_owned(),
            state,
            since_s: std::time::Duration::ZERO.into(),
            why: format!("because of {cause}"),
            remedy: format!("mend {cause}"),
        };
        let mut sa = SubsystemHealth {
            subsystem: "sa".to_owned(),
            of: Some("mlx5_0/1".to_owned()),
            state: health::State::Failed,
            since_s: std::time::Duration::ZERO.into(),
            reasons: vec![
                reason("a", health::State::Failed),
                reason("b", health::State::Degraded),
                reason("c", health::State::Ok),
            ],
        };
        let states: Vec<_> = health(&sa).iter().map(|check| check.state).collect();
        assert_eq!(states, [CheckState::Fail, CheckState::Warn, CheckState::Ok]);
        let first = &health(&sa)[0];
        assert_eq!((first.check.as_str(), first.found.as_str()), ("sa", "mlx5_0/1: because of a"));
        assert_eq!(first.remedy.as_deref(), Some("mend a"));
        sa.reasons.clear();
        assert_eq!(health(&sa), [Check::ok("sa", "mlx5_0/1: works")]);
        // It is a document, too.
        let body = Body::Checks { checks: health(&sa) };
        assert!(serde_json::to_string(&body).unwrap().contains("\"state\":\"ok\""));
    }

    #[test]
    fn capability_that_the_daemon_lacks_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("7")).unwrap();
        let with = |bits: &str| {
            let status = format!("Name:\tibarr\nCapEff:\t{bits}\n");
            std::fs::write(root.join("7/status"), status).unwrap();
            rights(&root.join("7"))
        };
        assert_eq!(with("000000c000001000").state, CheckState::Ok);
        let without_bpf = with("0000000000001000");
        assert_eq!(without_bpf.state, CheckState::Warn);
        assert!(without_bpf.found.contains("CAP_PERFMON, CAP_BPF"), "{}", without_bpf.found);
        assert_eq!(with("0000000000000000").state, CheckState::Fail);
        assert_eq!(rights(&root.join("8")).state, CheckState::Skipped);
    }
    #[test]
    fn limits_of_the_daemon_are_shown() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(limits(dir.path(), None).state, CheckState::Skipped);
        let text = "Max open files            1024  4096  files\nMax locked memory         65536 65536 bytes\n";
        std::fs::write(dir.path().join("limits"), text).unwrap();
        assert_eq!(limits(dir.path(), None).found, "open files: 1024; locked memory: 65536");
    }
}
