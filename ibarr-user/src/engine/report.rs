// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the engine tells people.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ibarr_common::{IfIndex, Instant};
use ibarr_proto::counters;
use ibarr_proto::ip2gid::client::Cached;
use ibarr_proto::ip2gid::{Family, Question};
use ibarr_proto::local_view::{Event, Interface};
use tracing::{debug, info};

use super::Engine;
use crate::control::messages::{CacheEntry, InterfaceStatus, ServerStatus, Status};
use crate::transport::server::State;

/// A change of what this node answers.
pub(super) fn log(event: &Event) {
    let (Event::Added(owned) | Event::Changed(owned) | Event::Removed(owned)) = event else {
        return;
    };
    let (address, ifindex) = (owned.address, owned.ifindex);
    match (event, owned.gid) {
        (Event::Added(_), Some(gid)) => info!(%address, %gid, %ifindex, "answering"),
        (Event::Changed(_), Some(gid)) => info!(%address, %gid, %ifindex, "now answering"),
        (Event::Changed(_), None) => info!(%address, "not answering"),
        (Event::Removed(_), Some(_)) => info!(%address, "no longer answering"),
        (_, None) => debug!(%address, ?event, "no GID"),
        (Event::Served(_) | Event::NotServed(_), _) => {}
    }
}

impl Engine {
    pub(super) fn status(&self, now: Instant) -> Status {
        let load = self.resolver.client().load();
        let servers: Vec<_> = self
            .servers
            .iter()
            .map(|server| ServerStatus {
                family: match server.family {
                    Family::V4 => "ipv4",
                    Family::V6 => "ipv6",
                }
                .to_owned(),
                port: server.port,
                blocked: match &*server.state.borrow() {
                    State::Serving => None,
                    State::Starting => Some("starting".to_owned()),
                    State::Blocked(reason) => Some(reason.clone()),
                },
            })
            .collect();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: now.since(self.started).as_secs(),
            config: self.file.as_ref().map(|file| file.display().to_string()),
            warnings: self.warnings(&servers),
            servers,
            interfaces: self.view.interfaces().map(|link| interface(&link)).collect(),
            pending: load.flights,
            cached: load.cached,
        }
    }

    pub(super) fn cached(&self, now: Instant) -> Vec<CacheEntry> {
        let names: BTreeMap<IfIndex, String> =
            self.view.interfaces().map(|link| (link.ifindex, link.name.to_string())).collect();
        let entry = |(question, cached): (Question, Cached)| CacheEntry {
            ip: question.target(),
            interface: question
                .egress()
                .map(|egress| names.get(&egress).cloned().unwrap_or_else(|| format!("#{egress}"))),
            gid: cached.gid.map(|gid| gid.to_string()),
            expires_in_ms: u64::try_from(cached.expires_at.since(now).as_millis())
                .unwrap_or(u64::MAX),
        };
        let mut entries: Vec<_> = self.resolver.client().entries().map(entry).collect();
        entries.sort_by(|a, b| (a.ip, &a.interface).cmp(&(b.ip, &b.interface)));
        entries
    }

    pub(super) fn counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        add(&mut counts, "ip2gid.server", self.server.counters());
        add(&mut counts, "ip2gid.client", self.resolver.client().counters());
        add(&mut counts, "local-view", self.view.counters());
        counts.extend(self.counters.iter().map(|(name, count)| (name.to_string(), count)));
        counts
    }

    pub(super) fn config_name(&self) -> String {
        match &self.file {
            Some(file) => file.display().to_string(),
            None => format!("defaults ({} is not there)", self.options.config.display()),
        }
    }

    /// What is amiss, each with its remedy.
    fn warnings(&self, servers: &[ServerStatus]) -> Vec<String> {
        let mut warnings: Vec<_> = servers
            .iter()
            .filter_map(|server| {
                let reason = server.blocked.as_ref()?;
                Some(format!("peers are not answered over {}: {reason}", server.family))
            })
            .collect();
        warnings.extend(self.view.unmatched_patterns().map(|pattern| {
            format!("interfaces: no interface is called {pattern} (yet): is it spelt right?")
        }));
        warnings.extend(self.view.contested().map(|address| {
            format!(
                "{address} is on several interfaces with different GIDs: that of the lowest index \
                 is answered; remove the others, or write a [[static-gid]]"
            )
        }));
        if self.view.owned().all(|owned| owned.gid.is_none()) {
            warnings.push(
                "no address of this machine has a GID: is ib_ipoib loaded and the interface up? \
                 Without IPoIB, write [[static-gid]] entries"
                    .to_owned(),
            );
        }
        warnings
    }
}

fn interface(link: &Interface) -> InterfaceStatus {
    let addresses: BTreeMap<IpAddr, String> = link
        .addresses
        .iter()
        .filter_map(|address| Some((address.address, address.owned?.gid?.to_string())))
        .collect();
    let (gid, reason) = match &link.gid {
        Ok(gid) => (Some(gid.to_string()), "it has no usable address".to_owned()),
        Err(reason) => (None, reason.to_string()),
    };
    InterfaceStatus {
        name: link.name.to_string(),
        ifindex: link.ifindex.get(),
        gid,
        not_served: addresses.is_empty().then_some(reason),
        addresses,
    }
}

fn add<C: counters::Counter>(
    counts: &mut BTreeMap<String, u64>,
    prefix: &str,
    counters: &counters::Counters<C>,
) {
    counts.extend(counters.iter().map(|(name, count)| (format!("{prefix}.{name}"), count)));
}
