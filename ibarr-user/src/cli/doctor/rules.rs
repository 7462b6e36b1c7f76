// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Which rule of nftables may have dropped a datagram that a probe has missed.
//!
//! It does not judge: the probe has. So neither the order of rules nor their jumps matter, and each rule that drops
//! packets in a hook on the way of the datagram, and does not spare it, is a suspect.

use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use ipnet::IpNet;

use crate::regular_file::text;

/// A datagram of the ip2gid port that was not seen where it should be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub(super) way: Way,
    pub(super) kind: Kind,
    pub(super) port: u16,
    pub(super) peer: Option<IpAddr>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Way {
    In,
    Out,
}

/// Which of its ports is the ip2gid port: that of its destination, or that of its source.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Query,
    Reply,
}

/// The likeliest rules, each for people, and what to do.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Suspects {
    pub(super) rules: Vec<String>,
    pub(super) remedy: String,
}

/// Asks nft for the rules of this network namespace.
pub(super) fn suspects(lost: Lost) -> Suspects {
    let listed = Command::new("nft")
        .args(["-nn", "-a", "list", "ruleset"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let listed = listed.ok().filter(|output| output.status.success());
    let Some(listed) = listed else {
        let remedy = "no rule can be named: run this as root, where nft is installed; iptables-save lists rules, too";
        return Suspects { rules: Vec::new(), remedy: remedy.to_owned() };
    };
    let rules = likeliest(&String::from_utf8_lossy(&listed.stdout), lost);
    let port = lost.port;
    // iptables may have written rules that nft does not see.
    let tables = text(&Path::new("/proc/net").join("ip_tables_names")).unwrap_or_default();
    let remedy = match rules.is_empty() {
        true if tables.is_empty() => "nft list ruleset shows no rule that would drop it".to_owned(),
        true => format!("nft does not show all rules: iptables-legacy -S | grep {port}"),
        false => format!(
            "let UDP port {port} through: firewall-cmd --permanent --add-service=ibarr && firewall-cmd --reload, \
             or nft insert rule … udp {} {port} accept",
            lost.field()
        ),
    };
    Suspects { rules, remedy }
}

/// How likely it is that a rule has dropped the datagram, the likeliest first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Likelihood {
    /// It names the port or the peer.
    Named,
    /// It drops all that comes to it.
    All,
    /// It depends on something else.
    Perhaps,
}

/// A chain that is read.
struct Chain<'a> {
    name: String,
    /// `None`: other chains call it.
    hook: Option<&'a str>,
    drops: Vec<(Likelihood, String)>,
    /// Whether a rule lets such datagrams through, so that it drops the rest by intention.
    accepts: bool,
}

/// The likeliest rules in the output of nft, at most three.
fn likeliest(listed: &str, lost: Lost) -> Vec<String> {
    let mut found = Vec::new();
    let (mut table, mut chain) = ("", None::<Chain<'_>>);
    for line in listed.lines() {
        let rule = line.rsplit_once(" # handle ").map_or(line, |(rule, _)| rule).trim();
        let words: Vec<_> = rule.split([' ', ',', ';']).filter(|word| !word.is_empty()).collect();
        match (&mut chain, &words[..]) {
            (_, ["table", ..]) => table = rule.trim_start_matches("table ").trim_end_matches(" {"),
            (_, ["chain", name, ..]) => {
                let name = format!("{table} {name}");
                chain = Some(Chain { name, hook: None, drops: Vec::new(), accepts: false });
            }
            (Some(_), ["}"]) => {
                let Some(Chain { name, hook, drops, accepts }) = chain.take() else { continue };
                if lost.passes(table, hook) {
                    let drops =
                        drops.into_iter().filter(|(how, _)| *how == Likelihood::Named || !accepts);
                    found.extend(
                        drops.map(|(how, rule)| (how, format!("nftables' chain {name}: {rule}"))),
                    );
                }
            }
            (Some(chain), ["type", _, "hook", hook, .., policy]) => {
                chain.hook = Some(hook);
                if *policy == "drop" {
                    chain.drops.push((Likelihood::All, "policy drop".to_owned()));
                }
            }
            (Some(chain), words) => {
                let is = |verdicts: &[&str]| words.iter().any(|word| verdicts.contains(word));
                match lost.likelihood(words) {
                    Some(how) if is(&["drop", "reject", "\"REJECT\"", "\"DROP\""]) => {
                        chain.drops.push((how, rule.to_owned()));
                    }
                    Some(Likelihood::Named) => chain.accepts |= is(&["accept"]),
                    _ => {}
                }
            }
            (None, _) => {}
        }
    }
    found.sort();
    let best = found.first().map(|(how, _)| *how);
    found.into_iter().filter(|(how, _)| Some(*how) == best).map(|(_, rule)| rule).take(3).collect()
}

impl Lost {
    /// The field of the UDP header that has the ip2gid port.
    fn field(self) -> &'static str {
        match self.kind {
            Kind::Query => "dport",
            Kind::Reply => "sport",
        }
    }

    /// Whether such a datagram may come to a chain.
    fn passes(self, table: &str, hook: Option<&str>) -> bool {
        let is_ip = match table.split(' ').next() {
            Some("ip") => self.peer.is_none_or(|peer| peer.is_ipv4()),
            Some("ip6") => self.peer.is_none_or(|peer| peer.is_ipv6()),
            family => matches!(family, Some("inet" | "netdev")),
        };
        is_ip
            && match hook {
                None => true,
                Some("ingress" | "prerouting" | "input") => self.way == Way::In,
                Some("output" | "postrouting" | "egress") => self.way == Way::Out,
                Some(_) => false,
            }
    }

    /// How likely it is that the conditions of a rule hold; `None` if one does not.
    fn likelihood(self, rule: &[&str]) -> Option<Likelihood> {
        let (mut is_named, mut is_sure) = (false, true);
        for (at, &field) in rule.iter().enumerate() {
            is_sure &= !matches!(
                field,
                "iifname" | "oifname" | "iif" | "oif" | "ct" | "mark" | "xt" | "limit" | "tcp"
            );
            if !matches!(field, "dport" | "sport" | "saddr" | "daddr") {
                continue;
            }
            let values = &rule[at + 1..];
            let is_negated = values.first() == Some(&"!=");
            match self.is_among(field, &values[usize::from(is_negated)..]) {
                Some(_) if field.ends_with("port") && rule[..at].last() == Some(&"tcp") => {
                    return None;
                }
                Some(holds) if holds == is_negated => return None,
                Some(_) => is_named = true,
                None => is_sure = false,
            }
        }
        Some(match (is_named, is_sure) {
            (true, _) => Likelihood::Named,
            (false, true) => Likelihood::All,
            (false, false) => Likelihood::Perhaps,
        })
    }

    /// Whether the value of a field is among these, if that is known.
    fn is_among(self, field: &str, values: &[&str]) -> Option<bool> {
        let is_of_peer = (field == "saddr") == (self.way == Way::In) && field.ends_with("addr");
        let peer = self.peer.filter(|_| is_of_peer);
        // The other port is any but this one.
        if field.ends_with("port") && field != self.field() {
            return (values.first() == Some(&self.port.to_string().as_str())).then_some(false);
        }
        if field != self.field() && peer.is_none() {
            return None;
        }
        let is_it = |value: &str| {
            if let Some(peer) = peer {
                let is_in = |net: IpNet| net.contains(&peer);
                return value.parse() == Ok(peer) || value.parse().is_ok_and(is_in);
            }
            let (first, last) = value.split_once('-').unwrap_or((value, value));
            let bounds = (first.parse(), last.parse());
            matches!(bounds, (Ok(first), Ok(last)) if (first..=last).contains(&self.port))
        };
        match values {
            [set, ..] if set.starts_with('@') => None,
            // A map of verdicts: only what is dropped counts.
            ["vmap", "{", elements @ ..] => Some(
                elements.windows(3).any(|one| matches!(one, [value, ":", "drop"] if is_it(value))),
            ),
            ["{", elements @ ..] => {
                Some(elements.iter().take_while(|word| **word != "}").any(|value| is_it(value)))
            }
            [value, ..] => Some(is_it(value)),
            [] => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = include_str!("../../../tests/golden/nftables.txt");

    const QUERY: Lost = Lost { way: Way::In, kind: Kind::Query, port: 4791, peer: None };

    /// What is named if there is only this table.
    fn of_table(name: &str, lost: Lost) -> String {
        let (_, text) = LISTED.split_once(&format!("table {name} {{")).unwrap();
        let (text, _) = text.split_once("\n}").unwrap();
        likeliest(&format!("table {name} {{{text}\n}}"), lost).join("; ")
    }

    #[test]
    fn table_that_lets_the_port_through_is_no_suspect() {
        assert_eq!(of_table("inet strict", QUERY), "", "the port is in a range");
        let found = of_table("inet strict", Lost { port: 5001, ..QUERY });
        assert_eq!(found, "nftables' chain inet strict input: policy drop");
    }

    #[test]
    fn rule_that_names_the_port_is_shown_wherever_it_stands() {
        let found = of_table("inet closed", QUERY);
        let rule = "udp dport 4791 counter packets 0 bytes 0 drop";
        assert_eq!(found, format!("nftables' chain inet closed rules: {rule}"));
        assert!(of_table("ip filter", QUERY).starts_with("nftables' chain ip filter INPUT: udp"));
        let found = of_table("inet closed", Lost { port: 4790, ..QUERY });
        assert_eq!(found, "nftables' chain inet closed input: reject with icmpx 3");
        let found = of_table("inet m", Lost { port: 5001, ..QUERY });
        assert!(found.contains("udp dport vmap { 53 : accept, 5001 : drop }"), "{found}");
    }

    #[test]
    fn only_rules_on_the_way_of_the_datagram_are_suspects() {
        assert_eq!(of_table("ip out", QUERY), "");
        let out = Lost { way: Way::Out, ..QUERY };
        assert_eq!(of_table("ip out", out), "nftables' chain ip out output: udp dport 4791 drop");
        assert_eq!(of_table("ip out", Lost { kind: Kind::Reply, ..out }), "");
        assert_eq!(of_table("ip out", Lost { peer: Some("fd00::1".parse().unwrap()), ..out }), "");
        assert_eq!(likeliest("", QUERY), [""; 0]);
    }

    #[test]
    fn rule_about_the_peer_is_found_and_one_about_another_is_not() {
        let to = |peer: [u8; 4]| Lost { way: Way::Out, peer: Some(peer.into()), ..QUERY };
        assert!(of_table("netdev n", to([10, 0, 0, 9])).ends_with("ip daddr 10.0.0.0/24 drop"));
        assert_eq!(of_table("netdev n", to([10, 0, 1, 9])), "");
    }
}
