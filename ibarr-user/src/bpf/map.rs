// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Opening a pinned map, and why it cannot be used.

use std::path::Path;

use aya::maps::{Map, MapData, MapError};
use ibarr_common::map;
use thiserror::Error;

/// A map cannot be opened, read or written.
#[derive(Debug, Error)]
#[error("map {name}{}", self.remedy())]
pub struct Error {
    pub(super) name: &'static str,
    pub(super) source: MapError,
}

impl Error {
    /// The remedy if the map is full, else empty.
    fn remedy(&self) -> String {
        let MapError::SyscallError(error) = &self.source else { return String::new() };
        // The errors of a full hash and of a full trie (kernel/bpf/hashtab.c, lpm_trie.c).
        if !matches!(error.io_error.raw_os_error(), Some(libc::E2BIG | libc::ENOSPC)) {
            return String::new();
        }
        let (what, remedy) = match self.name {
            map::ALLOW => {
                let prefixes = map::max_entries::ALLOW;
                (format!("{prefixes} prefixes"), "write fewer and wider ones in `allow`")
            }
            map::INTERFACES | map::FAR_INTERFACES => {
                // No interface has the index 0.
                let near = map::max_entries::INTERFACES - 1;
                let interfaces = near + map::max_entries::FAR_INTERFACES;
                (format!("{interfaces} interfaces"), "name those that count in `interfaces`")
            }
            _ => return " is full".to_owned(),
        };
        format!(" is full, and holds no more than {what}: {remedy}, or write responder = \"user\"")
    }
}

/// Opens the pinned map in `dir`.
pub(super) fn open<M: TryFrom<Map, Error = MapError>>(
    dir: &Path,
    name: &'static str,
    kind: impl FnOnce(MapData) -> Map,
) -> Result<M, Error> {
    MapData::from_pin(dir.join(name))
        .and_then(|data| M::try_from(kind(data)))
        .map_err(|source| Error { name, source })
}

pub(super) fn absent(removed: Result<(), MapError>) -> Result<(), MapError> {
    match removed {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error))
            if error.io_error.kind() == std::io::ErrorKind::NotFound =>
        {
            Ok(())
        }
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use aya::sys::SyscallError;

    use super::*;

    #[test]
    fn full_map_error_names_its_size_and_remedy() {
        let full = |name, errno| {
            let io_error = io::Error::from_raw_os_error(errno);
            let source = SyscallError { call: "bpf_map_update_elem", io_error }.into();
            Error { name, source }.to_string()
        };
        let interfaces = full(map::FAR_INTERFACES, libc::E2BIG);
        assert!(interfaces.contains("no more than 1279 interfaces: name those"), "{interfaces}");
        let allow = full(map::ALLOW, libc::ENOSPC);
        assert!(allow.contains("no more than 4096 prefixes: write fewer"), "{allow}");
        assert_eq!(full(map::ALLOW, libc::EPERM), "map allow");
    }
}
