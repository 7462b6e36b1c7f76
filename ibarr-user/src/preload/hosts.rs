// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! GIDs of names and addresses, in ibacm's format `acm_hosts`: a line has a name or an address, then a GID. What
//! follows is ignored, and so are lines that begin with `#`.

use std::io::{self, BufRead};
use std::path::Path;

use ibarr_common::ib::Gid;
use ibarr_common::wire::acm::{Address, Name};
use ibarr_proto::acm::Hosts;
use ibarr_proto::ip2gid::Question;

use super::{Report, lines, open};

/// Reads a file.
///
/// # Errors
/// It is no regular file, or cannot be read.
pub fn read(path: &Path) -> io::Result<(Hosts, Report)> {
    parse(open(path)?, Report::new(path))
}

/// Reads lines.
///
/// # Errors
/// Those of `reader`.
pub fn parse(reader: impl BufRead, mut report: Report) -> io::Result<(Hosts, Report)> {
    let (mut entries, mut numbers) = (Vec::new(), Vec::new());
    let mut too_many = 0_u64;
    lines(reader, |number, text| match entry(text) {
        Ok(_) if entries.len() == Hosts::MAX => too_many += 1,
        Ok(entry) => {
            entries.push(entry);
            numbers.push(number);
        }
        Err(reason) => report.add(number, || reason),
    })?;
    if too_many > 0 {
        let most = Hosts::MAX;
        report.notes.push(format!("{too_many} lines are not used: at most {most} hosts are kept"));
    }
    let (hosts, overruled) = Hosts::new(&entries);
    for place in overruled {
        let number = numbers.get(place).copied().unwrap_or_default();
        let (Address::Name(_) | Address::Ip(_), gid) = entries[place];
        report.add(number, || {
            format!("{gid} is overruled by a later line for the same host; remove one")
        });
    }
    report.mistakes.sort_by_key(|mistake| mistake.line);
    report.entries = hosts.len();
    Ok((hosts, report))
}

fn entry(text: &str) -> Result<(Address, Gid), String> {
    let mut words = text.split_whitespace();
    let (Some(host), Some(gid)) = (words.next(), words.next()) else {
        return Err("write a name or an address, then its GID".to_owned());
    };
    let gid = gid.parse().map_err(|error| format!("{gid:?}: {error}"))?;
    let address = match host.parse() {
        Ok(ip) if Question::new(ip, None).is_some() => Address::Ip(ip),
        Ok(ip) => return Err(format!("{ip}: no interface can have this address")),
        Err(_) => {
            let name = Name::new(host);
            Address::Name(name.ok_or_else(|| format!("{host:?}: a name has at most 64 bytes"))?)
        }
    };
    Ok((address, gid))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_line_of_any_file_is_used_or_named(
            text in "([a-z0-9.:#]{0,9}[ \t]?([a-f0-9:]{2,9})?\n){0,9}",
            bytes: Vec<u8>,
        ) {
            for bytes in [text.as_bytes(), &bytes] {
                let (hosts, report) = parse(bytes, Report::new(Path::new("f"))).unwrap();
                let lines = bytes.split(|&byte| byte == b'\n').count();
                prop_assert!(hosts.len() as u64 + report.bad_lines <= lines as u64);
                prop_assert_eq!(hosts.len(), report.entries);
            }
        }
    }

    fn read(text: &str) -> (Hosts, Report) {
        parse(text.as_bytes(), Report::new(Path::new("hosts"))).unwrap()
    }

    #[test]
    fn names_and_addresses_of_both_families_are_read() {
        let text = "# address gid\nnode1 fe80::1\n10.2.0.5\tfe80::5  node5\nfd00::5 fe80::5\n";
        let (hosts, report) = read(text);
        assert_eq!((report.entries, report.bad_lines), (3, 0));
        for (host, gid) in [("10.2.0.5", "fe80::5"), ("fd00::5", "fe80::5")] {
            let address = Address::Ip(host.parse().unwrap());
            assert_eq!(hosts.gid_of(&address), Some(gid.parse().unwrap()));
        }
        let name = Address::Name(Name::new("NODE1").unwrap());
        assert_eq!(hosts.gid_of(&name), Some("fe80::1".parse().unwrap()));
    }

    #[test]
    fn every_bad_line_is_named_and_the_others_are_used() {
        let long = "n".repeat(65);
        let text = format!(
            "node1\nnode2 10.0.0.1\nnode3 ff02::1\n224.0.0.1 fe80::1\n{long} fe80::1\nnode4 fe80::4\n\
             node4 fe80::5\n"
        );
        let (hosts, report) = read(&text);
        assert_eq!(hosts.len(), 1);
        let expected = [
            "hosts:1: write a name or an address, then its GID".to_owned(),
            "hosts:2: \"10.0.0.1\": not a GID: write it like fe80::2:c903:0:201".to_owned(),
            "hosts:3: \"ff02::1\": the zero GID and multicast GIDs do not name a port".to_owned(),
            "hosts:4: 224.0.0.1: no interface can have this address".to_owned(),
            format!("hosts:5: \"{long}\": a name has at most 64 bytes"),
            "hosts:6: fe80::4 is overruled by a later line for the same host; remove one"
                .to_owned(),
        ];
        assert_eq!(report.problems().collect::<Vec<_>>(), expected);
    }
}
