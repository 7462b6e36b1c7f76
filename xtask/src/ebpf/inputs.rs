// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The sources of the prebuilt BPF objects, and a digest of them. A test in `ibarr-ebpf` that finds a stale
//! object shares this file, so it uses only std.

use std::fs;
use std::io;
use std::path::Path;

/// Files and directories, relative to the top of the checkout. `cargo xtask ebpf` refuses to write
/// an object that mentions another file of ours.
pub(crate) const SOURCES: &[&str] = &[
    "ibarr-common/Cargo.toml",
    "ibarr-common/src/ib/gid.rs",
    "ibarr-common/src/ib/ipoib.rs",
    "ibarr-common/src/ifindex.rs",
    "ibarr-common/src/instant.rs",
    "ibarr-common/src/map",
    "ibarr-common/src/wire/ip2gid.rs",
    "ibarr-ebpf/Cargo.toml",
    "ibarr-ebpf/src",
    "xtask/src/ebpf/build.rs",
];

/// Other crates that are compiled into the objects. Their versions count.
pub(crate) const CRATES: &[&str] = &[
    "aya-ebpf",
    "aya-ebpf-bindings",
    "aya-ebpf-cty",
    "aya-ebpf-macros",
    "aya-log-common",
    "aya-log-ebpf",
    "aya-log-ebpf-macros",
    "aya-log-parser",
    "num_enum",
    "num_enum_derive",
    "zerocopy",
    "zerocopy-derive",
];

/// FNV-1a over the names and contents of [`SOURCES`] in order, and the entries of [`CRATES`] in
/// `Cargo.lock`. It must tell versions apart, but need not resist an attacker.
///
/// # Errors
/// A source that cannot be read.
pub(crate) fn digest(root: &Path) -> io::Result<String> {
    let mut state = Fnv1a::default();
    for source in SOURCES {
        add(&mut state, root, source)?;
    }
    let lock = fs::read_to_string(root.join("Cargo.lock"))?;
    for entry in lock.split("\n\n") {
        let name = entry.lines().find_map(|line| line.strip_prefix("name = "));
        if name.is_some_and(|name| CRATES.contains(&name.trim_matches('"'))) {
            let identity = |line: &&str| {
                ["name", "version", "checksum"].iter().any(|key| line.starts_with(key))
            };
            entry.lines().filter(identity).for_each(|line| state.write(line.as_bytes()));
        }
    }
    Ok(format!("{:016x}", state.0))
}

fn add(state: &mut Fnv1a, root: &Path, path: &str) -> io::Result<()> {
    if !root.join(path).is_dir() {
        state.write(path.as_bytes());
        state.write(&fs::read(root.join(path))?);
        return Ok(());
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join(path))? {
        let name = entry?.file_name();
        names.push(name.into_string().map_err(|_| io::Error::other("a name is not UTF-8"))?);
    }
    names.sort_unstable();
    names.iter().try_for_each(|name| add(state, root, &format!("{path}/{name}")))
}

struct Fnv1a(u64);

impl Default for Fnv1a {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv1a {
    /// Adds `bytes` and an end mark.
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes.iter().copied().chain([0xff]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
