// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The same requests to ibacm and to `ibarr`, and the replies, field by field. A difference without a reason is
//! a mistake.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::forms::{self, Form, Kind};
use super::reasons::{self, Difference, REASONS};
use crate::report::Report;
use crate::rig::{self, INTERFACES, Place, Process, eventually, spawn};

pub(super) const SOCKET: &str = "/run/ibacm-unix.sock";

/// What became of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Told {
    Reply(Vec<u8>),
    Closed,
    Silent,
}

/// Starts ibacm, which knows the addresses of all ports: it has no other way to learn those of nodes without
/// ibacm.
pub(super) fn ibacm() -> Result<Process> {
    let mut hosts = String::new();
    for (port, addresses) in [
        (0, &["node1"][..]),
        (4, &["10.1.0.2", "fd00:1::2", "node2"]),
        (1, &["10.2.0.1", "fd00:2::1", "node3"]),
    ] {
        let gid = INTERFACES[port].gid()?;
        hosts.extend(addresses.iter().map(|address| format!("{address} {gid}\n")));
    }
    let options = "log_file /results/ibacm-daemon.log\nlog_level 0\naddr_preload acm_hosts\n\
                   timeout 300\nretries 0\nresolve_depth 100\nsa_depth 100\nsend_depth 100\n";
    for (file, content) in [
        ("/etc/rdma/ibacm_opts.cfg", options),
        ("/etc/rdma/ibacm_hosts.data", &hosts),
        ("/etc/rdma/ibacm_addr.cfg", "node1 ibtun0 1 default\n"),
    ] {
        fs::write(file, content).context(file)?;
    }
    let ibacm = spawn("ibacm", Place::Here, &["ibacm", "-P"])?;
    // Nothing but its own GID, so that it knows no path yet.
    let gid = INTERFACES[0].gid()?.to_string();
    eventually(|| rig::run(Place::Here, &["ib_acme", "-f", "g", "-d", &gid]))
        .with_context(|| ibacm.said().unwrap_or_default())?;
    Ok(ibacm)
}

/// The replies of whatever serves, to all forms.
pub(super) fn ask() -> Result<Vec<(Form, Told)>> {
    /// So many at once: requests for what does not exist take seconds.
    const AT_ONCE: usize = 40;
    let forms = forms::all()?;
    let mut told: Vec<Option<Told>> = forms.iter().map(|_| None).collect();
    let waiting: Vec<_> = numbers(&forms, Kind::Waits).collect();
    for some in waiting.chunks(AT_ONCE) {
        let clients = some.iter().map(|&number| send(&forms[number]));
        for (client, &number) in clients.collect::<Result<Vec<_>>>()?.into_iter().zip(some) {
            told[number] = Some(reply(client)?);
        }
    }
    for kind in [Kind::AtOnce, Kind::Wrong] {
        for number in numbers(&forms, kind) {
            told[number] = Some(reply(send(&forms[number])?)?);
        }
    }
    let told = told.into_iter().collect::<Option<Vec<_>>>().context("a form was not asked")?;
    Ok(forms.into_iter().zip(told).collect())
}

fn numbers(forms: &[Form], kind: Kind) -> impl Iterator<Item = usize> {
    let all = forms.iter().enumerate();
    all.filter(move |(_, form)| form.kind == kind).map(|(number, _)| number)
}

fn send(form: &Form) -> Result<UnixStream> {
    let mut stream = UnixStream::connect(SOCKET).context(SOCKET)?;
    // Half a message is never answered.
    let seconds = if form.kind == Kind::Wrong { 3 } else { 10 };
    stream.set_read_timeout(Some(Duration::from_secs(seconds)))?;
    stream.write_all(&form.bytes).with_context(|| form.what.clone())?;
    Ok(stream)
}

fn reply(mut stream: UnixStream) -> Result<Told> {
    let mut bytes = vec![0; 1 << 16];
    match stream.read(&mut bytes) {
        Ok(0) => Ok(Told::Closed),
        Ok(len) => {
            bytes.truncate(len);
            Ok(Told::Reply(bytes))
        }
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(Told::Closed),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Told::Silent),
        Err(error) => Err(error.into()),
    }
}

/// Compares, prints a table, and fails if a difference has no reason.
pub(super) fn compare(theirs: Vec<(Form, Told)>, ours: Vec<(Form, Told)>) -> Result<()> {
    let mut same = 0;
    let mut by_reason: BTreeMap<&str, Vec<Difference>> = BTreeMap::new();
    let all = theirs.len();
    for ((form, theirs), (_, ours)) in theirs.into_iter().zip(ours) {
        let found = differences(&form, &theirs, &ours);
        same += usize::from(found.is_empty());
        for difference in found {
            let reason = reasons::of(&difference).unwrap_or(NONE);
            by_reason.entry(reason).or_default().push(difference);
        }
    }
    Report::note(format_args!("{same} of {all} replies are the same"));
    for why in REASONS.iter().map(|reason| reason.why).chain([NONE]) {
        let differences = by_reason.get(why).map_or(&[][..], Vec::as_slice);
        Report::note(format_args!("{:4} fields differ: {why}", differences.len()));
        let shown = if why == NONE { usize::MAX } else { 1 };
        differences.iter().take(shown).for_each(|it| Report::note(format_args!("       {it}")));
    }
    let without = by_reason.get(NONE).map_or(0, Vec::len);
    ensure!(without == 0, "{without} differences have no reason");
    Ok(())
}

const NONE: &str = "NO REASON";

fn differences(form: &Form, theirs: &Told, ours: &Told) -> Vec<Difference> {
    let (theirs, ours) = (fields(theirs), fields(ours));
    let mut names: Vec<&String> = theirs.iter().chain(&ours).map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    let value = |fields: &[(String, String)], name: &String| {
        let found = fields.iter().find(|(has, _)| has == name);
        found.map_or_else(|| "-".to_owned(), |(_, value)| value.clone())
    };
    // A reply of another kind has other fields.
    let outcome = "outcome".to_owned();
    if value(&theirs, &outcome) != value(&ours, &outcome) {
        names = vec![&outcome];
    }
    let differ = names.into_iter().filter_map(|name| {
        let (theirs, ours) = (value(&theirs, name), value(&ours, name));
        (theirs != ours).then(|| Difference {
            what: form.what.clone(),
            field: name.clone(),
            theirs,
            ours,
        })
    });
    differ.collect()
}

/// Fields of a path record: names and lengths in bytes.
const PATH: [(&str, usize); 14] = [
    ("service id", 8),
    ("dgid", 16),
    ("sgid", 16),
    ("dlid", 2),
    ("slid", 2),
    ("flow label and hop limit", 4),
    ("tclass", 1),
    ("reversible and numb path", 1),
    ("pkey", 2),
    ("qos class and sl", 2),
    ("mtu", 1),
    ("rate", 1),
    ("life", 1),
    ("preference and reserved", 7),
];

/// Names and values of all fields of a reply. The values of counters are left out.
fn fields(told: &Told) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    let mut add = |name: String, value: String| fields.push((name, value));
    let bytes = match told {
        Told::Closed => {
            add("outcome".to_owned(), "closed".to_owned());
            return fields;
        }
        Told::Silent => {
            add("outcome".to_owned(), "silence".to_owned());
            return fields;
        }
        Told::Reply(bytes) => bytes,
    };
    let (header, rest) = bytes.split_at(bytes.len().min(16));
    let at = |at: usize, len: usize| hex(header.get(at..at + len).unwrap_or_default());
    add("outcome".to_owned(), format!("status {}", at(2, 1)));
    for (name, start, len) in
        [("version", 0, 1), ("opcode", 1, 1), ("data", 3, 3), ("length", 6, 2), ("tid", 8, 8)]
    {
        add(name.to_owned(), at(start, len));
    }
    match header.get(1).map(|opcode| opcode & 0xf) {
        Some(1) => {
            for (number, record) in rest.chunks(72).enumerate() {
                let mut field = |name: &str, start: usize, len: usize| {
                    let value = record.get(start..start + len).unwrap_or_default();
                    add(format!("record {number}: {name}"), hex(value));
                };
                field("flags", 0, 4);
                field("type", 4, 2);
                field("reserved", 6, 2);
                if record.get(4) == Some(&0x10) {
                    let mut start = 8;
                    for (name, len) in PATH {
                        field(name, start, len);
                        start += len;
                    }
                } else {
                    field("address", 8, 64);
                }
            }
        }
        Some(3) if !rest.is_empty() => {
            let text = |bytes: &[u8]| {
                let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
                String::from_utf8_lossy(text).into_owned()
            };
            let part = |start: usize, len: usize| rest.get(start..start + len).unwrap_or_default();
            for (name, start, len) in [
                ("device", 0, 8),
                ("port", 8, 1),
                ("ports", 9, 1),
                ("reserved", 10, 2),
                ("pkey", 12, 2),
                ("addresses", 14, 2),
            ] {
                add(name.to_owned(), hex(part(start, len)));
            }
            add("provider".to_owned(), text(part(16, 64)));
            let names: Vec<_> =
                part(80, rest.len().saturating_sub(80)).chunks(64).map(text).collect();
            add("names".to_owned(), names.join(" "));
        }
        _ => {}
    }
    fields
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        // A String takes whatever is written.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
