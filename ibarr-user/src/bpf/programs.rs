// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Loads the programs from their object, once for each kind of link.

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use aya::programs::{Program, ProgramError, SchedClassifier, SocketFilter, Xdp};
use aya::{Ebpf, EbpfLoader};
use ibarr_common::map;
use ibarr_proto::local_view::{LinkHeader, ServedInterface};
use ibarr_proto::responder::Hook;

use super::error::Error;
use super::hooks;
use super::packets::{Reports, Sink};
use super::pins::Pins;
use super::rights::lacks_perfmon;

/// The object, loaded once for each link header; the instances share the pinned maps.
#[derive(Debug)]
pub(super) struct Programs {
    object: Cow<'static, [u8]>,
    layout: PathBuf,
    verifier_log: PathBuf,
    instances: BTreeMap<LinkHeader, Ebpf>,
    /// Kernel ids of the loaded programs.
    ids: BTreeSet<u32>,
}

const TC: &str = "ip2gid_tc";
const XDP: &str = "ip2gid_xdp";
const GUARD: &str = "ip2gid_guard";

impl Programs {
    /// Makes the maps, pinned in `layout`, or opens existing ones.
    pub(super) fn new(
        object: Cow<'static, [u8]>,
        layout: PathBuf,
        verifier_log: PathBuf,
    ) -> Result<Self, Error> {
        let mut programs =
            Self { object, layout, verifier_log, instances: BTreeMap::new(), ids: BTreeSet::new() };
        programs.instance(LinkHeader::Ethernet)?;
        Ok(programs)
    }

    /// Loads the programs that every daemon needs, so that a refusal is known at once.
    pub(super) fn verify(&mut self) -> Result<(), Error> {
        self.tc(LinkHeader::Ethernet)?;
        self.guard_program()?;
        Ok(())
    }

    /// The ends of the programs' reports, for the caller to keep while programs are loaded.
    pub(super) fn reports(&mut self, sink: &Sink) -> Result<Vec<Reports>, Error> {
        let mut reports = Vec::new();
        for header in [LinkHeader::Ethernet, LinkHeader::Ipoib] {
            let of = Reports::take(self.instance(header)?, sink.clone());
            reports.push(of.map_err(Error::Load)?);
        }
        Ok(reports)
    }

    pub(super) fn attach(
        &mut self,
        pins: &Pins,
        interface: &ServedInterface,
        hook: Hook,
    ) -> Result<(), Error> {
        match hook {
            Hook::Tcx => hooks::attach_tcx(pins, interface, self.tc(interface.header)?),
            Hook::Clsact => hooks::attach_clsact(pins, interface, self.tc(interface.header)?),
            Hook::XdpNative | Hook::XdpGeneric => {
                hooks::attach_xdp(pins, interface, hook, self.xdp(interface.header)?)
            }
        }
        .map_err(|source| Error::Attach { interface: interface.name, hook, source })
    }

    /// Kernel ids of the loaded programs.
    pub(super) fn ids(&self) -> &BTreeSet<u32> {
        &self.ids
    }

    pub(super) fn guard(&mut self, socket: BorrowedFd<'_>) -> Result<(), Error> {
        let program = self.guard_program()?;
        program.attach(socket).map_err(|source| Error::Guard(Box::new(source)))
    }

    fn tc(&mut self, header: LinkHeader) -> Result<&mut SchedClassifier, Error> {
        self.loaded(header, TC)?.try_into().map_err(|_| Error::NotInObject(TC))
    }

    fn xdp(&mut self, header: LinkHeader) -> Result<&mut Xdp, Error> {
        self.loaded(header, XDP)?.try_into().map_err(|_| Error::NotInObject(XDP))
    }

    /// One program for all sockets: it does not read link headers.
    fn guard_program(&mut self) -> Result<&mut SocketFilter, Error> {
        self.loaded(LinkHeader::Ethernet, GUARD)?.try_into().map_err(|_| Error::NotInObject(GUARD))
    }

    /// Loads a program, or returns the loaded one.
    fn loaded(&mut self, header: LinkHeader, name: &'static str) -> Result<&mut Program, Error> {
        let verifier_log = self.verifier_log.clone();
        self.instance(header)?;
        let instance = self.instances.get_mut(&header).ok_or(Error::NotInObject(name))?;
        let program = instance.program_mut(name).ok_or(Error::NotInObject(name))?;
        if program.fd().is_err() {
            let loaded = match program {
                Program::SchedClassifier(program) => program.load(),
                Program::Xdp(program) => program.load(),
                Program::SocketFilter(program) => program.load(),
                _ => return Err(Error::NotInObject(name)),
            };
            loaded.map_err(|error| refused(name, error, &verifier_log))?;
            self.ids.insert(program.info().map_err(|error| Error::load(error.into()))?.id());
        }
        Ok(program)
    }

    fn instance(&mut self, header: LinkHeader) -> Result<&mut Ebpf, Error> {
        Ok(match self.instances.entry(header) {
            Entry::Occupied(instance) => instance.into_mut(),
            Entry::Vacant(vacant) => {
                let header_len = header.bytes();
                let mut loader = EbpfLoader::new();
                loader.override_global("LINK_HEADER_LEN", &header_len, true);
                for map in map::NAMES {
                    loader.map_pin_path(map, self.layout.join(map));
                }
                vacant.insert(loader.load(&self.object).map_err(|error| Error::load(error.into()))?)
            }
        })
    }
}

/// Keeps the verifier's log, which may be long, in a file.
fn refused(name: &'static str, error: ProgramError, verifier_log: &Path) -> Error {
    let (io_error, log) = match error {
        ProgramError::LoadError { io_error, verifier_log: log } => (io_error, log.to_string()),
        error => return Error::load(Box::new(error)),
    };
    // The verifier checks programs more strictly for processes with fewer privileges.
    if log.trim().is_empty() || lacks_perfmon() {
        return Error::load(Box::new(io_error));
    }
    let kept = match fs::write(verifier_log, &log) {
        Ok(()) => format!("its log is in {}", verifier_log.display()),
        Err(error) => format!("its log cannot be written to {}: {error}", verifier_log.display()),
    };
    let reason = reason(&log).to_owned();
    // The messages of `check_helper_call` in kernel/bpf/verifier.c, old and new.
    if reason.starts_with("invalid func ") || reason.starts_with("unknown func ") {
        return Error::TooOld { program: name, reason };
    }
    Error::Verifier { program: name, reason, kept }
}

/// The line of the verifier's `log` that says why. Statistics stand behind it, and since Linux 7.3, before them,
/// a report with the same reason in more words.
fn reason(log: &str) -> &str {
    let lines = log.lines().map(str::trim).take_while(|line| !line.starts_with(REPORT));
    let is_reason =
        |line: &&str| !line.is_empty() && !STATISTICS.iter().any(|begin| line.starts_with(begin));
    lines.filter(is_reason).last().unwrap_or_default()
}

const REPORT: &str = "Verification failed:";
const STATISTICS: [&str; 4] = ["processed ", "verification time", "stack depth", "subprog "];

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn reason_stands_before_statistics_and_reports_of_the_verifier() {
        const BEGIN: &str = "0: R1=ctx() R10=fp0\n0: (bf) r0 = r9\nR9 !read_ok\n";
        // Linux 5.10, and what 7.3 adds.
        const END: &str = "verification time 9 usec\nstack depth 0+0\n\
                           processed 1 insns (limit 1000000) max_states_per_insn 0\n\n";
        const REPORT: &str = "\nVerification failed: Register Type Safety: Unreadable register\n\
                              \nReason:\n  R9 was never written.\n\
                              \nSuggestion:\n  Initialize R9.\n\n";
        const SUBPROGRAM: &str = "subprog 0 (ip2gid_tc) static insns_self 1\n";
        for log in [format!("{BEGIN}{END}"), format!("{BEGIN}{REPORT}{SUBPROGRAM}{END}")] {
            assert_eq!(reason(&log), "R9 !read_ok");
        }
        assert_eq!(reason(END), "");
    }
}
