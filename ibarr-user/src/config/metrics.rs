// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The table `[metrics]`.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::reader::{Table, Value};

/// Where the metrics are served.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Listen {
    Unix(PathBuf),
    /// An address of the loopback interface.
    Tcp(SocketAddr),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

/// `others` are the files of other keys.
pub(super) fn read(root: &mut Table<'_, '_>, others: &[&Path]) -> Option<Listen> {
    root.table("metrics", |table| table.value("listen", None, |value| listen(value, others)))
}

fn listen(value: Value<'_>, others: &[&Path]) -> Result<Option<Listen>, String> {
    const FORMS: &str =
        "write \"unix:/run/ibarr/metrics.sock\", \"127.0.0.1:9792\" or \"[::1]:9792\"";
    let text = value.text("unix:/run/ibarr/metrics.sock")?;
    if text.is_empty() {
        return Ok(None);
    }
    if let Some(path) = text.strip_prefix("unix:") {
        let (is_file, path) = (path.starts_with('/') && !path.ends_with('/'), Path::new(path));
        // The control socket of any run directory, by any path.
        if path.ends_with("control.sock") || others.contains(&path) {
            return Err(format!("is {text:?}: ibarr has another file of this name; {FORMS}"));
        }
        return if is_file {
            Ok(Some(Listen::Unix(path.into())))
        } else {
            Err(format!("is {text:?}: the path must begin with /; {FORMS}"))
        };
    }
    let address: SocketAddr = text.parse().map_err(|_| format!("is {text:?}; {FORMS}"))?;
    if !address.ip().is_loopback() {
        return Err(format!(
            "is {text:?}: other machines could ask; the daemon serves loopback addresses only, and \
             ibarr-exporter.service the others; {FORMS}"
        ));
    }
    if address.port() == 0 {
        return Err(format!("is {text:?}: the port must not be 0"));
    }
    Ok(Some(Listen::Tcp(address)))
}

#[cfg(test)]
mod tests {
    use super::super::reader::{Source, read as read_all};
    use super::*;

    fn parse(text: &str) -> Result<Option<Listen>, String> {
        let text = format!("[metrics]\nlisten = \"{text}\"\n");
        let source = Source { name: "f".to_owned(), text };
        let acm = Path::new("/run/acm.sock");
        let read = read_all(&[source], |root| read(root, &[acm]));
        read.map(|(listen, _)| listen).map_err(|mistakes| mistakes[0].to_string())
    }

    #[test]
    fn metrics_are_served_on_loopback_or_a_socket_file_only() {
        assert_eq!(parse(""), Ok(None));
        assert_eq!(parse("unix:/run/m.sock"), Ok(Some(Listen::Unix("/run/m.sock".into()))));
        for address in ["127.0.0.1:9792", "[::1]:9792", "127.9.9.9:1"] {
            assert_eq!(parse(address), Ok(Some(Listen::Tcp(address.parse().unwrap()))));
        }
        for address in ["0.0.0.0:9792", "[::]:9792", "10.0.0.1:9792", "[fe80::1]:9792"] {
            let mistake = parse(address).unwrap_err();
            assert!(mistake.starts_with("f:2:10: metrics.listen is "), "{mistake}");
            assert!(mistake.contains("loopback addresses only"), "{mistake}");
        }
        for ours in
            ["/run/ibarr/control.sock", "/r/control.sock", "/run/acm.sock", "/run//acm.sock"]
        {
            let mistake = parse(&format!("unix:{ours}")).unwrap_err();
            assert!(mistake.contains("ibarr has another file of this name"), "{mistake}");
        }
        for wrong in
            ["9792", "localhost:9792", "unix:m.sock", "unix:/run/", "127.0.0.1:0", "127.0.0.1"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
