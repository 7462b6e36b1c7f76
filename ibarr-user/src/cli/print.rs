// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Prints documents for people. The first failed write to standard output decides the exit code
//! ([`end`]).

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write as _};
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use ibarr_common::ib::Lid;

use ibarr_proto::{paths, request};

use super::Exit;
use super::table::Table;
use super::times::Tally;
use crate::causes::escaped;
use crate::control::messages::{
    Answer, Body, CacheEntry, CachedPath, Elapsed, Failure, FleetSummary, KernelMaps, LastEvent,
    LogStatus, Millis, PathAnswer, PathHops, PathRequests, Pinged, PortAddress, PortStatus,
    Probing, Response, Status, Summary, TableGid, Times,
};

/// Why standard output failed.
static FAILURE: OnceLock<io::Error> = OnceLock::new();

/// Writes to standard output, unless that has failed before.
pub(super) fn write(bytes: &[u8]) {
    if FAILURE.get().is_none() {
        note(io::stdout().write_all(bytes));
    }
}

/// Keeps the first failure of standard output.
pub(super) fn note(written: io::Result<()>) {
    if let Err(error) = written {
        drop(FAILURE.set(error));
    }
}

/// Whether standard output has failed, so that further output is useless.
pub(super) fn has_failed() -> bool {
    FAILURE.get().is_some()
}

/// The exit code, given `exit` for the case that all output was written.
pub(super) fn end(exit: Exit) -> Exit {
    note(io::stdout().flush());
    match FAILURE.get() {
        None => exit,
        // Like other programs whose reader stops early (`| head`).
        Some(error) if error.kind() == ErrorKind::BrokenPipe => Exit::ReaderGone,
        Some(error) => {
            error_line(&format!("standard output cannot be written: {error}"));
            Exit::Output
        }
    }
}

/// Prints one line or more to standard output. Control characters are escaped, because processes
/// and files choose some of the names.
pub(super) fn line(text: &str) {
    write(format!("{}\n", lines(text)).as_bytes());
}

fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\n')
}

/// Prints rows below earlier ones.
pub(super) fn rows(table: &mut Table, rows: impl IntoIterator<Item = Vec<String>>) {
    write(lines(&table.text(rows)).as_bytes());
}

fn table(of: impl IntoIterator<Item = Vec<String>>) {
    rows(&mut Table::default(), of);
}

/// Prints the document on one line.
pub(super) fn json(response: &Response) {
    match serde_json::to_string(response) {
        Ok(json) => write(format!("{json}\n").as_bytes()),
        Err(error) => error_line(&format!("cannot write JSON: {error}")),
    }
}

/// Prints a message to standard error.
pub(super) fn error_line(message: &str) {
    drop(writeln!(io::stderr(), "ibarr: {}", lines(message)));
}

/// Says that a host name has other addresses than the one that counts.
pub(super) fn others(name: &str, ip: IpAddr, others: &[IpAddr]) {
    if !others.is_empty() {
        let others = others.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
        error_line(&format!(
            "{name}: {ip} is its first address; name another one, if you mean it: {others}"
        ));
    }
}

/// Prints lines to standard error as they are, except for control characters.
pub(super) fn error_text(text: &str) {
    drop(writeln!(io::stderr(), "{}", lines(text)));
}

/// Prints a document for people.
pub(super) fn body(body: &Body) {
    match body {
        Body::Answers { answers } => table(answers.iter().map(answer)),
        Body::Cache { entries, .. } if entries.is_empty() => line("nothing learned yet"),
        Body::Cache { entries, .. } => table(entries.iter().map(cache_entry)),
        Body::Path { path } => self::path(path),
        Body::Ports { ports } if ports.is_empty() => line("no InfiniBand port"),
        Body::Ports { ports } => ports.iter().for_each(port),
        Body::Paths { paths, .. } => table(paths.iter().flat_map(cached_path)),
        Body::Counters { counters } => {
            table(counters.iter().map(|(name, count)| vec![name.clone(), count.to_string()]));
        }
        Body::Descriptions { descriptions } => {
            table(descriptions.iter().map(|(name, text)| vec![name.clone(), text.clone()]));
        }
        // Their commands print them as they are made.
        Body::Answer { .. }
        | Body::Resolved { .. }
        | Body::UnknownName { .. }
        | Body::Summary { .. }
        | Body::Ping { .. }
        | Body::Top { .. }
        | Body::Tracing { .. }
        | Body::Event { .. }
        | Body::Traced { .. }
        | Body::Checks { .. }
        | Body::Gid { .. }
        | Body::Config { .. } => {}
        Body::Fleet { fleet } => line(&self::fleet(&fleet.summary)),
        Body::Metrics { metrics } => write(metrics.as_bytes()),
        Body::Kernel { kernel } => self::kernel(kernel),
        Body::Import { import } => write(import.config.as_bytes()),
        Body::Status { status } => details(status),
        Body::Log { log } => self::log(log),
        Body::Done { done } => line(done),
        Body::Error { error, .. } => error_line(&error.message),
    }
}

/// What to do about peers that refuse.
pub(super) fn refused(refused: &[String]) {
    if !refused.is_empty() {
        error_line(&format!(
            "no ibarr listens at {}, or a firewall rejects the query: start ibarr there (systemctl start \
             ibarr), or let UDP port 4791 through",
            refused.join(", ")
        ));
    }
}

/// Like `3 answers: 2 found, 1 timed-out; 0.95 / 1.02 / 1.40 / 1.40 ms (…), 3.1 s in all`.
pub(super) fn summary(tally: &Tally, summary: &Summary) -> String {
    let mut text = format!("{} answers: {}", tally.count(), tally.outcomes());
    for (count, what) in
        [(summary.mismatches, "with a mismatch"), (summary.unknown_names, "unknown names")]
    {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    end_of_summary(&mut text, summary.ms, summary.total_ms);
    text
}

fn end_of_summary(text: &mut String, times: Option<Times>, total: Elapsed) {
    if let Some(Times { min, median, p99, max }) = times {
        let [min, median, p99, max] = [min, median, p99, max].map(Elapsed::millis);
        let _ = write!(
            text,
            "; {min:.3} / {median:.3} / {p99:.3} / {max:.3} ms (min / median / 99th percentile / max)"
        );
    }
    let total = total.0.as_secs_f64();
    let _ = write!(text, "; {total:.2} s in all");
}

/// Like `4 nodes: 3 found (2 ibarr, 1 ipv4-only), 1 timed-out; 2 are well; 0.4 / 0.5 / 0.9 / 0.9 ms (…)`.
pub(super) fn fleet(summary: &FleetSummary) -> String {
    let words = |counts: &mut dyn Iterator<Item = String>| counts.collect::<Vec<_>>().join(", ");
    let speaks = words(&mut summary.speaks.iter().map(|(word, count)| format!("{count} {word}")));
    let answers = summary.answers.iter().map(|(status, count)| match status {
        request::Status::Found => format!("{count} found ({speaks})"),
        status => format!("{count} {status}"),
    });
    let counts =
        [(summary.mismatches, "with a mismatch"), (summary.unknown_names, "unknown names")];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts = counts.map(|(count, what)| format!("{count} {what}"));
    let mut text = format!("{} nodes: {}", summary.nodes, words(&mut answers.chain(counts)));
    let _ = write!(text, "; {} are well", summary.well);
    end_of_summary(&mut text, summary.ms, summary.total_ms);
    text
}

/// The summary of `ibarr ping`.
pub(super) fn pinged(name: &str, pinged: &Pinged) {
    let Pinged { asked, answered, lost_percent, .. } = pinged;
    let times = pinged.ms.map_or(String::new(), |Times { min, median, max, .. }| {
        let [min, median, max] = [min, median, max].map(Elapsed::millis);
        format!("; {min:.3} / {median:.3} / {max:.3} ms (min / median / max)")
    });
    line(&format!("{name}: {asked} asked, {answered} answered, {lost_percent:.0}% lost{times}"));
    for mismatch in &pinged.mismatches {
        line(&format!("    mismatch: {}", mismatch.message));
    }
}

pub(super) fn answer(answer: &Answer) -> Vec<String> {
    let gid = or(answer.gid, &answer.status.to_string());
    let source = or(answer.source, "");
    vec![answer.ip.to_string(), gid, source, format!("{:.2} ms", answer.ms.millis())]
}

fn log(log: &LogStatus) {
    let time = log.ends_in_ms.map_or(String::new(), |ms| format!(", for {}", seconds(ms)));
    line(&format!("{}{time}", log.level));
}

fn path(path: &PathAnswer) {
    let source = path.source.as_ref().map_or(String::new(), |source| format!("  {source}"));
    let refusal = path.refusal.as_ref().map_or(String::new(), |refusal| format!(": {refusal}"));
    let status = path.status;
    let chosen = path.chosen.map_or(String::new(), |chosen| format!(" ({})", reason(chosen)));
    line(&format!("{} to {} by {}{chosen}", path.sgid, path.dgid, path.port));
    line(&format!("    {status}{refusal}{source}  {:.2} ms", path.ms.millis()));
    let paths = path.hops.iter().chain(&path.others);
    paths.for_each(|hops| line(&format!("    {}", self::hops(hops))));
}

fn reason(chosen: paths::Choice) -> &'static str {
    match chosen {
        paths::Choice::Named => "as --port says",
        paths::Choice::HasSource => "it has the source GID",
        paths::Choice::Only => "the only port",
        paths::Choice::FirstWithSa => "the first whose subnet administrator can be asked",
        paths::Choice::First => "the first; no port's subnet administrator can be asked",
    }
}

/// A path on one line.
pub(super) fn path_outcome(path: &PathAnswer) -> String {
    let source = path.source.as_ref().map_or(String::new(), |source| format!(", {source}"));
    let outcome = match (&path.hops, &path.refusal) {
        (Some(hops), _) => self::hops(hops),
        (None, Some(refusal)) => format!("no path: {}: {refusal}", path.status),
        (None, None) => format!("no path: {}", path.status),
    };
    format!("{outcome}, by {}{source}  {:.2} ms", path.port, path.ms.millis())
}

pub(super) fn hops(hops: &PathHops) -> String {
    let mtu = match (hops.mtu, hops.mtu_code) {
        (Some(mtu), _) => format!(", MTU {mtu}"),
        (None, Some(code)) => format!(", MTU code {code}"),
        (None, None) => String::new(),
    };
    let rate = match (hops.gbit_s, hops.rate_code) {
        (Some(rate), _) => format!(", {rate} Gbit/s"),
        (None, Some(code)) => format!(", rate code {code}"),
        (None, None) => String::new(),
    };
    let router = match hops.hop_limit {
        0 | 1 => String::new(),
        limit => format!(", routed (hop limit {limit})"),
    };
    let one_way = if hops.reversible { "" } else { ", one way" };
    let PathHops { slid, dlid, sl, pkey, .. } = hops;
    format!("LID {slid} to {dlid}, SL {sl}, P_Key {pkey}{mtu}{rate}{router}{one_way}")
}

/// A row for each of its paths.
fn cached_path(path: &CachedPath) -> Vec<Vec<String>> {
    let doubted = if path.doubted { "in doubt" } else { "" };
    let expires = format!("expires in {}", seconds(path.expires_in_ms));
    let row = |hops: String| {
        let ends = [path.port.to_string(), path.sgid.to_string(), path.dgid.to_string()];
        [&ends[..], &[hops, doubted.to_owned(), expires.clone()]].concat()
    };
    let none = path.hops.is_none().then(|| "no path".to_owned());
    none.into_iter().chain(path.hops.iter().chain(&path.others).map(hops)).map(row).collect()
}

/// Prints the path cache page by page: as one JSON document, or as one table whose columns grow
/// with the first row that needs more room.
pub(super) struct Paths {
    is_json: bool,
    is_empty: bool,
    table: Table,
}

impl Paths {
    /// Before the first page.
    pub(super) fn begin(is_json: bool) -> Self {
        Self { is_json, is_empty: true, table: Table::default() }
    }

    /// Prints the next page.
    pub(super) fn page(&mut self, paths: &[CachedPath]) {
        if !self.is_json {
            rows(&mut self.table, paths.iter().flat_map(cached_path));
        }
        let mut text = String::new();
        for path in paths.iter().filter(|_| self.is_json) {
            let start = if self.is_empty && text.is_empty() { JSON_PATHS.0 } else { "," };
            text.push_str(start);
            match serde_json::to_string(path) {
                Ok(json) => text.push_str(&json),
                Err(error) => error_line(&format!("cannot write JSON: {error}")),
            }
        }
        write(text.as_bytes());
        self.is_empty &= paths.is_empty();
    }

    /// After the last page.
    pub(super) fn end(self) {
        match self {
            Self { is_json: true, is_empty, .. } => {
                let start = if is_empty { JSON_PATHS.0 } else { "" };
                write(format!("{start}{}\n", JSON_PATHS.1).as_bytes());
            }
            Self { is_empty: true, .. } => line("no path learned yet"),
            Self { .. } => {}
        }
    }

    /// Ends the JSON document with an error in place of further pages.
    pub(super) fn fail(self, failure: &Failure) {
        // Strings and an enumeration always have a form in JSON.
        let error = serde_json::to_string(failure).unwrap_or_default();
        let start = if self.is_empty { JSON_PATHS.0 } else { "" };
        write(format!("{start}],\"error\":{error}}}\n").as_bytes());
    }
}

/// Start and end of the JSON document around the paths.
const JSON_PATHS: (&str, &str) = ("{\"v\":1,\"paths\":[", "]}");

fn port(port: &PortStatus) {
    let lid = |lid: Option<Lid>| or(lid, "none");
    let state = if port.active { "active" } else { "not active" };
    line(&format!("port {}: {state}, LID {}, LMC {}", port.port, lid(port.lid), port.lmc));
    line(&format!("    subnet manager: LID {}, SL {}", lid(port.sm_lid), port.sm_sl));
    line(&match &port.blocked {
        None => format!(
            "    its subnet administrator: {} questions in flight, {} MADs sent, at most {}",
            port.load.questions, port.load.in_air, port.load.window
        ),
        Some(reason) => format!("    its subnet administrator cannot be asked: {reason}"),
    });
    if let Some(probing) = &port.probing {
        line(&format!("    {}", probed(probing)));
    }
    // A daemon of 1.0.0 tells no indexes.
    if port.gid_table.is_empty() {
        line(&format!("    GIDs {}", join(&port.gids, ", ")));
    }
    gid_table(&port.gid_table);
    line(&format!("    P_Keys {}", join(&port.pkeys, ", ")));
    for PortAddress { ip, interface, gid } in &port.addresses {
        line(&format!("    {ip} on {interface} is {gid}"));
    }
    line(&match (&port.deaf, &port.last_event) {
        (Some(reason), _) => format!("    events not received: {reason}"),
        (None, None) => "    events received: none yet".to_owned(),
        (None, Some(LastEvent { event, ago_ms })) => {
            format!("    events received: the last was {event}, {} ago", seconds(*ago_ms))
        }
    });
}

/// Prints a line for each entry of a table.
pub(super) fn gid_table(table: &[TableGid]) {
    for TableGid { index: paths::GidIndex(index), gid, interfaces } in table {
        let of = match interfaces.as_slice() {
            [] => String::new(),
            names => format!(" of {}", names.join(", ")),
        };
        line(&format!("    GID {index} {gid}{of}"));
    }
}

fn probed(probing: &Probing) -> String {
    let Probing { because, for_ms } = probing;
    format!("{because} for {}, probing", seconds(*for_ms))
}

fn cache_entry(entry: &CacheEntry) -> Vec<String> {
    let interface = entry.interface.as_ref().map_or(String::new(), |name| format!("dev {name}"));
    let gid = or(entry.gid, "not-found");
    let expires = format!("expires in {}", seconds(entry.expires_in_ms));
    vec![entry.ip.to_string(), interface, gid, expires]
}

fn kernel(kernel: &KernelMaps) {
    match kernel.lease_ends_in_ms {
        lease if lease == Millis::default() => {
            line("the kernel answers nothing: the lease has ended");
        }
        lease => line(&format!("lease ends in {}", seconds(lease))),
    }
    if kernel.restricted {
        line("only sources that allow names are answered");
    }
    for interface in &kernel.interfaces {
        let name = interface.name.as_deref().unwrap_or("(not here)");
        let answers = |answers| if answers { "yes" } else { "no" };
        let (ipv4, ipv6) = (answers(interface.ipv4), answers(interface.ipv6));
        let only = match interface.only_routed.as_slice() {
            [] => String::new(),
            families => format!("; {} only for these destinations:", join(families, " and ")),
        };
        let ifindex = interface.ifindex;
        let is_here = |there| there == ifindex.get();
        line(&format!("interface {name} (index {ifindex}): IPv4 {ipv4}, IPv6 {ipv6}{only}"));
        for route in kernel.routes.iter().filter(|route| is_here(route.ifindex)) {
            let via = match route.via {
                _ if route.elsewhere => " elsewhere".to_owned(),
                Some(via) => format!(" via {via}"),
                None => String::new(),
            };
            line(&format!("    {}{via}", route.to));
        }
        for neighbour in kernel.neighbours.iter().filter(|there| is_here(there.ifindex)) {
            line(&format!("    {} at {}", neighbour.ip, neighbour.hwaddr));
        }
    }
    table(kernel.entries.iter().map(|entry| {
        let scope = entry.scope.map_or(String::new(), |scope| format!("%{scope}"));
        let gid = or(entry.gid, "no GID");
        let ifindex = format!("index {}", entry.ifindex);
        vec![format!("{}{scope}", entry.ip), gid, entry.origin.clone(), ifindex]
    }));
    if !kernel.learned.is_empty() {
        line("learned from peers:");
    }
    table(kernel.learned.iter().map(|learned| {
        let scope = learned.ifindex.map_or(String::new(), |ifindex| format!("%{ifindex}"));
        let from = learned.from.map_or(String::new(), |from| format!("from {from}"));
        let expires = format!("for {}", seconds(learned.expires_in_ms));
        vec![format!("{}{scope}", learned.ip), learned.gid.to_string(), expires, from]
    }));
}

/// Rounds up to whole seconds.
fn seconds(time: Millis) -> humantime::FormattedDuration {
    let time = Duration::from(time);
    let part = u64::from(time.subsec_millis() > 0);
    humantime::format_duration(Duration::from_secs(time.as_secs() + part))
}

fn or<T: ToString>(value: Option<T>, none: &str) -> String {
    value.map_or_else(|| none.to_owned(), |value| value.to_string())
}

fn join<T: ToString>(values: &[T], separator: &str) -> String {
    values.iter().map(T::to_string).collect::<Vec<_>>().join(separator)
}

/// Prints all that is known about the daemon, except its health.
pub(super) fn details(status: &Status) {
    let config = status.config.as_deref().unwrap_or("defaults");
    let reloaded = match (&status.failed_reload, status.reloaded_ago_s) {
        (Some(failed), _) => {
            let ago = humantime::format_duration(failed.ago_s.into());
            format!(", reload refused {ago} ago: see above")
        }
        (None, Some(ago)) => format!(", reloaded {} ago", humantime::format_duration(ago.into())),
        (None, None) => String::new(),
    };
    line(&format!("configuration  {config}{reloaded}"));
    line(&format!("client         {} pending, {} cached", status.pending, status.cached));
    for server in &status.servers {
        let state = match &server.blocked {
            None => "serving".to_owned(),
            Some(reason) => format!("not serving: {reason}"),
        };
        let vrf = server.vrf.as_ref().map_or(String::new(), |vrf| format!(" in VRF {vrf}"));
        line(&format!("server {}    UDP port {}{vrf}, {state}", server.family, server.port));
    }
    let kernel = &status.local_service;
    let on = kernel.nudge_interface.as_deref().map(|name| format!(" ({name})"));
    let nudges = format!("nudges {}{}", kernel.nudges, on.unwrap_or_default());
    match &kernel.blocked {
        None => line(&format!(
            "kernel         sends requests to ibarr, {} waiting, {nudges}",
            kernel.waiting
        )),
        Some(reason) => line(&format!("kernel         sends no requests to ibarr: {reason}")),
    }
    line(&match &status.responder.blocked {
        None => format!(
            "responder      in the kernel, lease ends in {}",
            seconds(status.responder.lease_ends_in_ms)
        ),
        Some(reason) => format!("responder      not in the kernel: {reason}"),
    });
    if let Some(reason) = &status.responder.ends_early {
        line(&format!("    may end before that: {reason}"));
    }
    let PathRequests { sa_queries, avoided, left_to_kernel } = &status.path_requests;
    line(&format!(
        "paths          {} cached; {avoided} questions saved, {sa_queries} MADs sent",
        status.cached_paths
    ));
    for (why, count) in left_to_kernel {
        line(&format!("    {count} left to the kernel: {why}"));
    }
    for port in &status.ports {
        let state = match &port.blocked {
            None => {
                let probed = port.probing.as_ref().map(|probing| format!(", {}", probed(probing)));
                let lid = or(port.sm_lid, "0");
                format!("subnet administrator at LID {lid}{}", probed.unwrap_or_default())
            }
            Some(reason) => format!("no subnet administrator: {reason}"),
        };
        let event = port.last_event.as_ref().map_or(String::new(), |last| {
            format!("; last event {}, {} ago", last.event, seconds(last.ago_ms))
        });
        line(&format!("port {}: {state}{event}", port.port));
    }
    for interface in &status.interfaces {
        let gid = or(interface.gid, "no GID");
        line(&format!("interface {} (index {}): {gid}", interface.name, interface.ifindex));
        for (address, gid) in &interface.addresses {
            line(&format!("    {address} is {gid}"));
        }
        if let Some(responder) = &interface.responder {
            line(&format!("    answered by the kernel: {responder}"));
        }
        if let Some(reason) = &interface.in_user_space {
            line(&format!("    answered by the daemon: {reason}"));
        }
        if let Some(reason) = &interface.not_served {
            line(&format!("    not served: {reason}"));
        }
    }
    let control = &status.control;
    line(&format!(
        "control        {} connections, {} refused; group {}: {}",
        control.connections,
        control.refused,
        crate::control::GROUP,
        control.group
    ));
    for users in &status.users {
        line(&format!(
            "users          {}: {} in flight, {} waiting, {} refused",
            users.what, users.under_way, users.waiting, users.refused
        ));
    }
}

#[cfg(test)]
mod tests {
    use ibarr_common::ib::{FlowLabel, PKey, Sl};

    use super::*;

    #[test]
    fn paged_json_equals_the_document() {
        let empty = Response::from(Body::Paths { paths: Vec::new(), next: None });
        let parts = format!("{}{}", JSON_PATHS.0, JSON_PATHS.1);
        assert_eq!(serde_json::to_string(&empty).unwrap(), parts);
    }

    #[test]
    fn code_of_unknown_meaning_is_shown_as_a_number() {
        let hops = PathHops {
            slid: Lid::new(8).unwrap(),
            dlid: Lid::new(1).unwrap(),
            hop_limit: 0,
            flow_label: FlowLabel::default(),
            tclass: 0,
            sl: Sl::default(),
            mtu: None,
            mtu_code: Some(6),
            gbit_s: None,
            rate_code: Some(26),
            pkey: PKey::DEFAULT,
            reversible: true,
        };
        let shown = "LID 8 to 1, SL 0, P_Key 0xffff, MTU code 6, rate code 26";
        assert_eq!(super::hops(&hops), shown);
    }
}
