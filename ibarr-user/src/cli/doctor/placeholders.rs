// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Replaces names and addresses by placeholders, each always by the same one, so that a report can be shown to strangers
//! and still says what is equal.
//!
//! `ipv4-1`; `host-1`; `mac-1`; `id-1` for the lower half of a GID or IPv6 address and for a GUID, so that a GID is
//! recognised as that of a port; `net-1::id-1` if its upper half is not that of link-local addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::Value;

/// What was replaced so far.
#[derive(Default)]
pub(super) struct Placeholders {
    /// Names of hosts and domains, in lower case.
    names: BTreeSet<String>,
    /// By kind, such as `ipv4`, what has which number.
    known: BTreeMap<&'static str, BTreeMap<String, usize>>,
}

impl Placeholders {
    /// Replaces this name from now on, and each name below it, as a domain has them.
    pub(super) fn hide(&mut self, name: &str) {
        let name = name.trim_matches('.').to_lowercase();
        let is_plain =
            ["localhost", "localdomain", "local", "none", "(none)"].contains(&name.as_str());
        if !name.is_empty() && !is_plain && self.of(&name, false).is_none() {
            self.names.insert(name);
        }
    }

    /// A text without names and addresses.
    pub(super) fn replace(&mut self, text: &str) -> String {
        let is_inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '-' | '_');
        let mut replaced = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find(is_inside) {
            replaced.push_str(&rest[..start]);
            let end = rest[start..].find(|c| !is_inside(c)).map_or(rest.len(), |len| start + len);
            self.word(&rest[start..end], &mut replaced);
            rest = &rest[end..];
        }
        replaced.push_str(rest);
        replaced
    }

    /// A document without names and addresses, in its keys, too.
    pub(super) fn replace_in(&mut self, document: &Value) -> Value {
        match document {
            Value::String(text) => self.replace(text).into(),
            Value::Array(values) => values.iter().map(|value| self.replace_in(value)).collect(),
            Value::Object(fields) => {
                let mut of =
                    |(name, value): (&String, &Value)| (self.replace(name), self.replace_in(value));
                Value::Object(fields.iter().map(&mut of).collect())
            }
            other => other.clone(),
        }
    }

    /// A word as a whole, or its parts, such as an address and a port.
    fn word(&mut self, word: &str, replaced: &mut String) {
        /// No name or address is longer, and the parts of a longer word take too long.
        const LONGEST: usize = 256;
        if word.len() > LONGEST {
            return replaced.push_str("(a long word)");
        }
        if let Some(placeholder) = self.of(word, true) {
            return replaced.push_str(&placeholder);
        }
        for mark in [".", ":", "-", "_"] {
            // At the end of a sentence first: it may follow an address that has the mark inside.
            if let Some(before) = word.strip_suffix(mark)
                && let Some(placeholder) = self.of(before, true)
            {
                replaced.push_str(&placeholder);
                return replaced.push_str(mark);
            }
        }
        match word.rfind([':', '-', '_']) {
            Some(at) => {
                self.word(&word[..at], replaced);
                replaced.push_str(&word[at..=at]);
                self.word(&word[at + 1..], replaced);
            }
            None => replaced.push_str(word),
        }
    }

    /// The placeholder of a name or address. Without `with_names`, only of an address.
    fn of(&mut self, word: &str, with_names: bool) -> Option<String> {
        if let Ok(ip) = word.parse::<IpAddr>() {
            return Some(match ip {
                IpAddr::V4(v4) if is_common_v4(v4) => word.to_owned(),
                IpAddr::V4(_) => self.number("ipv4", word),
                IpAddr::V6(v6) => self.v6(v6, word),
            });
        }
        let octets: Vec<&str> = word.split([':', '-']).collect();
        let is_hex =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_of = |len: usize| octets.iter().all(|group| group.len() == len && is_hex(group));
        let (digits, is_number) =
            word.strip_prefix("0x").map_or((word, false), |digits| (digits, true));
        let address = match octets.len() {
            // Of IPoIB: four octets, and a GID.
            20 if is_of(2) => self.bare(&octets[4..].concat()).map(|gid| format!("mac-of-{gid}")),
            6 if is_of(2) => self.bare(&octets.concat()),
            // A GUID as sysfs and the tools of InfiniBand write it.
            4 if is_of(4) => self.bare(&octets.concat()),
            // A decimal number may be a count.
            1 if is_hex(digits)
                && (is_number || !digits.bytes().all(|byte| byte.is_ascii_digit())) =>
            {
                self.bare(digits)
            }
            _ => None,
        };
        if address.is_some() {
            return address;
        }
        let name = word.to_lowercase();
        let is_known = |known: &String| {
            name == *known
                || name.strip_suffix(known.as_str()).is_some_and(|host| host.ends_with('.'))
        };
        (with_names && self.names.iter().any(is_known)).then(|| self.number("host", &name))
    }

    /// Hexadecimal digits without a separator.
    fn bare(&mut self, digits: &str) -> Option<String> {
        match digits.len() {
            12 => Some(self.number("mac", digits)),
            16 => u64::from_str_radix(digits, 16).ok().map(|id| self.id(id)),
            32 => {
                let bits = u128::from_str_radix(digits, 16).ok()?;
                Some(self.v6(bits.into(), digits))
            }
            40 => self.bare(&digits[8..]),
            _ => None,
        }
    }

    fn v6(&mut self, v6: Ipv6Addr, text: &str) -> String {
        /// Of link-local addresses, and of a subnet that has no other prefix.
        const COMMON: u128 = 0xfe80 << 112;
        let bits = v6.to_bits();
        if v6.is_unspecified() || v6.is_loopback() || v6.is_multicast() || bits == COMMON {
            return text.to_owned();
        }
        let low = u64::try_from(bits & u128::from(u64::MAX)).unwrap_or_default();
        let prefix = bits >> 64 << 64;
        let net = match prefix {
            COMMON => "fe80".to_owned(),
            prefix => self.number("net", &prefix.to_string()),
        };
        format!("{net}::{}", self.id(low))
    }

    fn id(&mut self, id: u64) -> String {
        if id == 0 { "0".to_owned() } else { self.number("id", &id.to_string()) }
    }

    fn number(&mut self, kind: &'static str, of: &str) -> String {
        let known = self.known.entry(kind).or_default();
        let next = known.len() + 1;
        format!("{kind}-{}", known.entry(of.to_lowercase()).or_insert(next))
    }
}

/// An address or mask that many machines have.
fn is_common_v4(v4: Ipv4Addr) -> bool {
    v4.is_loopback() || v4.is_unspecified() || v4.octets()[0] == 255
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(text: &str) -> String {
        let mut placeholders = Placeholders::default();
        for name in ["secret-host", "Node7.cluster.example.org", "corp.example"] {
            placeholders.hide(name);
        }
        placeholders.replace(text)
    }

    #[test]
    fn each_name_and_address_has_one_placeholder_everywhere() {
        for (text, expected) in [
            ("10.1.2.3 and 10.1.2.4, 10.1.2.3.", "ipv4-1 and ipv4-2, ipv4-1."),
            (
                "10.1.2.3:4791 (10.1.0.0/16) 10.1.2.3-10.1.2.9",
                "ipv4-1:4791 (ipv4-2/16) ipv4-1-ipv4-3",
            ),
            (
                "127.0.0.1 0.0.0.0 255.255.255.0 :: ::1 ff02::1 fe80::/64",
                "127.0.0.1 0.0.0.0 255.255.255.0 :: ::1 ff02::1 fe80::/64",
            ),
            ("fe80::2:c903:0:201 is 0x0002c90300000201", "fe80::id-1 is id-1"),
            ("fec0:0:0:1:0002:c903:0000:0201: of 0002:c903:0000:0201", "net-1::id-1: of id-1"),
            ("[2001:db8::5]:4791, 2001:db8::6%ib0", "[net-1::id-1]:4791, net-1::id-2%ib0"),
            ("fe800000000000000002c90300000201", "fe80::id-1"),
            (
                "80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:00:02:01 fe80::2:c903:0:201",
                "mac-of-fe80::id-1 fe80::id-1",
            ),
            ("52:54:00:ab:cd:ef, 52-54-00-AB-CD-EF 525400abcdef", "mac-1, mac-1 mac-1"),
            (
                "secret-host:4791 SECRET-HOST login.corp.example, corp.example",
                "host-1:4791 host-1 host-2, host-3",
            ),
            ("node7.cluster.example.org: up", "host-1: up"),
        ] {
            assert_eq!(replaced(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_name_and_no_address_stays() {
        let text = "mlx5_0/1 400 Gb/sec (4X NDR), LID 0x0012, P_Key 0xffff, Linux 6.1.0-32-amd64, 1234567890123456 ns, \
                    2026-11-26T10:00:00, fw 20.39.3004, ib0.8001, 4: ACTIVE, add, dead:beef";
        assert_eq!(replaced(text), text);
    }

    #[test]
    fn word_that_is_longer_than_any_name_is_left_out() {
        assert_eq!(replaced(&format!("a {} b", "10.0.0.1:".repeat(9999))), "a (a long word) b");
    }

    #[test]
    fn keys_and_escaped_texts_of_a_document_are_replaced() {
        let document = serde_json::json!({"addresses": {"10.0.0.1": "fe80::1"}, "why": "first\n10.0.0.1\tsecret-host"});
        let mut placeholders = Placeholders::default();
        placeholders.hide("secret-host");
        let expected = serde_json::json!({"addresses": {"ipv4-1": "fe80::id-1"}, "why": "first\nipv4-1\thost-1"});
        assert_eq!(placeholders.replace_in(&document), expected);
    }
}
