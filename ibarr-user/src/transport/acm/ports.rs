// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The files that name the TCP port of ibacm, or ours. librdmacm asks the port in its file, and does not try the
//! Unix socket if nothing listens there: a file that an ibacm has left hides the service from every application.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::num::NonZeroU16;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::listening::Link;
use crate::regular_file;

/// Where librdmacm looks, beside the socket. It may be a link to [`FOR_TOOLS`].
const FOR_LIBRDMACM: &str = "ibacm.port";
/// Where `ib_acme` looks.
const FOR_TOOLS: &str = "ibacm-tcp.port";

/// The own host refuses at once; a program whose queue is full does not answer.
const PATIENCE: Duration = Duration::from_millis(100);

/// A port file that stays.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Conflict {
    /// A program listens at its port.
    #[error("{}: a program listens at its port, and librdmacm asks it: stop ibacm", .0.display())]
    Live(PathBuf),
    /// It cannot be removed.
    #[error("{}: librdmacm asks the port in it, where nothing listens: remove it ({})", .0.display(), .1)]
    NotRemoved(PathBuf, io::Error),
}

/// Removes the port files in `dir` at whose port nothing listens. Files with the port `ours` stay.
pub(crate) fn remove_stale(dir: &Path, ours: Option<NonZeroU16>) -> Vec<Conflict> {
    let names = [FOR_LIBRDMACM, FOR_TOOLS];
    names.iter().filter_map(|name| remove_if_stale(&dir.join(name), ours).err()).collect()
}

fn remove_if_stale(path: &Path, ours: Option<NonZeroU16>) -> Result<(), Conflict> {
    // Without a number, librdmacm takes the Unix socket. A link to nothing is none to it, either.
    let Some(port) = port_in(path).filter(|port| Some(*port) != ours) else { return Ok(()) };
    let tried = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port.get()).into(), PATIENCE);
    if !tried.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        return Err(Conflict::Live(path.to_owned()));
    }
    fs::remove_file(path).map_err(|error| Conflict::NotRemoved(path.to_owned(), error))
}

fn port_in(path: &Path) -> Option<NonZeroU16> {
    regular_file::text(path)?.parse().ok()
}

/// The port files that this process has made. Dropping it removes them, unless others have replaced them.
#[derive(Debug)]
pub(crate) struct Files {
    file: PathBuf,
    /// Leads librdmacm to the file.
    pub link: Link,
    port: NonZeroU16,
    inode: u64,
}

impl Files {
    /// Makes the file for `ib_acme`, which only its owner may change: it leads programs to a server.
    ///
    /// # Errors
    /// If a file is there already, or the directory belongs to another user.
    pub(crate) fn write(dir: &Path, port: NonZeroU16) -> io::Result<Self> {
        let [file, link] = [FOR_TOOLS, FOR_LIBRDMACM].map(|name| dir.join(name));
        let mut made = OpenOptions::new().write(true).create_new(true).open(&file)?;
        let link = Link::new(link, file.clone());
        let this = Self { file, link, port, inode: made.metadata()?.ino() };
        made.set_permissions(Permissions::from_mode(0o644))?;
        made.write_all(format!("{port}\n").as_bytes())?;
        Ok(this)
    }

    /// Whether the file is there as it was made.
    pub(crate) fn is_ours(&self) -> bool {
        let is_same = |file: fs::Metadata| file.is_file() && file.ino() == self.inode;
        fs::symlink_metadata(&self.file).is_ok_and(is_same)
            && port_in(&self.file) == Some(self.port)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // At worst a file stays that names a dead port, which the next start removes.
        if self.is_ours() {
            self.link.remove();
            drop(fs::remove_file(&self.file));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::fs::symlink;

    use ibarr_common::Instant;
    use tempfile::TempDir;

    use super::*;
    use crate::tests::on_own_network;

    #[test]
    fn port_file_is_removed_only_if_nothing_listens_at_its_port() {
        if !on_own_network(|| ()) {
            return;
        }
        let dir = TempDir::new().unwrap();
        let [link, file] = [FOR_LIBRDMACM, FOR_TOOLS].map(|name| dir.path().join(name));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = NonZeroU16::new(listener.local_addr().unwrap().port()).unwrap();
        fs::write(&file, format!("{port}\n")).unwrap();
        symlink(&file, &link).unwrap();
        let kept = remove_stale(dir.path(), None);
        assert!(matches!(kept.as_slice(), [Conflict::Live(_), Conflict::Live(_)]), "{kept:?}");
        assert!(remove_stale(dir.path(), Some(port)).is_empty());
        assert!(link.exists() && file.exists());
        drop(listener);
        assert!(remove_stale(dir.path(), None).is_empty());
        assert!(!file.exists() && link.symlink_metadata().is_err());
        fs::write(&file, "no number\n").unwrap();
        assert!(remove_stale(dir.path(), None).is_empty() && file.exists());
    }

    const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

    #[test]
    fn own_port_files_are_removed_unless_another_program_has_replaced_them() {
        let dir = TempDir::new().unwrap();
        let [link, file] = [FOR_LIBRDMACM, FOR_TOOLS].map(|name| dir.path().join(name));
        let port = NonZeroU16::new(6125).unwrap();
        let mut files = Files::write(dir.path(), port).unwrap();
        files.link.show(NOW, true).unwrap();
        for path in [&file, &link] {
            assert_eq!(fs::read(path).unwrap(), b"6125\n");
        }
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o644);
        assert!(Files::write(dir.path(), port).is_err(), "another server's");
        files.link.show(NOW, false).unwrap();
        assert!(link.symlink_metadata().is_err());
        drop(files);
        assert!(!file.exists());
        let files = Files::write(dir.path(), port).unwrap();
        let other = dir.path().join("other");
        fs::write(&other, "6125\n").unwrap();
        fs::rename(&other, &file).unwrap();
        drop(files);
        assert!(file.exists());
    }
}
