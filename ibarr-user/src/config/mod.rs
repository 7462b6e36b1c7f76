// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The configuration file: TOML, all keys optional, unknown keys refused, every mistake reported.
//! `pkg/ibarr.toml` shows all keys.

mod acm;
mod effective;
mod files;
mod metrics;
mod paths;
mod prefix;
mod reader;

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::num::{NonZeroU16, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use ibarr_common::ib::Gid;
use ibarr_common::map;
use ibarr_common::wire::ls::Timeout;
use ibarr_proto::acm as acm_service;
use ibarr_proto::health;
use ibarr_proto::ip2gid::Prefixes;
use ibarr_proto::ip2gid::client::{self, Settings, SourceCheck};
use ibarr_proto::local_service;
use ibarr_proto::local_view::{
    self, ConfigError, InterfaceFilter, Pattern, StaticGid, StaticGids, neighbours,
};
use ibarr_proto::node;
use ibarr_proto::paths::{Config as PathsConfig, NoPath};
use thiserror::Error;

use crate::bpf;
use crate::logging::Level;

pub(crate) use self::acm::{Acm, Serve};
pub(crate) use self::effective::{Setting, effective, split};
pub(crate) use self::files::{Absent, gather, read_from};
pub(crate) use self::metrics::Listen;
use self::prefix::Prefix;
#[cfg(test)]
pub(crate) use self::reader::RETIRED;
pub(crate) use self::reader::{Mistake, Source};
use self::reader::{Table, Value, switch};

/// The configuration of the daemon.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The files that it was read from; empty for defaults.
    pub files: Vec<String>,
    /// How to ask peers; the server uses the same `udp_port`.
    pub client: client::Config,
    /// Sources that are answered.
    pub allow: Prefixes,
    /// Interfaces and GIDs of this node.
    pub view: local_view::Config,
    /// How to answer the kernel.
    pub local_service: local_service::Config,
    /// How to ask subnet administrators, and how long to remember paths.
    pub paths: PathsConfig,
    /// File that keeps paths for the next daemon; `None` for no file.
    pub snapshot: Option<PathBuf>,
    /// What is logged, if the command line does not say it.
    pub log_level: Level,
    /// Whether and how the kernel answers.
    pub responder: bpf::Settings,
    /// Whether and where clients of ACM are answered.
    pub acm: Acm,
    /// Where metrics are served; `None` for nowhere.
    pub metrics: Option<Listen>,
    /// Changed keys that have no effect any more.
    pub retired: Vec<String>,
    /// Every key with its origin, as the files had it.
    pub settings: Vec<Setting>,
}

/// Why the configuration cannot be used.
#[derive(Debug, Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("configuration {}: cannot be read{}", path.display(), files::remedy(source))]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The error of read(2).
        source: io::Error,
    },
    /// The files have mistakes.
    #[error("{}", list(mistakes))]
    Mistakes {
        /// All mistakes, ordered by file and line.
        mistakes: Vec<Mistake>,
    },
}

impl Config {
    /// The part that the cores use.
    pub fn node(&self) -> node::Config {
        let Self { client, allow, view, local_service, paths, responder, .. } = self.clone();
        let most = if self.acm.serve == Serve::Off { 0 } else { usize::MAX };
        let acm = acm_service::Config::default().with_clients(most);
        let view = local_view::Config { neighbours: responder.wants_neighbours(), ..view };
        node::Config { view, allow, responder, client, local_service, paths, acm }
    }

    /// A valid setting with an effect that is easily overlooked.
    pub fn setting(&self) -> Option<health::Setting> {
        let (prefixes, most) = (self.allow.iter().count(), map::max_entries::ALLOW);
        let is_too_long = prefixes > most && self.responder.want_kernel();
        is_too_long.then_some(health::Setting::AllowTooLong { prefixes, most })
    }

    /// The effect of that setting, and of keys without one, each with its remedy.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.setting().map(|setting| setting.to_string()).into_iter().chain(self.outdated())
    }

    /// A warning if keys are set that have no effect any more.
    pub fn outdated(&self) -> Option<String> {
        let with_reason = |key: &String| match key.as_str() {
            "answer-gid" => format!("{key} (kernels accept connections to IPoIB's own GID alone)"),
            _ => key.clone(),
        };
        let keys = self.retired.iter().map(with_reason).collect::<Vec<_>>().join(", ");
        (!keys.is_empty()).then(|| format!("without effect, and refused from 2.0.0 on: {keys}"))
    }

    /// Checks files and applies one after the other.
    ///
    /// # Errors
    /// All mistakes, each with its place and remedy.
    pub fn read(sources: &[Source]) -> Result<Self, Error> {
        let (config, retired) =
            reader::read(sources, Self::of).map_err(|mistakes| Error::Mistakes { mistakes })?;
        Ok(Self { retired, settings: effective(sources), ..config })
    }

    fn of(root: &mut Table<'_, '_>) -> Self {
        let udp_port = root.value("udp-port", Settings::default().udp_port, |value| {
            let port = value.number(1..=u16::MAX)?;
            NonZeroU16::new(port).ok_or_else(|| "must not be 0".to_owned())
        });
        let source_check = root.value("source-check", SourceCheck::default(), |value| {
            value.word(SourceCheck::MsgId, &SourceCheck::ALL)
        });
        let (mut paths, snapshot) = paths::read(root);
        paths.on_no_record = root.value("on-no-record", paths.on_no_record, no_path);
        paths.on_sa_silent = root.value("on-sa-silent", paths.on_sa_silent, no_path);
        let client = client(root, udp_port, source_check);
        let deadline = client.settings().deadline;
        let acm = Acm::read(root);
        let for_librdmacm = acm.socket.with_file_name(crate::transport::acm::FOR_LIBRDMACM);
        let files = [
            Some(&acm.socket),
            Some(&for_librdmacm),
            acm.hosts.as_ref(),
            acm.routes.as_ref(),
            snapshot.as_ref(),
        ];
        let files: Vec<_> = files.into_iter().flatten().map(PathBuf::as_path).collect();
        let metrics = metrics::read(root, &files);
        let allow = root.list("allow", Vec::new(), |value| value.parse::<Prefix>("10.0.0.0/8"));
        Self {
            files: root.files(),
            responder: responder(root, udp_port),
            client,
            allow: allow.into_iter().map(|Prefix(prefix)| prefix).collect(),
            view: local_view::Config {
                interfaces: interfaces(root),
                static_gids: static_gids(root),
                // The responder sets these.
                neighbours: neighbours::Selection::default(),
            },
            local_service: local_service(root, deadline),
            paths,
            snapshot,
            acm,
            metrics,
            retired: Vec::new(),
            settings: Vec::new(),
            log_level: root.value("log-level", Level::default(), |value| value.parse("info")),
        }
    }
}

fn client(
    root: &mut Table<'_, '_>,
    udp_port: NonZeroU16,
    source_check: SourceCheck,
) -> client::Config {
    let default = Settings::default();
    root.table("client", |table| {
        let settings = Settings {
            udp_port,
            source_check,
            deadline: table.value("deadline", default.deadline, duration),
            fresh_for: table.value("fresh-for", default.fresh_for, duration),
            cache_ttl: table.value("cache-ttl", default.cache_ttl, duration),
            max_cached: table.value("max-cached", default.max_cached, count),
            ..default
        };
        table.check(client::Config::new(settings))
    })
}

fn local_service(root: &mut Table<'_, '_>, deadline: Duration) -> local_service::Config {
    let default = local_service::Config { deadline, ..local_service::Config::default() };
    local_service::Config {
        nudge: root.value("nudge", default.nudge, switch),
        timeout: root.value("local-service-timeout", default.timeout, |value| {
            let timeout = duration(value)?;
            let millis = u32::try_from(timeout.as_millis()).ok();
            millis.and_then(Timeout::from_millis).ok_or_else(|| "must be 100ms to 200s".to_owned())
        }),
        ..default
    }
}

fn interfaces(root: &mut Table<'_, '_>) -> InterfaceFilter {
    let names = root.list("interfaces", Vec::new(), |value| {
        let name = value.text("ib0")?;
        without_brackets(name)?;
        // Each name alone first, so that a mistake is reported with its own line.
        InterfaceFilter::new([name]).map_err(|error| format!("has a mistake: {error}"))?;
        Ok(name.to_owned())
    });
    root.check(InterfaceFilter::new(names))
}

/// Node lists of the command line have ranges in brackets, patterns have none.
fn without_brackets(name: &str) -> Result<(), String> {
    if name.contains(['[', ']']) {
        return Err(format!("has no ranges like {name:?}: write each name, or a pattern like ib*"));
    }
    Ok(())
}

fn static_gids(root: &mut Table<'_, '_>) -> StaticGids {
    let mut known = BTreeSet::new();
    let entries = root.tables("static-gid", |table, before: &[Option<StaticGid>]| {
        // The first of its file, which overrides the files before.
        if before.is_empty() {
            known.clear();
        }
        table.require("ip", "\"10.2.0.5\"");
        table.require("gid", "\"fe80::2:c903:0:201\"");
        let ip: Option<IpAddr> = table.value("ip", None, |value| value.parse("10.2.0.5").map(Some));
        let gid: Option<Gid> =
            table.value("gid", None, |value| value.parse("fe80::2:c903:0:201").map(Some));
        let entry = StaticGid { ip: ip?, gid: gid? };
        let is_new = known.insert(entry.ip);
        let is_new = if is_new { Ok(()) } else { Err(ConfigError::StaticTwice { ip: entry.ip }) };
        table.check(is_new.and_then(|()| StaticGids::new([entry])));
        Some(entry)
    });
    root.check(StaticGids::new(entries.into_iter().flatten()))
}

fn responder(root: &mut Table<'_, '_>, udp_port: NonZeroU16) -> bpf::Settings {
    let default = bpf::Settings::default();
    bpf::Settings {
        mode: root.value("responder", default.mode, mode),
        on: responder_on(root),
        lease: root.value("lease", default.lease, |value| {
            let lease = duration(value)?;
            if SHORTEST_LEASE <= lease && lease <= LONGEST_LEASE {
                return Ok(lease);
            }
            Err("must be from \"1s\" to \"1h\"".to_owned())
        }),
        udp_port,
    }
}

fn responder_on(root: &mut Table<'_, '_>) -> Vec<(Pattern, bpf::Mode)> {
    let entries = root.tables("responder-on", |table, _| {
        table.require("interface", "\"eth*\"");
        table.require("responder", "\"xdp\"");
        let interface: Option<Pattern> = table.value("interface", None, |value| {
            without_brackets(value.text("eth*")?)?;
            value.parse("eth*").map(Some)
        });
        let mode = table.value("responder", None, |value| mode(value).map(Some));
        Some((interface?, mode?))
    });
    entries.into_iter().flatten().collect()
}

/// The lease is renewed after a third of it; a shorter one would keep the daemon busy.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);
/// The longest time for which answers of a dead daemon are acceptable.
const LONGEST_LEASE: Duration = Duration::from_hours(1);

fn mode(value: Value<'_>) -> Result<bpf::Mode, String> {
    value.word(bpf::Mode::Auto, &bpf::Mode::ALL)
}

fn no_path(value: Value<'_>) -> Result<NoPath, String> {
    value.word(NoPath::Fallback, &NoPath::ALL)
}

fn duration(value: Value<'_>) -> Result<Duration, String> {
    let text = value.text("20ms")?;
    humantime::parse_duration(text).map_err(|error| {
        format!("{text:?} is not a duration: {error}; write it like \"20ms\" or \"3s\"")
    })
}

fn count(value: Value<'_>) -> Result<NonZeroUsize, String> {
    let count = value.number(1..=10_000_000_usize)?;
    NonZeroUsize::new(count).ok_or_else(|| "must not be 0".to_owned())
}

fn list(mistakes: &[Mistake]) -> String {
    let lines: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use ibarr_common::wire::sa::PathCount;
    use ibarr_proto::paths::{self, Qos};

    use super::*;

    fn source(text: &str) -> Source {
        Source { name: "ibarr.toml".to_owned(), text: text.to_owned() }
    }

    fn parse(text: &str) -> Config {
        Config::read(&[source(text)]).unwrap()
    }

    fn mistakes(text: &str) -> Vec<String> {
        let Error::Mistakes { mistakes } = Config::read(&[source(text)]).unwrap_err() else {
            unreachable!("no file is read")
        };
        mistakes.iter().map(|one| format!("line {}: {}", one.line, one.message)).collect()
    }

    #[test]
    fn more_prefixes_than_the_map_holds_are_a_warning() {
        let config = |count: u16, extra: &str| {
            let prefixes: Vec<_> =
                (0..count).map(|at| format!("\"10.{}.{}.1\"", at >> 8, at & 0xff)).collect();
            parse(&format!("{extra}\nallow = [{}]", prefixes.join(",")))
        };
        assert_eq!(config(4096, "").setting(), None);
        let warning = "allow has 4097 prefixes, and the kernel holds 4096";
        assert!(config(4097, "").warnings().next().unwrap().contains(warning));
        // Prefixes inside another one do not count, and neither does any if the kernel is not to
        // answer.
        let inside = parse("allow = [\"10.0.0.0/8\", \"10.1.0.0/16\"]");
        assert_eq!(inside.allow.iter().count(), 1);
        assert_eq!(config(4097, "responder = \"user\"").setting(), None);
    }

    #[test]
    fn packaged_file_sets_no_key_and_shows_the_defaults() {
        let packaged = source(include_str!("../../../pkg/ibarr.toml"));
        assert!(effective(&[packaged]).iter().all(|key| key.file.is_none()));
        let text = &effective::defaults()[..];
        for text in [text, ""] {
            let config = Config { files: Vec::new(), settings: Vec::new(), ..parse(text) };
            assert_eq!(format!("{config:?}"), format!("{:?}", Config::default()));
        }
        // Every key is there: without its "key =", a line of the rendered default would differ.
        let keys = text.lines().filter(|line| !line.starts_with('#') && line.contains(" = "));
        assert_eq!(keys.count(), 28);
    }

    #[test]
    fn every_key_is_understood() {
        let config = parse(
            "udp-port = 5000\n\
             interfaces = [\"ib*\"]\n\
             allow = [\"10.0.0.0/8\", \"fd00::/8\"]\n\
             source-check = \"strict\"\n\
             nudge = false\n\
             local-service-timeout = \"500ms\"\n\
             on-no-record = \"fallback\"\n\
             on-sa-silent = \"final\"\n\
             responder = \"user\"\n\
             lease = \"10s\"\n\
             [[responder-on]]\n\
             interface = \"eth*\"\n\
             responder = \"xdp\"\n\
             [client]\n\
             fresh-for = \"0s\"\n\
             cache-ttl = \"2min\"\n\
             [paths]\n\
             qos = \"on\"\n\
             cache-ttl = \"10min\"\n\
             max-cached = 1000\n\
             repeat-rate = 0\n\
             fallback-interval = \"20s\"\n\
             spread = 8\n\
             snapshot = \"/var/lib/ibarr/paths\"\n\
             [[static-gid]]\n\
             ip = \"10.2.0.5\"\n\
             gid = \"fe80::2:c903:0:201\"\n",
        );
        let settings = config.client.settings();
        assert_eq!(settings.udp_port.get(), 5000);
        assert_eq!(settings.source_check, SourceCheck::Strict);
        let lives = (settings.fresh_for, settings.cache_ttl);
        assert_eq!(lives, (Duration::ZERO, Duration::from_mins(2)));
        let timeout = Timeout::from_millis(500).unwrap();
        let expected =
            local_service::Config { nudge: false, timeout, ..local_service::Config::default() };
        assert_eq!(config.local_service, expected);
        let expected = paths::Config {
            qos: Qos::On,
            ttl: Duration::from_mins(10),
            max_cached: 1_000,
            repeat_rate: 0,
            fallback_interval: Duration::from_secs(20),
            spread: PathCount::new(8).unwrap(),
            on_no_record: NoPath::Fallback,
            on_sa_silent: NoPath::Final,
            ..paths::Config::default()
        };
        assert_eq!(config.paths, expected);
        assert_eq!(config.snapshot, Some("/var/lib/ibarr/paths".into()));
        assert!(config.allow.contains("10.1.2.3".parse().unwrap()));
        assert!(!config.allow.contains("192.0.2.1".parse().unwrap()));
        let gid = config.view.static_gids.lookup("10.2.0.5".parse().unwrap());
        assert_eq!(gid, Some("fe80::2:c903:0:201".parse().unwrap()));
        assert_eq!(config.view.interfaces, InterfaceFilter::new(["ib*"]).unwrap());
        let expected = bpf::Settings {
            mode: bpf::Mode::User,
            on: vec![("eth*".parse().unwrap(), bpf::Mode::Xdp)],
            lease: Duration::from_secs(10),
            udp_port: NonZeroU16::new(5000).unwrap(),
        };
        assert_eq!(config.responder, expected);
    }

    #[test]
    fn changed_keys_without_effect_are_one_warning_until_2_0_0() {
        assert_eq!(env!("CARGO_PKG_VERSION_MAJOR"), "1");
        let outdated = |text: &str| parse(text).outdated();
        assert_eq!(outdated(include_str!("../../tests/golden/ibarr-1.0.0.toml")), None);
        assert_eq!(outdated("answer-gid = \"interface\""), None);
        let why = outdated("answer-gid = \"flid\"").unwrap();
        assert!(
            why.ends_with(": answer-gid (kernels accept connections to IPoIB's own GID alone)")
        );
        let changed = "[client]\nresends = [ \"20ms\" ]\n[paths]\ninform = true";
        let warning = "without effect, and refused from 2.0.0 on: paths.inform, client.resends";
        assert_eq!(outdated(changed), Some(warning.to_owned()));
        let elsewhere = "line 1: inform is not a key of ibarr; known here: ";
        assert!(mistakes("inform = false")[0].starts_with(elsewhere));
    }

    #[test]
    fn second_gid_of_an_address_is_shown_where_it_stands() {
        let table = |gid| format!("[[static-gid]]\nip = \"10.2.0.5\"\ngid = \"fe80::{gid}\"\n");
        let text = format!("lease = \"60s\"\n{}{}{}", table(1), table(2), table(3));
        let twice = |line| format!("line {line}: static GID for 10.2.0.5: given twice, remove one");
        assert_eq!(mistakes(&text), [twice(5), twice(8)]);
    }

    #[test]
    fn ranges_of_interfaces_are_refused_because_patterns_have_none() {
        let expected = "has no ranges like \"ib[0-3]\": write each name, or a pattern like ib*";
        let found = mistakes(
            "interfaces = [\"ib[0-3]\"]\n[[responder-on]]\ninterface = \"ib[0-3]\"\nresponder = \"xdp\"",
        );
        let expected = [("1: interfaces"), ("3: responder-on.interface")]
            .map(|place| format!("line {place} {expected}"));
        assert_eq!(found, expected);
    }

    #[test]
    fn every_mistake_is_reported_with_line_and_remedy() {
        let text = "udp-port = 0
interfaces = [\"ib0\", \"a b\"]
allow = [
  \"10.0.0.1/8\",
]
source-check = \"lax\"
nudge = \"yes\"
local-service-timeout = \"99ms\"
[client]
deadline = \"3x\"
cache_ttl = \"60s\"
[[static-gid]]
ip = \"10.2.0.5\"
[[static-gid]]
ip = \"127.0.0.1\"
gid = \"fe80::1\"
[[static-gid]]
ip = \"10.2.0.6\"
gid = \"::\"
[[responder-on]]
interface = \"a/b\"
responder = \"ebpf\"
";
        let expected = [
            "line 1: udp-port must be a whole number from 1 to 65535",
            "line 2: interfaces has a mistake: interface \"a b\": write 1 to 127 characters without \
             white space, / or :, where * stands for any number of them and ? for one",
            "line 4: allow \"10.0.0.1/8\" is wrong: 10.0.0.1/8 has bits set after the prefix, write \
             10.0.0.0/8, or 10.0.0.1 for that address alone; write it like \"10.0.0.0/8\"",
            "line 6: source-check is \"lax\"; it can be \"msg-id\" or \"strict\"",
            "line 7: nudge must be true or false, without quotes",
            "line 8: local-service-timeout must be 100ms to 200s",
            "line 10: client.deadline \"3x\" is not a duration: unknown time unit \"x\", supported \
             units: ns, us/µs, ms, sec, min, hours, days, weeks, months, years (and few variations); \
             write it like \"20ms\" or \"3s\"",
            "line 11: client.cache_ttl is not a key of ibarr; did you mean \"cache-ttl\"?",
            "line 12: static-gid.gid is missing: write gid = \"fe80::2:c903:0:201\"",
            "line 14: static GID for 127.0.0.1: write a unicast address that an interface of this \
             machine has",
            "line 19: static-gid.gid \"::\" is wrong: the zero GID and multicast GIDs do not name a \
             port; write it like \"fe80::2:c903:0:201\"",
            "line 21: responder-on.interface \"a/b\" is wrong: interface \"a/b\": write 1 to 127 \
             characters without white space, / or :, where * stands for any number of them and ? for \
             one; write it like \"eth*\"",
            "line 22: responder-on.responder is \"ebpf\"; it can be \"auto\", \"tc\", \"clsact\", \
             \"xdp\", \"xdp-generic\" or \"user\"",
        ];
        assert_eq!(mistakes(text), expected);
        let expected = ["line 1: on-no-record is \"no\"; it can be \"final\" or \"fallback\""];
        assert_eq!(mistakes("on-no-record = \"no\""), expected);
    }

    #[test]
    fn contradicting_values_are_a_mistake() {
        let expected = "line 1: deadline = 1ms is outside 10ms to 300s";
        assert_eq!(mistakes("[client]\ndeadline = \"1ms\"\n"), [expected]);
        for wrong in ["paths", "/var/lib/"] {
            let expected = format!(
                "line 2: paths.snapshot is {wrong:?}; write a file's path, from / on, or \"\""
            );
            assert_eq!(mistakes(&format!("[paths]\nsnapshot = {wrong:?}\n")), [expected]);
        }
        assert_eq!(mistakes("lease = \"2h\"\n"), ["line 1: lease must be from \"1s\" to \"1h\""]);
        let twice = "[[static-gid]]\nip = \"10.2.0.5\"\ngid = \"fe80::1\"\n".repeat(2);
        let expected = "line 4: static GID for 10.2.0.5: given twice, remove one";
        assert_eq!(mistakes(&twice), [expected]);
    }

    #[test]
    fn later_files_count_more_for_each_key_and_whole_lists() {
        let first = source(
            "udp-port = 5000\nallow = [\"10.0.0.0/8\"]\n[paths]\nqos = \"on\"\nrepeat-rate = 1\n\
             [[static-gid]]\nip = \"10.2.0.5\"\ngid = \"fe80::1\"\n",
        );
        let second = source(
            "allow = [\"fd00::/8\"]\n[paths]\nrepeat-rate = 7\n\
             [[static-gid]]\nip = \"10.2.0.6\"\ngid = \"fe80::2\"\n",
        );
        let config = Config::read(&[first, second]).unwrap();
        assert_eq!(config.client.settings().udp_port.get(), 5000);
        let allows = |address: &str| config.allow.contains(address.parse().unwrap());
        assert_eq!((allows("10.1.2.3"), allows("fd00::1")), (false, true));
        assert_eq!((config.paths.qos, config.paths.repeat_rate), (Qos::On, 7));
        let gid = |address: &str| config.view.static_gids.lookup(address.parse().unwrap());
        assert_eq!((gid("10.2.0.5"), gid("10.2.0.6")), (None, Some("fe80::2".parse().unwrap())));
    }

    #[test]
    fn mistakes_of_every_file_are_reported_even_if_a_later_one_is_right() {
        let named = |name: &str, text: &str| Source { name: name.to_owned(), ..source(text) };
        let sources = [
            named("a.toml", "udp-port = 0\n[paths]\nqos = \"ü\" # here\n"),
            named("b.toml", "udp-port = 5000\n  lese = 1\npaths = 1"),
        ];
        let error = Config::read(&sources).unwrap_err().to_string();
        let expected = [
            "a.toml:1:12: udp-port must be a whole number from 1 to 65535",
            "a.toml:3:7: paths.qos is \"ü\"; it can be \"auto\", \"on\" or \"off\"",
            "b.toml:2:3: lese is not a key of ibarr; did you mean \"lease\"?",
            "b.toml:3:9: paths must be a table: write [paths]",
        ];
        assert_eq!(error.lines().collect::<Vec<_>>(), expected);
    }
}
