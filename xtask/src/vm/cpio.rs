// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Writes a cpio archive in the "newc" format, which the kernel unpacks as its first root file system
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;
use std::io::{self, Write};

/// An archive that is being written. Everything in it belongs to root, and times are zero, so that the
/// same files give the same archive.
pub(super) struct Archive<W> {
    to: W,
    /// Names written so far, without a slash at either end.
    names: BTreeSet<String>,
}

impl<W: Write> Archive<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, names: BTreeSet::new() }
    }

    /// Adds a directory, with its parents.
    pub(super) fn directory(&mut self, path: &str) -> io::Result<()> {
        let path = path.trim_matches('/');
        if path.is_empty() || self.names.contains(path) {
            return Ok(());
        }
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent)?;
        }
        self.entry(path, Kind::Directory, 0o755, &[])
    }

    /// Adds an executable file.
    pub(super) fn program(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.with_parents(path, Kind::File, 0o755, content)
    }

    /// Adds a file.
    pub(super) fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.with_parents(path, Kind::File, 0o644, content)
    }

    /// Adds a character device.
    pub(super) fn device(&mut self, path: &str, major: u32, minor: u32) -> io::Result<()> {
        self.with_parents(path, Kind::Device { major, minor }, 0o600, &[])
    }

    /// Ends the archive. Without this, the kernel regards the archive as truncated.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", Kind::Trailer, 0, &[])?;
        Ok(self.to)
    }

    fn with_parents(&mut self, path: &str, kind: Kind, mode: u32, data: &[u8]) -> io::Result<()> {
        let path = path.trim_matches('/');
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent)?;
        }
        self.entry(path, kind, mode, data)
    }

    fn entry(&mut self, name: &str, kind: Kind, mode: u32, data: &[u8]) -> io::Result<()> {
        let inode = self.names.len();
        if !self.names.insert(name.to_owned()) {
            return Err(io::Error::other(format!("{name} is in the archive already")));
        }
        let (kind, links, major, minor) = match kind {
            Kind::File => (0o100_000, 1, 0, 0),
            Kind::Directory => (0o040_000, 2, 0, 0),
            Kind::Device { major, minor } => (0o020_000, 1, major, minor),
            Kind::Trailer => (0, 1, 0, 0),
        };
        let length = |length: usize| u32::try_from(length).map_err(io::Error::other);
        let fields = [
            if kind == 0 { 0 } else { length(inode)? },
            kind | mode,
            0, // owner
            0, // group
            links,
            0, // time
            length(data.len())?,
            0, // device of the file system, major
            0, // and minor
            major,
            minor,
            length(name.len() + 1)?,
            0, // check sum, not of this format
        ];
        let mut header = String::from("070701");
        header.extend(fields.map(|field| format!("{field:08X}")));
        self.padded(&[header.as_bytes(), name.as_bytes(), &[0]])?;
        self.padded(&[data])
    }

    /// Writes `parts`, and zeros up to a multiple of four bytes.
    fn padded(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        for part in parts {
            self.to.write_all(part)?;
        }
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        self.to.write_all(&[0; 3][..length.next_multiple_of(4) - length])
    }
}

#[derive(Clone, Copy)]
enum Kind {
    File,
    Directory,
    Device { major: u32, minor: u32 },
    Trailer,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of `printf 'bin\nbin/hello\n' | cpio -o -H newc --reproducible --owner 0:0` of GNU cpio 2.13,
    /// if `bin/hello` has "hi\n", modes are 755 and times zero; without GNU cpio's padding to a block of 512
    /// bytes.
    const GNU: &str = "\
        07070100000000000041ED000000000000000000000002000000000000000000000000000000000000000000\
        0000000000000400000000bin\0\0\0\
        07070100000001000081ED000000000000000000000001000000000000000300000000000000000000000000\
        0000000000000A00000000bin/hello\0hi\n\0\
        0707010000000000000000000000000000000000000001000000000000000000000000000000000000000000\
        0000000000000B00000000TRAILER!!!\0\0\0\0";

    #[test]
    fn archive_has_the_bytes_that_gnu_cpio_writes() {
        let mut archive = Archive::new(Vec::new());
        archive.program("/bin/hello", b"hi\n").expect("memory");
        let bytes = archive.finish().expect("memory");
        assert_eq!(String::from_utf8_lossy(&bytes), GNU);
    }

    #[test]
    fn directories_come_once_and_before_their_entries() {
        let mut archive = Archive::new(Vec::new());
        archive.file("/a/b/one", b"").expect("memory");
        archive.file("/a/b/two", b"").expect("memory");
        archive.directory("/a/b").expect("memory");
        let bytes = archive.finish().expect("memory");
        let names = names(&bytes);
        assert_eq!(names, ["a", "a/b", "a/b/one", "a/b/two", "TRAILER!!!"]);
    }

    #[test]
    fn every_entry_starts_at_a_multiple_of_four() {
        for length in 0..8 {
            let mut archive = Archive::new(Vec::new());
            archive.file(&"n".repeat(length + 1), &vec![7; length]).expect("memory");
            archive.device("/dev/null", 1, 3).expect("memory");
            assert_eq!(names(&archive.finish().expect("memory")).len(), 4);
        }
    }

    #[test]
    fn same_name_twice_is_an_error() {
        let mut archive = Archive::new(Vec::new());
        archive.file("a", b"1").expect("memory");
        assert!(archive.program("/a", b"2").is_err());
    }

    /// Walks the archive as the kernel does.
    fn names(mut bytes: &[u8]) -> Vec<String> {
        let mut names = Vec::new();
        while let Some(rest) = bytes.strip_prefix(b"070701") {
            let field = |index: usize| {
                let digits = std::str::from_utf8(&rest[8 * index..8 * index + 8]).expect("ASCII");
                usize::from_str_radix(digits, 16).expect("hexadecimal digits")
            };
            let (data, name) = (field(6), field(11));
            names.push(String::from_utf8(bytes[110..110 + name - 1].to_vec()).expect("UTF-8"));
            assert_eq!(bytes[110 + name - 1], 0);
            bytes = &bytes[(110 + name).next_multiple_of(4) + data.next_multiple_of(4)..];
        }
        assert!(bytes.is_empty(), "{bytes:02x?}");
        names
    }
}
