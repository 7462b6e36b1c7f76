// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Every family of metrics: its name, its labels and what it means.

/// A family of metrics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    /// Its name in this program.
    pub name: Name,
    /// Its name in the document, with the suffix of its kind.
    pub text: &'static str,
    pub kind: Kind,
    /// What it means, in sentences.
    pub help: &'static str,
    /// Each label and the values that it can have.
    pub labels: &'static [(&'static str, &'static str)],
}

/// The kind of a family.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// It only rises, until the daemon starts anew.
    Counter,
    /// It rises and falls.
    Gauge,
    /// It is always 1; its labels are the information.
    Info,
    Histogram,
}

impl Family {
    /// The name without the suffix of its kind.
    pub(super) fn stem(&self) -> &'static str {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        self.text.strip_suffix(suffix).unwrap_or(self.text)
    }

    /// The first sentence, without its full stop.
    pub(super) fn first_line(&self) -> &'static str {
        self.help.split('.').next().unwrap_or(self.help)
    }
}

macro_rules! families {
    ($($name:ident $kind:ident $text:literal, $help:literal, [$($label:literal: $values:literal),*];)+) => {
        /// The name of a family.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub(crate) enum Name {
            $(#[doc = $text] $name,)+
        }

        /// All families, in the order of the document.
        pub(crate) const FAMILIES: &[Family] = &[$(Family {
            name: Name::$name,
            text: $text,
            kind: Kind::$kind,
            help: $help,
            labels: &[$(($label, $values)),*],
        },)+];
    };
}

families! {
    Up Gauge "ibarr_up",
        "1 if the daemon answers. `ibarr exporter` and `ibarr metrics --output` say 0, and nothing else, if it does not.", [];
    BuildInfo Info "ibarr_build_info", "The version of the daemon.", ["version": "as of `ibarr --version`"];
    Start Gauge "ibarr_start_timestamp_seconds",
        "When the daemon started, in seconds of Unix time.", [];
    Health Gauge "ibarr_health",
        "How well a subsystem works: 0 ok, 1 degraded, 2 failed. `ibarr status` says why and what to do.",
        ["subsystem": "`configuration`, `local-view`, `kernel`, `responder`, `peers`, `sa`, `caches`, `control`, `acm`",
         "of": "the interface or the port, or empty"];
    Reload Gauge "ibarr_config_last_reload_successful",
        "1 if the configuration is the one of the last reload, 0 if that was refused.", [];
    Requests Counter "ibarr_ip2gid_requests_total",
        "Requests of the kernel for the GID of an address, by how they ended.",
        ["result": "`found`, `not-found`, `timed-out`, `unreachable`, `overloaded`, `abandoned`",
         "source": "where the GID came from: `local`, `cache`, `peer`; `none` if there was none"];
    ResolveDuration Histogram "ibarr_resolve_duration_seconds",
        "How long the kernel's requests for addresses waited for their GID. Requests that got none do not count.", [];
    Answers Counter "ibarr_ip2gid_answers_total",
        "Queries of peers that were answered with a GID, by what answered. Those of programs go on from one daemon to the next.",
        ["by": "`tc` and `xdp` (programs in the kernel), `daemon`"];
    Drops Counter "ibarr_drops_total",
        "Datagrams that were not answered or not used, by what dropped them and why. A packet that `tc` or `xdp` does not answer goes on to the daemon, and may be answered there.",
        ["by": "`tc`, `xdp`, `guard` (the filter of the daemon's sockets), `server` and `client` (the daemon), `socket` (the kernel had no room)",
         "reason": "as in `ibarr counters`, where each has its explanation"];
    PathDuration Histogram "ibarr_path_duration_seconds",
        "How long the kernel's requests for paths waited for their answer, whatever it was.", [];
    SaQueries Counter "ibarr_sa_queries_total",
        "MADs sent to the subnet administrator of a port, with resends and probes.", ["port": "such as `mlx5_0/1`"];
    SaAvoided Counter "ibarr_sa_avoided_total",
        "Requests for paths that were answered from memory, or by a question that was in flight already.", [];
    SaLastAnswer Gauge "ibarr_sa_last_answer_timestamp_seconds",
        "When the subnet administrator of a port last answered, in seconds of Unix time; 0 if it never did.",
        ["port": "such as `mlx5_0/1`"];
    Fallbacks Counter "ibarr_kernel_fallbacks_total",
        "Requests for paths that the kernel was told to ask the subnet administrator about itself.",
        ["reason": "`unknown-port`, `no-sa`, `no-record`, `silent`, `refused`, `overloaded`, `abandoned`, `malformed`"];
    CacheEntries Gauge "ibarr_cache_entries", "Entries of a cache.", ["cache": "`addresses`, `paths`"];
    InFlight Gauge "ibarr_questions_in_flight", "Questions that wait for an answer.",
        ["to": "`peers`, `sa`"];
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table at the end of the page.
    fn table() -> String {
        let mut table = String::from("| metric | kind | meaning | labels |\n|---|---|---|---|\n");
        for Family { text, kind, help, labels, .. } in FAMILIES {
            let kind = format!("{kind:?}").to_lowercase();
            let labels: Vec<_> =
                labels.iter().map(|(name, values)| format!("`{name}`: {values}")).collect();
            let labels = labels.join("; ");
            table.extend([format!("| **{text}** | {kind} | {help} | {labels} |\n")]);
        }
        table
    }

    #[test]
    fn table_of_metrics_is_made_from_the_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
        let mut page = std::fs::read_to_string(path).unwrap();
        let start = page.find("| metric |").unwrap();
        if std::env::var_os("IBARR_WRITE_DOCS").is_some() {
            page.replace_range(start.., &table());
            std::fs::write(path, &page).unwrap();
        }
        let made = "IBARR_WRITE_DOCS=1 cargo test -p ibarr-user table_of_metrics";
        assert_eq!(&page[start..], table(), "{made}");
    }

    #[test]
    fn every_family_is_on_the_dashboard() {
        let dashboard = include_str!("../../../contrib/grafana/ibarr.json");
        for Family { text, .. } in FAMILIES {
            let is_there = dashboard.contains(&format!("{text}{{"))
                || dashboard.contains(&format!("{text}_bucket{{"));
            assert!(is_there, "{text}");
        }
    }

    #[test]
    fn names_are_as_prometheus_wants_them() {
        for family in FAMILIES {
            let Family { text, kind, .. } = family;
            assert!(text.starts_with("ibarr_"), "{text}");
            assert_eq!(*kind == Kind::Counter, text.ends_with("_total"), "{text}");
            assert_eq!(*kind == Kind::Histogram, text.ends_with("_duration_seconds"), "{text}");
            assert!(
                text.bytes().all(|byte| byte.is_ascii_lowercase() || b"_2".contains(&byte)),
                "{text}"
            );
        }
    }
}
