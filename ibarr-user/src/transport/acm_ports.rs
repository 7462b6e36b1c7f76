// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The port files of an ibacm that served TCP. librdmacm asks the port in the file, and does not try the Unix
//! socket if nothing listens there: a file that an ibacm has left hides the service from every application.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The names, beside the socket: the one of librdmacm may be a link to the one of `ib_acme`.
const NAMES: [&str; 2] = ["ibacm.port", "ibacm-tcp.port"];

/// The own host refuses at once; a program whose queue is full does not answer.
const PATIENCE: Duration = Duration::from_millis(100);

/// A port file that stays.
#[derive(Debug, thiserror::Error)]
pub enum Kept {
    /// A program listens at its port.
    #[error("{}: a program listens at its port, and librdmacm asks it: stop ibacm", .0.display())]
    Live(PathBuf),
    /// It cannot be removed.
    #[error("{}: librdmacm asks the port in it, where nothing listens: remove it ({})", .0.display(), .1)]
    NotRemoved(PathBuf, io::Error),
}

/// Removes the port files in `dir` at whose port nothing listens.
pub fn remove_stale(dir: &Path) -> Vec<Kept> {
    NAMES.iter().filter_map(|name| remove_if_stale(&dir.join(name)).err()).collect()
}

fn remove_if_stale(path: &Path) -> Result<(), Kept> {
    let Some(port) = fs::read_to_string(path)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .filter(|&port: &u16| port != 0)
    else {
        // Without a number, librdmacm takes the Unix socket. A link to nothing is none to it, either.
        return Ok(());
    };
    let tried = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), PATIENCE);
    if !tried.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        return Err(Kept::Live(path.to_owned()));
    }
    fs::remove_file(path).map_err(|error| Kept::NotRemoved(path.to_owned(), error))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn port_file_is_removed_only_if_nothing_listens_at_its_port() {
        let dir = std::env::temp_dir().join(format!("ibarr-acm-ports-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let [link, file] = NAMES.map(|name| dir.join(name));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        fs::write(&file, format!("{port}\n")).unwrap();
        symlink(&file, &link).unwrap();
        let kept = remove_stale(&dir);
        assert!(matches!(kept.as_slice(), [Kept::Live(_), Kept::Live(_)]), "{kept:?}");
        assert!(link.exists() && file.exists());
        drop(listener);
        assert!(remove_stale(&dir).is_empty());
        assert!(!file.exists() && link.symlink_metadata().is_err());
        fs::write(&file, "no number\n").unwrap();
        assert!(remove_stale(&dir).is_empty() && file.exists());
        fs::remove_dir_all(&dir).unwrap();
    }
}
