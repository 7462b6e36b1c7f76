// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Writes a cpio archive in the "newc" format, which the kernel unpacks as its first root file system
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;
use std::io::{self, Write};

use ::cpio::newc::{self, Builder, ModeFileType};

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

    pub(super) fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.with_parents(path, Kind::File, 0o644, content)
    }

    /// Adds a character device.
    pub(super) fn device(&mut self, path: &str, major: u32, minor: u32) -> io::Result<()> {
        self.with_parents(path, Kind::Device { major, minor }, 0o600, &[])
    }

    /// Ends the archive. Without this, the kernel regards the archive as truncated.
    pub(super) fn finish(self) -> io::Result<W> {
        newc::trailer(self.to)
    }

    fn with_parents(&mut self, path: &str, kind: Kind, mode: u32, data: &[u8]) -> io::Result<()> {
        let path = path.trim_matches('/');
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent)?;
        }
        self.entry(path, kind, mode, data)
    }

    fn entry(&mut self, name: &str, kind: Kind, mode: u32, data: &[u8]) -> io::Result<()> {
        let length = |length: usize| u32::try_from(length).map_err(io::Error::other);
        let inode = length(self.names.len())?;
        if !self.names.insert(name.to_owned()) {
            return Err(io::Error::other(format!("{name} is in the archive already")));
        }
        let entry = Builder::new(name).ino(inode).mode(mode);
        let entry = match kind {
            Kind::File => entry.set_mode_file_type(ModeFileType::Regular),
            Kind::Directory => entry.set_mode_file_type(ModeFileType::Directory).nlink(2),
            Kind::Device { major, minor } => {
                let entry = entry.set_mode_file_type(ModeFileType::Char);
                entry.rdev_major(major).rdev_minor(minor)
            }
        };
        let mut writer = entry.write(&mut self.to, length(data.len())?);
        writer.write_all(data)?;
        writer.finish().map(drop)
    }
}

#[derive(Clone, Copy)]
enum Kind {
    File,
    Directory,
    Device { major: u32, minor: u32 },
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
        // The crate writes hexadecimal digits in lower case; the kernel reads both.
        assert_eq!(String::from_utf8_lossy(&bytes).to_uppercase(), GNU.to_uppercase());
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
    fn every_entry_is_found_whatever_the_lengths() {
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

    fn names(mut bytes: &[u8]) -> Vec<String> {
        let mut names = Vec::new();
        while !bytes.is_empty() {
            let entry = newc::Reader::new(bytes).expect("an entry");
            names.push(entry.entry().name().to_owned());
            bytes = entry.finish().expect("its content");
        }
        names
    }
}
