// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The table `[acm]`.

use std::num::NonZeroU16;
use std::path::PathBuf;

use super::reader::{Table, Value, file};

/// Whether and where clients of ACM are answered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Acm {
    pub serve: Serve,
    /// The socket that `ib_acme` uses. librdmacm uses a link beside it.
    pub socket: PathBuf,
    /// The port of 127.0.0.1 where they are answered, too.
    pub tcp_port: Option<NonZeroU16>,
    /// A file that lists the GID of each name or address.
    pub hosts: Option<PathBuf>,
    /// A file of paths.
    pub routes: Option<PathBuf>,
}

ibarr_common::words! {
    /// Which clients of ACM are answered.
    Serve {
        /// None.
        Off = "off",
        /// `ib_acme`, and other programs that use its socket.
        Tools = "tools",
        /// Also librdmacm, and so applications.
        Full = "full",
    }
}

impl Default for Acm {
    fn default() -> Self {
        let socket = "/run/ibacm-unix.sock".into();
        Self { serve: Serve::Off, socket, tcp_port: None, hosts: None, routes: None }
    }
}

impl Acm {
    pub(super) fn read(root: &mut Table<'_, '_>) -> Self {
        let default = Self::default();
        root.table("acm", |table| Self {
            serve: table
                .value("serve", default.serve, |value| value.word(Serve::Tools, &Serve::ALL)),
            socket: table.value("socket", default.socket, |value| {
                file(value)?
                    .ok_or_else(|| "is \"\"; write serve = \"off\" for no socket".to_owned())
            }),
            tcp_port: table.value("tcp-port", default.tcp_port, tcp_port),
            hosts: table.value("hosts", default.hosts, file),
            routes: table.value("routes", default.routes, file),
        })
    }
}

fn tcp_port(value: Value<'_>) -> Result<Option<NonZeroU16>, String> {
    value.number(0..=u16::MAX).map(NonZeroU16::new).map_err(|must| {
        format!(
            "{must}: a port of 127.0.0.1, because other machines are not answered, or 0 for none"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::reader::{Source, read};
    use super::*;

    fn parse(text: &str) -> Result<Acm, String> {
        let source = Source { name: "f".to_owned(), text: text.to_owned() };
        read(&[source], Acm::read).map(|(acm, _)| acm).map_err(|mistakes| mistakes[0].to_string())
    }

    #[test]
    fn table_says_who_is_answered_and_where() {
        assert_eq!(parse(""), Ok(Acm::default()));
        let acm = parse("[acm]\nserve = \"full\"\nsocket = \"/run/acm.sock\"\n").unwrap();
        assert_eq!((acm.serve, acm.socket), (Serve::Full, "/run/acm.sock".into()));
        let mistake = parse("[acm]\nserve = \"on\"\n").unwrap_err();
        assert_eq!(mistake, "f:2:9: acm.serve is \"on\"; it can be \"off\", \"tools\" or \"full\"");
        assert!(parse("[acm]\nsocket = \"\"\n").unwrap_err().contains("serve = \"off\""));
        assert!(parse("[acm]\nsocket = \"acm.sock\"\n").is_err());
        let acm = parse("[acm]\nhosts = \"/h\"\nroutes = \"/r\"\n").unwrap();
        assert_eq!((acm.hosts, acm.routes), (Some("/h".into()), Some("/r".into())));
    }

    #[test]
    fn tcp_port_is_one_of_this_machine_or_none() {
        let port = |value: &str| parse(&format!("[acm]\ntcp-port = {value}\n"));
        assert_eq!(port("6125").unwrap().tcp_port, NonZeroU16::new(6125));
        assert_eq!(port("0").unwrap().tcp_port, None);
        for wrong in ["\"0.0.0.0:6125\"", "\"*:6125\"", "65536", "-1"] {
            let mistake = port(wrong).unwrap_err();
            assert!(mistake.contains("acm.tcp-port must be a whole number"), "{mistake}");
            assert!(mistake.contains("a port of 127.0.0.1, because"), "{mistake}");
        }
    }
}
