// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The state of the daemon in one line, for `systemctl status`.

use ibarr_proto::health;

use crate::control::messages::{FailedReload, PortStatus, Seconds, Status, SubsystemHealth};

/// The longest list of names.
const NAMES: usize = 4;

/// The worst of its health, then ports, subnet administrators, paths, and the answers of the kernel and of the daemon.
pub(super) fn of(status: &Status) -> String {
    let mut parts = Vec::new();
    parts.extend(worst(&status.health));
    let unknown = names(status.unknown.iter().map(ToString::to_string));
    parts.extend(unknown.map(|names| format!("not known yet: {names}")));
    let active: Vec<_> = status.ports.iter().filter(|port| port.active).collect();
    if !active.is_empty() {
        parts.push(count(active.len(), "port"));
        let is_silent = |port: &&PortStatus| port.blocked.is_some() || port.probing.is_some();
        let silent = active.iter().copied().filter(is_silent).map(|port| port.port.to_string());
        parts.push(names(silent).map_or("SA answers".to_owned(), |of| format!("no SA on {of}")));
        parts.push(count(status.cached_paths, "path"));
    }
    let served = || status.interfaces.iter().filter(|interface| !interface.addresses.is_empty());
    let (kernel, daemon): (Vec<_>, Vec<_>) =
        served().partition(|interface| interface.responder.is_some());
    for (who, interfaces) in [("kernel", kernel), ("daemon", daemon)] {
        let interfaces = interfaces.into_iter().map(|interface| interface.name.clone());
        parts.extend(names(interfaces).map(|on| format!("{who} answers on {on}")));
    }
    if served().next().is_none() {
        parts.push("no address is answered".to_owned());
    }
    match (&status.failed_reload, status.reloaded_ago_s) {
        (Some(FailedReload { ago_s, message }), _) => {
            parts.push(format!("reload refused {}: {}", ago(*ago_s), message.replace('\n', "; ")));
        }
        (None, Some(ago_s)) => parts.push(format!("reloaded {}", ago(ago_s))),
        (None, None) => {}
    }
    if !status.warnings.is_empty() {
        parts.push(format!("{} (ibarr status)", count(status.warnings.len(), "warning")));
    }
    parts.join(", ")
}

fn ago(time: Seconds) -> String {
    format!("{} ago", humantime::format_duration(time.into()))
}

/// What is not ok, such as `degraded: sa mlx5_0/1 (sa-silent)`.
fn worst(health: &[SubsystemHealth]) -> Option<String> {
    let state = health.iter().map(|subsystem| subsystem.state).max()?;
    let bad = health.iter().filter(|one| one.state == state && state > health::State::Ok);
    let bad = bad.map(|subsystem| {
        let cause = subsystem.reasons.iter().max_by_key(|reason| reason.state);
        let cause = cause.map_or(String::new(), |reason| format!(" ({})", reason.cause));
        format!("{subsystem}{cause}")
    });
    names(bad).map(|bad| format!("{state}: {bad}"))
}

fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// The first names of a list, and how many more there are; `None` if there is none.
fn names(names: impl Iterator<Item = String>) -> Option<String> {
    let mut names: Vec<_> = names.collect();
    let more = names.len().saturating_sub(NAMES);
    names.truncate(NAMES);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    (!names.is_empty()).then(|| names.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A daemon with two ports, of which the second is as `port` says, and what else `fields` says.
    fn said(port: &Value, fields: &Value) -> String {
        let golden = include_str!("../../tests/golden/control.jsonl");
        let line = golden.lines().find(|line| line.contains("\"failed-reload\"")).unwrap();
        let mut document: Value = serde_json::from_str(line).unwrap();
        let status = document["status"].as_object_mut().unwrap();
        for name in ["failed-reload", "reloaded-ago-s", "warnings"] {
            status.remove(name);
        }
        let mut ports = vec![status["ports"][0].clone(); 2];
        ports[0]["active"] = true.into();
        merge(&mut ports[1], &json!({ "port": "mlx5_1/1", "active": true }));
        merge(&mut ports[1], port);
        let interface = |name: &str, ip: &str| {
            let addresses = json!({ ip: "fe80::1" });
            json!({ "name": name, "ifindex": 7, "responder": "tcx", "addresses": addresses })
        };
        let mut status = document["status"].clone();
        merge(
            &mut status,
            &json!({
                "ports": ports,
                "cached-paths": 812,
                "interfaces": [interface("ib0", "10.2.0.5"), interface("ib1", "10.2.0.6")],
                "warnings": [],
            }),
        );
        merge(&mut status, fields);
        of(&serde_json::from_value(status).unwrap())
    }

    fn merge(into: &mut Value, fields: &Value) {
        for (name, value) in fields.as_object().unwrap() {
            into[name] = value.clone();
        }
    }

    #[test]
    fn state_is_one_line_of_plain_words() {
        let (none, all) = (json!({}), "2 ports, SA answers, 812 paths, kernel answers on ib0, ib1");
        assert_eq!(said(&none, &none), all);
        assert_eq!(
            said(&none, &json!({ "reloaded-ago-s": 61 })),
            format!("{all}, reloaded 1m 1s ago")
        );
        let refused =
            json!({ "failed-reload": { "ago-s": 7, "message": "a.toml:1:1: x\nb.toml:2:1: y" } });
        let why = "reload refused 7s ago: a.toml:1:1: x; b.toml:2:1: y";
        assert_eq!(said(&none, &refused), format!("{all}, {why}"));
        let silent =
            said(&json!({ "blocked": "no umad device" }), &json!({ "warnings": ["a: b"] }));
        let what = "2 ports, no SA on mlx5_1/1, 812 paths, kernel answers on ib0, ib1, 1 warning (ibarr status)";
        assert_eq!(silent, what);
        let nothing = said(&json!({ "active": false }), &json!({ "interfaces": [] }));
        assert_eq!(nothing, "1 port, SA answers, 812 paths, no address is answered");
    }

    #[test]
    fn long_list_of_names_is_cut() {
        let all = ["ib0", "ib1", "ib2", "ib3", "ib4", "ib5"].map(str::to_owned);
        assert_eq!(names([].into_iter()), None);
        assert_eq!(names(all[..2].iter().cloned()).as_deref(), Some("ib0, ib1"));
        assert_eq!(names(all.into_iter()).as_deref(), Some("ib0, ib1, ib2, ib3, 2 more"));
    }
}
