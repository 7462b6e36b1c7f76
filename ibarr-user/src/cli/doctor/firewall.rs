// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Whether a rule of nftables keeps the queries of peers from the daemon.
//!
//! The rules of base chains with the hook `input` are followed for a datagram to the UDP port. A match on
//! something else than the port may or may not hold, so a rule with one decides only if it names the port.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::control::messages::Check;
use crate::regular_file::text;

/// Its name in the document.
const CHECK: &str = "firewall";

/// Chains inside chains. The kernel allows 16 (`NFT_JUMP_STACK_SIZE`).
const MAX_DEPTH: usize = 16;

/// Examines the rules of this network namespace.
pub(super) fn check(port: u16) -> Check {
    let listed = Command::new("nft").args(["-j", "list", "ruleset"]).stdin(Stdio::null()).output();
    let listed = match listed {
        Ok(output) if output.status.success() => output.stdout,
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr);
            let why = why.lines().next().unwrap_or("it failed without a message");
            return Check::skipped(CHECK, format!("nft lists no rules: {why}; run this as root"));
        }
        Err(error) if error.kind() == ErrorKind::NotFound && !has_legacy_rules() => {
            return Check::skipped(CHECK, "nft is not installed, so no rules can be read");
        }
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Check::skipped(CHECK, format!("nft cannot be started: {error}"));
        }
        Err(_) => Vec::new(),
    };
    judge(&listed, port, has_legacy_rules())
}

/// Whether iptables has written rules that nft does not see.
fn has_legacy_rules() -> bool {
    let tables = Path::new("/proc/net").join("ip_tables_names");
    text(&tables).is_some_and(|names| !names.is_empty())
}

fn judge(listed: &[u8], port: u16, has_legacy_rules: bool) -> Check {
    let remedy = format!(
        "let UDP port {port} in: firewall-cmd --permanent --add-service=ibarr && firewall-cmd --reload, or \
         nft add rule ... udp dport {port} accept"
    );
    let blocks = match serde_json::from_slice::<Value>(listed) {
        Ok(document) => Rules::of(&document).blocks(port),
        Err(_) if listed.is_empty() => Vec::new(),
        Err(error) => {
            return Check::skipped(CHECK, format!("the answer of nft is no JSON: {error}"));
        }
    };
    let certain = blocks.iter().find(|block| block.is_certain);
    match certain.or(blocks.first()) {
        Some(Block { is_certain: true, by }) => {
            let found =
                format!("{by} drops the queries of peers; only the kernel's programs answer");
            Check::fail(CHECK, found, remedy)
        }
        Some(Block { by, .. }) => {
            Check::warn(CHECK, format!("{by} drops the queries of some peers"), remedy)
        }
        None if has_legacy_rules => Check::warn(
            CHECK,
            "iptables has rules that nft does not show",
            format!("look for rules about port {port}: iptables-legacy -S"),
        ),
        None => Check::ok(
            CHECK,
            format!("no rule of nftables drops UDP port {port} (answers of programs pass no rule)"),
        ),
    }
}

/// A rule, or a policy, that drops queries.
#[derive(Debug, Eq, PartialEq)]
struct Block {
    is_certain: bool,
    by: String,
}

/// The end of a walk through a chain.
enum End {
    Accepted,
    Dropped(String),
    /// The chain has no rule that decides.
    Undecided,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Holds {
    No,
    /// It depends on the sender, the interface or the like.
    Perhaps,
    Yes,
}

/// The objects that nft lists.
struct Rules<'a>(Vec<&'a Value>);

impl<'a> Rules<'a> {
    fn of(document: &'a Value) -> Self {
        Self(document["nftables"].as_array().into_iter().flatten().collect())
    }

    /// The objects of a kind in the table that `of` is in.
    fn like(&self, kind: &'a str, of: &'a Value) -> impl Iterator<Item = &'a Value> {
        let all = self.0.iter().filter_map(move |object| object.get(kind));
        all.filter(move |it| it["family"] == of["family"] && it["table"] == of["table"])
    }

    fn blocks(&self, port: u16) -> Vec<Block> {
        let chains = self.0.iter().filter_map(|object| object.get("chain"));
        let mut blocks = Vec::new();
        for chain in chains.filter(|chain| chain["hook"] == "input") {
            let mut perhaps = None;
            match self.walk(chain, port, MAX_DEPTH, &mut perhaps) {
                End::Dropped(by) => blocks.push(Block { is_certain: true, by }),
                End::Undecided if chain["policy"] == "drop" => {
                    blocks.push(Block {
                        is_certain: true,
                        by: format!("the policy of {}", name(chain)),
                    });
                }
                End::Accepted | End::Undecided => {}
            }
            blocks.extend(perhaps.map(|by| Block { is_certain: false, by }));
        }
        blocks
    }

    /// Follows the rules of a chain. `perhaps` gets the first rule that drops queries of some peers.
    fn walk(&self, chain: &'a Value, port: u16, depth: usize, perhaps: &mut Option<String>) -> End {
        for rule in self.like("rule", chain).filter(|rule| rule["chain"] == chain["name"]) {
            let (holds, names_port) = self.holds(rule, port);
            if holds == Holds::No {
                continue;
            }
            let decides = holds == Holds::Yes || names_port;
            let end = match verdict(rule) {
                Some(Verdict::Accept) => End::Accepted,
                Some(Verdict::Drop) => End::Dropped(format!("a rule of {}", name(chain))),
                Some(Verdict::Jump(target)) if depth > 0 => {
                    let mut chains = self.like("chain", chain);
                    let Some(target) = chains.find(|it| it["name"] == *target) else { continue };
                    match self.walk(target, port, depth - 1, perhaps) {
                        // An inner chain has looked at the port.
                        End::Accepted if holds == Holds::Perhaps => return End::Accepted,
                        end => end,
                    }
                }
                Some(Verdict::Return) if decides => return End::Undecided,
                Some(Verdict::Jump(_) | Verdict::Return) | None => continue,
            };
            match end {
                End::Undecided => {}
                end if holds == Holds::Yes => return end,
                End::Accepted if names_port => return End::Accepted,
                End::Dropped(by) if names_port => *perhaps = perhaps.take().or(Some(by)),
                End::Accepted | End::Dropped(_) => {}
            }
        }
        End::Undecided
    }

    /// Whether all matches of a rule hold, and whether one of them is about the port.
    fn holds(&self, rule: &'a Value, port: u16) -> (Holds, bool) {
        let (mut all, mut names_port) = (Holds::Yes, false);
        for part in rule["expr"].as_array().into_iter().flatten() {
            let holds = match part.get("match") {
                Some(condition) => self.condition(rule, condition, port),
                // A match that nft cannot show, of iptables.
                None if part["xt"]["type"] == "match" => Holds::Perhaps,
                None if part.get("vmap").is_some() => Holds::Perhaps,
                None => continue,
            };
            match holds {
                Holds::No => return (Holds::No, names_port),
                Holds::Perhaps => all = Holds::Perhaps,
                Holds::Yes => names_port |= is_of_port(part),
            }
        }
        (all, names_port)
    }

    fn condition(&self, rule: &'a Value, condition: &'a Value, port: u16) -> Holds {
        let (left, right) = (&condition["left"], &condition["right"]);
        let is_negated = condition["op"] == "!=";
        let known = if left["payload"]["field"] == "dport" {
            let protocol = &left["payload"]["protocol"];
            match protocol.as_str() {
                Some("udp" | "th") => Some(self.contains(rule, right, port)),
                _ => Some(false),
            }
        } else if left["meta"]["key"] == "l4proto" || left["payload"]["field"] == "protocol" {
            Some(is_udp(right))
        } else {
            None
        };
        match known {
            None => Holds::Perhaps,
            Some(holds) if holds != is_negated => Holds::Yes,
            Some(_) => Holds::No,
        }
    }

    fn contains(&self, rule: &'a Value, right: &'a Value, port: u16) -> bool {
        let port_of = |value: &Value| value.as_u64().and_then(|port| u16::try_from(port).ok());
        if let Some(set) = right.as_str().and_then(|name| name.strip_prefix('@')) {
            let set = self.like("set", rule).find(|it| it["name"] == *set);
            let elements = set.and_then(|set| set["elem"].as_array());
            return elements.into_iter().flatten().any(|one| self.contains(rule, one, port));
        }
        if let Some(set) = right["set"].as_array() {
            return set.iter().any(|one| self.contains(rule, one, port));
        }
        if let Some([first, last]) = right["range"].as_array().map(Vec::as_slice) {
            let (first, last) = (port_of(first), port_of(last));
            return first.is_some_and(|it| it <= port) && last.is_some_and(|it| port <= it);
        }
        // An element with a time-out or a comment.
        let right = right["elem"].get("val").unwrap_or(right);
        port_of(right) == Some(port)
    }
}

/// nft writes a protocol by its name or by its number.
fn is_udp(right: &Value) -> bool {
    let is_it = |one: &Value| *one == "udp" || *one == 17;
    is_it(right) || right["set"].as_array().is_some_and(|set| set.iter().any(is_it))
}

enum Verdict<'a> {
    Accept,
    Drop,
    Jump(&'a str),
    Return,
}

/// What a rule does with a packet; `None` if it goes on with the next rule.
fn verdict(rule: &Value) -> Option<Verdict<'_>> {
    rule["expr"].as_array()?.iter().find_map(|part| {
        if part.get("accept").is_some() {
            return Some(Verdict::Accept);
        }
        if part.get("drop").is_some() || part.get("reject").is_some() {
            return Some(Verdict::Drop);
        }
        if part.get("return").is_some() {
            return Some(Verdict::Return);
        }
        if part["xt"]["type"] == "target" {
            let is_drop = part["xt"]["name"] == "REJECT" || part["xt"]["name"] == "DROP";
            return is_drop.then_some(Verdict::Drop);
        }
        let target = part["jump"].get("target").or(part["goto"].get("target"))?;
        Some(Verdict::Jump(target.as_str()?))
    })
}

fn is_of_port(part: &Value) -> bool {
    part["match"]["left"]["payload"]["field"] == "dport"
}

fn name(chain: &Value) -> String {
    let part = |key: &str| chain[key].as_str().unwrap_or("?").to_owned();
    format!("nftables' chain {} {} {}", part("family"), part("table"), part("name"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::messages::CheckState;

    /// As nft 1.0.6 listed five tables that were made for it.
    const LISTED: &str = include_str!("../../../tests/golden/nftables.json");

    /// The listing without all tables but one.
    fn only(table: &str) -> Vec<u8> {
        let mut document: Value = serde_json::from_str(LISTED).unwrap();
        let objects = document["nftables"].as_array_mut().unwrap();
        objects
            .retain(|object| object.as_object().unwrap().values().any(|it| it["table"] == *table));
        assert!(!objects.is_empty());
        document.to_string().into_bytes()
    }

    fn state(listed: &[u8], port: u16) -> (CheckState, String) {
        let check = judge(listed, port, false);
        (check.state, check.found)
    }

    #[test]
    fn accepted_port_is_found_in_sets_and_ranges() {
        assert_eq!(state(&only("strict"), 4791).0, CheckState::Ok);
        assert_eq!(state(&only("strict"), 53).0, CheckState::Ok);
    }

    #[test]
    fn policy_that_drops_other_ports_is_named() {
        let (state, found) = state(&only("strict"), 5001);
        assert_eq!(state, CheckState::Fail);
        assert!(found.contains("the policy of nftables' chain inet strict input"), "{found}");
    }

    #[test]
    fn rule_that_drops_the_port_is_found_behind_a_jump() {
        let (state, found) = state(&only("closed"), 4791);
        assert_eq!(state, CheckState::Fail);
        assert!(found.contains("a rule of nftables' chain inet closed rules"), "{found}");
    }

    #[test]
    fn rule_that_rejects_all_the_rest_is_named() {
        let (open, _) = state(&only("closed"), 53);
        assert_eq!(open, CheckState::Ok);
        let (shut, found) = state(&only("closed"), 4790);
        assert_eq!(shut, CheckState::Fail);
        assert!(found.contains("a rule of nftables' chain inet closed input"), "{found}");
    }

    #[test]
    fn rule_of_iptables_that_rejects_the_port_is_named() {
        let (state, found) = state(&only("filter"), 4791);
        assert_eq!(state, CheckState::Fail);
        assert!(found.contains("ip filter INPUT"), "{found}");
    }

    #[test]
    fn rules_for_sent_packets_do_not_matter() {
        assert_eq!(state(&only("out"), 4791).0, CheckState::Ok);
        assert_eq!(state(b"{\"nftables\": []}", 4791).0, CheckState::Ok);
    }

    #[test]
    fn rule_about_some_senders_is_a_warning() {
        let mut document: Value = serde_json::from_slice(&only("closed")).unwrap();
        for object in document["nftables"].as_array_mut().unwrap() {
            if object["rule"]["handle"] == 8 {
                let sender = serde_json::json!({"match": {"op": "==", "left": {"payload":
                    {"protocol": "ip", "field": "saddr"}}, "right": "10.0.0.1"}});
                object["rule"]["expr"].as_array_mut().unwrap().insert(0, sender);
            }
            if object["rule"]["handle"] == 6 {
                object["rule"]["expr"] = serde_json::json!([{ "accept": null }]);
            }
        }
        let (state, found) = state(document.to_string().as_bytes(), 4791);
        assert_eq!(state, CheckState::Warn);
        assert!(found.ends_with("drops the queries of some peers"), "{found}");
    }

    #[test]
    fn rules_that_nft_does_not_show_are_a_warning() {
        assert_eq!(judge(b"{\"nftables\": []}", 4791, true).state, CheckState::Warn);
        assert_eq!(judge(b"no JSON", 4791, false).state, CheckState::Skipped);
    }

    #[test]
    fn chains_that_jump_in_a_circle_have_an_end() {
        let listed = r#"{"nftables": [
            {"chain": {"family": "ip", "table": "t", "name": "a", "hook": "input", "policy": "accept"}},
            {"rule": {"family": "ip", "table": "t", "chain": "a", "expr": [{"jump": {"target": "a"}}]}}]}"#;
        assert_eq!(state(listed.as_bytes(), 4791).0, CheckState::Ok);
    }
}
