// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Where a path begins, as a person names it.

use std::net::IpAddr;

use ibarr_common::ib::Gid;
use ibarr_proto::paths::{Partial, PortName};

use super::{Daemon, ask};
use crate::control::client::Connection;
use crate::control::messages::{Body, Failure, FailureKind, PathAnswer, PortStatus, Request};

/// The start of a path; by default the daemon chooses.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Source {
    port: Option<PortName>,
    sgid: Option<Gid>,
}

impl Source {
    /// The source that `text` names: a port, or a GID or IP address of one.
    pub(super) fn find(daemon: &Daemon, text: &str) -> Result<Self, Failure> {
        match daemon.connect()?.ask(&Request::Ports, |_| ())? {
            Body::Ports { ports } => Self::among(&ports, text),
            _ => Err(ask::other_version()),
        }
    }

    fn among(ports: &[PortStatus], text: &str) -> Result<Self, Failure> {
        let names = |port: &&PortStatus| port.port.to_string() == text;
        if let Some(port) = ports.iter().find(names) {
            return Ok(Self { port: Some(port.port), sgid: None });
        }
        let (gid, ip) = (text.parse().ok(), text.parse().ok());
        if gid.is_none() && ip.is_none() && text.parse::<PortName>().is_err() {
            let message = format!("{text}: no IP address, GID or port, like mlx5_0/1");
            return Err(Failure { kind: FailureKind::Usage, message });
        }
        // A link-local address may also be a GID.
        let has_gid = |port: &&PortStatus| port.gids.iter().any(|of| Some(*of) == gid);
        let mut found: Vec<_> = ports.iter().filter(has_gid).map(|port| (port, gid)).collect();
        if found.is_empty() {
            let of = |port: &PortStatus| {
                port.addresses.iter().find(|it| Some(it.ip) == ip).map(|it| it.gid)
            };
            found.extend(ports.iter().filter_map(|port| Some((port, Some(of(port)?)))));
        }
        if found.len() > 1 {
            let names: Vec<_> = found.iter().map(|(port, _)| port.port.to_string()).collect();
            let message = format!("{text}: several ports have it; name one: {}", names.join(", "));
            return Err(Failure { kind: FailureKind::Usage, message });
        }
        let found = found.first();
        found.map(|(port, sgid)| Self { port: Some(port.port), sgid: *sgid }).ok_or_else(|| {
            let what = ip.map_or("", |_: IpAddr| "has this address or GID");
            let what = if what.is_empty() { "has this name" } else { what };
            let message =
                format!("{text}: no InfiniBand port of this machine {what}; see ibarr ports");
            Failure { kind: FailureKind::Absent, message }
        })
    }

    /// The path from here to `dgid`; past the cache if `fresh`.
    pub(super) fn path(
        &self,
        connection: &mut Connection,
        dgid: Gid,
        fresh: bool,
    ) -> Result<Box<PathAnswer>, Failure> {
        let Self { port, sgid } = *self;
        let path = Partial { dgid, sgid, port, pkey: None, fresh };
        match connection.ask(&Request::Path { path }, |_| ())? {
            Body::Path { path } => Ok(path),
            _ => Err(ask::other_version()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_is_found_by_port_gid_and_address() {
        let ports = r#"[{"port":"mlx5_0/1","active":true,"lmc":0,"sm-sl":0,"gids":["fec0::1","fec0::9"],"pkeys":[],
            "qos":false,"questions":0,"in-air":0,"window":2},
            {"port":"mlx5_1/1","active":true,"lmc":0,"sm-sl":0,"gids":["fec0::2","fec0::3","fec0::9"],"pkeys":[],
            "addresses":[{"ip":"10.0.0.3","interface":"ib1","gid":"fec0::3"}],
            "qos":false,"questions":0,"in-air":0,"window":2}]"#;
        let ports: Vec<PortStatus> = serde_json::from_str(ports).unwrap();
        let found = |text| Source::among(&ports, text);
        let port = |text: &str| Some(text.parse().unwrap());
        let gid = |text: &str| Some(text.parse().unwrap());
        assert_eq!(found("mlx5_1/1").unwrap(), Source { port: port("mlx5_1/1"), sgid: None });
        let second = Source { port: port("mlx5_1/1"), sgid: gid("fec0::3") };
        assert_eq!((found("fec0::3").unwrap(), found("10.0.0.3").unwrap()), (second, second));
        let several = found("fec0::9").unwrap_err().message;
        assert_eq!(several, "fec0::9: several ports have it; name one: mlx5_0/1, mlx5_1/1");
        for (text, kind) in [
            ("mlx5_2/1", FailureKind::Absent),
            ("10.0.0.4", FailureKind::Absent),
            ("fec0::4", FailureKind::Absent),
            ("ib0", FailureKind::Usage),
        ] {
            assert_eq!(found(text).unwrap_err().kind, kind, "{text}");
        }
    }
}
