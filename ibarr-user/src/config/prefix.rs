// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Prefixes of addresses in the configuration, and what to write instead of a wrong one.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

/// A prefix as administrators write it: `ADDRESS/LENGTH`, or an address alone for a prefix of one
/// address.
#[derive(Debug)]
pub(super) struct Prefix(pub(super) IpNet);

impl FromStr for Prefix {
    type Err = String;

    /// The error says what to write instead.
    fn from_str(text: &str) -> Result<Self, String> {
        let not_a_prefix =
            || format!("`{text}` is not a prefix, write it like 10.0.0.0/8 or fd00:2::/64");
        let (address, len) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let address: IpAddr = address.parse().map_err(|_| not_a_prefix())?;
        let bits = IpNet::from(address).max_prefix_len();
        let len = match len {
            None => bits,
            // `u8::from_str` would accept a sign.
            Some(len) if len.bytes().all(|byte| byte.is_ascii_digit()) => {
                len.parse().map_err(|_| not_a_prefix())?
            }
            Some(_) => return Err(not_a_prefix()),
        };
        if let IpAddr::V6(mapped) = address
            && let Some(plain) = mapped.to_ipv4_mapped()
        {
            let len = len.saturating_sub(96);
            return Err(format!("an IPv4-mapped prefix matches nothing, write {plain}/{len}"));
        }
        let prefix = IpNet::new(address, len).map_err(|_| {
            format!(
                "{address}/{len}: an address of this kind has only {bits} bits, write {address}/{bits}"
            )
        })?;
        let network = prefix.trunc();
        if network != prefix {
            return Err(format!(
                "{prefix} has bits set after the prefix, write {network}, or {address} for that address alone"
            ));
        }
        Ok(Self(prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_alone_is_a_prefix_of_one_address() {
        for (text, prefix) in [("10.0.0.1", "10.0.0.1/32"), ("fd00::1", "fd00::1/128")] {
            assert_eq!(text.parse::<Prefix>().unwrap().0.to_string(), prefix);
        }
        assert_eq!("10.0.0.0/8".parse::<Prefix>().unwrap().0.to_string(), "10.0.0.0/8");
    }

    #[test]
    fn errors_name_the_remedy() {
        let cases = [
            (
                "10.0.0.1/8",
                "10.0.0.1/8 has bits set after the prefix, write 10.0.0.0/8, or 10.0.0.1 for that address alone",
            ),
            (
                "10.0.0.0/33",
                "10.0.0.0/33: an address of this kind has only 32 bits, write 10.0.0.0/32",
            ),
            (
                "fd00::/129",
                "fd00::/129: an address of this kind has only 128 bits, write fd00::/128",
            ),
            ("::ffff:10.0.0.0/104", "an IPv4-mapped prefix matches nothing, write 10.0.0.0/8"),
            ("ten", "`ten` is not a prefix, write it like 10.0.0.0/8 or fd00:2::/64"),
            (
                "10.0.0.0/+8",
                "`10.0.0.0/+8` is not a prefix, write it like 10.0.0.0/8 or fd00:2::/64",
            ),
            ("10.0.0.0/", "`10.0.0.0/` is not a prefix, write it like 10.0.0.0/8 or fd00:2::/64"),
        ];
        for (text, message) in cases {
            assert_eq!(text.parse::<Prefix>().unwrap_err(), message);
        }
    }
}
