// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The oldest C library that a program can run with.

use std::fmt;

use anyhow::{Context as _, Result, bail};
use object::Endianness;
use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn as _, FileHeader as _};

/// Major and minor number.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Version(pub(super) u32, pub(super) u32);

/// The C library of RHEL 8, the oldest that the packages are for.
pub(super) const OLDEST: Version = Version(2, 28);

/// The newest version of a symbol that `program` needs.
///
/// # Errors
/// Systems that ibarr supports have no such C library.
pub(super) fn needed(program: &[u8]) -> Result<Version> {
    let needed = versions(program)?.into_iter().max().context("it needs no C library")?;
    if needed > OLDEST {
        bail!(
            "the program needs the C library {needed}, and RHEL 8 has {OLDEST}: it was not linked by Zig"
        );
    }
    Ok(needed)
}

/// The libraries that `program` needs, by their file names.
pub(super) fn libraries(program: &[u8]) -> Result<Vec<String>> {
    let header = FileHeader64::<Endianness>::parse(program)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, program)?;
    let mut libraries = Vec::new();
    let Some((entries, link)) = sections.dynamic(endian, program)? else { return Ok(libraries) };
    let names = sections.strings(endian, program, link)?;
    for entry in entries.iter().filter(|entry| entry.tag(endian) == DT_NEEDED) {
        libraries.push(String::from_utf8(entry.string(endian, names)?.to_vec())?);
    }
    Ok(libraries)
}

fn versions(program: &[u8]) -> Result<Vec<Version>> {
    let header = FileHeader64::<Endianness>::parse(program)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, program)?;
    let mut versions = Vec::new();
    let Some((mut libraries, link)) = sections.gnu_verneed(endian, program)? else {
        return Ok(versions);
    };
    let names = sections.strings(endian, program, link)?;
    while let Some((_, mut symbols)) = libraries.next()? {
        while let Some(symbol) = symbols.next()? {
            versions.extend(std::str::from_utf8(symbol.name(endian, names)?).ok().and_then(parse));
        }
    }
    Ok(versions)
}

/// Versions of other libraries have other names.
fn parse(name: &str) -> Option<Version> {
    let mut numbers = name.strip_prefix("GLIBC_")?.split('.').map(|number| number.parse().ok());
    Some(Version(numbers.next()??, numbers.next()??))
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_number_and_not_by_text() {
        assert!(parse("GLIBC_2.4") < parse("GLIBC_2.34"));
        assert_eq!(parse("GLIBC_2.2.5"), Some(Version(2, 2)));
        assert_eq!(parse("GCC_3.0"), None);
    }

    #[test]
    fn programs_of_this_machine_need_some_version() {
        let own = std::fs::read(std::env::current_exe().expect("a program")).expect("readable");
        assert!(versions(&own).expect("an ELF file").contains(&Version(2, 34)));
    }
}
