// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Shows which GID an IPoIB interface has, and gives it another one of its port's table.

mod change;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use clap::Args;
use ibarr_common::ib::{Gid, IpoibHwAddr};
use ibarr_proto::paths::{GidIndex, PortFacts, PortName};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use self::change::{Change, ChangeError, Machine, Why};
use super::{Daemon, Exit, ask, print};
use crate::control::messages::{Body, Failure, FailureKind, InterfaceGid, Request, TableGid};
use crate::transport::alias;
use crate::transport::ports::{self, Dirs};
use crate::transport::rtnetlink;
use crate::transport::rtnetlink::ipoib::{self, Entry, Ipoib};

/// How long to wait between two looks at what has to come.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Args, Debug)]
pub(super) struct GidArgs {
    /// IPoIB interface, like ib0
    interface: String,
    /// Give the interface another GID of its port, keeping its addresses and routes: alias is the one that routers
    /// need, port the port's own one
    #[arg(long, value_name = "alias|port|GID")]
    set: Option<Wanted>,
    /// Ask the subnet administrator for the GID, if the port does not have it, or the interface has no carrier with it
    #[arg(long, requires = "set")]
    ask_sa: bool,
    /// Only print the commands
    #[arg(long, requires = "set")]
    dry_run: bool,
    /// How long to wait for the subnet administrator, and for the carrier before the interface gets its old GID again
    #[arg(long, value_name = "TIME", default_value = "30s", requires = "set", value_parser = super::patience)]
    timeout: Duration,
    /// Directory where sysfs is mounted
    #[arg(long, value_name = "DIR", env = "IBARR_SYS_DIR", default_value = "/sys")]
    sys_dir: PathBuf,
    /// Directory of device files, such as infiniband/umad0
    #[arg(long, value_name = "DIR", env = "IBARR_DEV_DIR", default_value = "/dev")]
    dev_dir: PathBuf,
    #[command(flatten)]
    daemon: Daemon,
}

impl GidArgs {
    fn pauses(&self) -> u32 {
        let pauses = self.timeout.as_millis().div_ceil(PAUSE.as_millis());
        u32::try_from(pauses).unwrap_or(u32::MAX)
    }
}

/// A GID, as a user names it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Wanted {
    Alias,
    Port,
    Gid(Gid),
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "alias" => Ok(Self::Alias),
            "port" => Ok(Self::Port),
            gid => match gid.parse() {
                Ok(gid) => Ok(Self::Gid(gid)),
                Err(_) => Err("not alias, port, or a GID".to_owned()),
            },
        }
    }
}

pub(super) fn run(args: &GidArgs) -> Exit {
    let done = match args.set {
        None => show(args),
        Some(wanted) => set(args, wanted),
    };
    match done {
        Ok(Body::Gid { gid }) if !args.daemon.json => {
            print(&gid);
            Exit::Ok
        }
        Ok(body) => ask::show(body, args.daemon.json),
        Err(failure) => ask::fail(failure, args.daemon.json),
    }
}

fn show(args: &GidArgs) -> Result<Body, Failure> {
    let (links, ports) = (interfaces()?, ports::all(&args.sys_dir));
    let link = named(&links, &args.interface)?;
    let told = match args.daemon.ask(&Request::Status) {
        Ok(Body::Status { status }) => {
            status.interfaces.into_iter().find(|of| of.name == link.name)
        }
        _ => None,
    };
    let told = told.map(|status| status.addresses).unwrap_or_default();
    let (interface, gid) = (link.name.clone(), link.address.gid());
    let mut shown =
        InterfaceGid { interface, gid, port: None, routable: None, gid_table: Vec::new(), told };
    if let Some((port, facts)) = port_of(&ports, &links, link) {
        shown.port = Some(*port);
        shown.routable = facts.flid_gid().or_else(|| facts.alias());
        let entry = |(index, gid)| {
            let links = links.iter().filter(|link| link.address.gid() == gid);
            TableGid { index, gid, interfaces: links.map(|link| link.name.clone()).collect() }
        };
        shown.gid_table = facts.gids.entries().map(entry).collect();
    }
    Ok(Body::Gid { gid: Box::new(shown) })
}

/// Prints the document for people.
fn print(shown: &InterfaceGid) {
    let InterfaceGid { interface, gid, port, routable, gid_table, told } = shown;
    let index = gid_table.iter().find(|entry| entry.gid == *gid).map(|entry| entry.index);
    print::line(&match (port, index) {
        (Some(port), Some(GidIndex(index))) => {
            format!("{interface} has GID {index} of port {port}: {gid}")
        }
        (Some(port), None) => format!("{interface} has {gid}, which port {port} does not have"),
        (None, _) => format!("{interface} has {gid}, which no port has"),
    });
    match routable {
        Some(needed) if needed == gid => print::line("routers find it by this GID"),
        Some(needed) => print::line(&format!("routers find the port by {needed}")),
        None => {}
    }
    print::gid_table(gid_table);
    for (ip, gid) in told {
        print::line(&format!("    peers are told {gid} for {ip}"));
    }
}

fn set(args: &GidArgs, wanted: Wanted) -> Result<Body, Failure> {
    let (links, ports) = (interfaces()?, ports::all(&args.sys_dir));
    let link = named(&links, &args.interface)?;
    let Some((port, facts)) = port_of(&ports, &links, link) else {
        return Err(fail(FailureKind::Absent, format!("the port of {} is not known", link.name)));
    };
    let gid = chosen(*port, facts, link, wanted, args.ask_sa)?;
    if is_done(facts, link, gid) {
        return Ok(Body::Done { done: format!("{} has {gid} already", link.name) });
    }
    if let Some(lid) = gid.alias_lid().filter(|lid| !facts.has_lid(*lid)) {
        print::error_line(&format!("routers send packets for {gid} to LID {lid}, not to {port}"));
    }
    let is_forgotten = args.ask_sa && gid == link.address.gid();
    if is_forgotten || !facts.gids.contains(gid) {
        print::error_text(&format!("# ask the subnet administrator of {port} for {gid}"));
        if !args.dry_run {
            ask_sa(args, *port, facts, gid)?;
        }
    }
    let is_child = |of: &&Ipoib| of.parent == Some(link.ifindex);
    let family: Vec<_> = [link].into_iter().chain(links.iter().filter(is_child)).cloned().collect();
    let entries = ipoib::forgotten(&family).map_err(|error| not_listed(&link.name, &error))?;
    let change = Change {
        links: family,
        entries,
        address: link.address.with_gid(gid),
        pauses: args.pauses(),
    };
    if args.dry_run {
        let steps: Vec<_> = change.steps().iter().map(ToString::to_string).collect();
        return Ok(Body::Done { done: steps.join("\n") });
    }
    let mut kernel = Kernel::begin()
        .map_err(|error| fail(FailureKind::Internal, format!("signals: {error}")))?;
    change.run(&mut kernel).map_err(|error| not_changed(&link.name, &error))?;
    Ok(Body::Done { done: format!("{} has {gid}", link.name) })
}

fn interfaces() -> Result<Vec<Ipoib>, Failure> {
    ipoib::interfaces().map_err(|error| fail(FailureKind::Internal, format!("rtnetlink: {error}")))
}

fn named<'a>(links: &'a [Ipoib], name: &str) -> Result<&'a Ipoib, Failure> {
    let Ok(ifindex) = rtnetlink::interface(name) else {
        return Err(fail(FailureKind::Absent, format!("there is no interface {name}")));
    };
    links.iter().find(|link| link.ifindex == ifindex).ok_or_else(|| {
        fail(FailureKind::Absent, format!("{name} is no IPoIB interface, or has no GID yet"))
    })
}

/// The port of an interface: its permanent address has the port's own GUID, or its GID is in the port's table; a child
/// has the port of its parent.
fn port_of<'a>(
    ports: &'a [(PortName, PortFacts)],
    links: &[Ipoib],
    link: &Ipoib,
) -> Option<&'a (PortName, PortFacts)> {
    let is_own = |(_, facts): &&(PortName, PortFacts)| {
        let own = facts.gids.first().map(Gid::guid);
        own.is_some() && own == link.permanent
    };
    let has_gid = |(_, facts): &&(PortName, PortFacts)| facts.gids.contains(link.address.gid());
    let of_parent = || {
        let parent = links.iter().find(|of| Some(of.ifindex) == link.parent)?;
        port_of(ports, &[], parent)
    };
    ports.iter().find(is_own).or_else(|| ports.iter().find(has_gid)).or_else(of_parent)
}

/// The interface has the GID, and works or is down. The subnet manager forgets an alias when the port was down. The port
/// may have it still, but the interface has no carrier.
fn is_done(facts: &PortFacts, link: &Ipoib, gid: Gid) -> bool {
    let works = link.has_carrier || !link.is_up;
    works && gid == link.address.gid() && facts.gids.contains(gid)
}

/// The GID that is wanted. It is in the port's table, or may be asked for.
fn chosen(
    port: PortName,
    facts: &PortFacts,
    link: &Ipoib,
    wanted: Wanted,
    may_ask: bool,
) -> Result<Gid, Failure> {
    let name = &link.name;
    let absent = |message| fail(FailureKind::Absent, message);
    let (what, gid) = match wanted {
        Wanted::Port => ("a GID of its own".to_owned(), facts.gids.first()),
        Wanted::Alias => {
            let by_lid = || {
                let mut octets = facts.gids.first()?.octets();
                octets[8..].copy_from_slice(&u64::from(facts.lid?.get()).to_be_bytes());
                Gid::new(octets).filter(|_| may_ask)
            };
            ("an alias GID with its LID".to_owned(), facts.alias().or_else(by_lid))
        }
        Wanted::Gid(gid) => {
            let is_to_have = may_ask || facts.gids.contains(gid);
            (gid.to_string(), Some(gid).filter(|_| is_to_have))
        }
    };
    let gid = gid.ok_or_else(|| {
        let remedy = "the subnet manager has to give it (--ask-sa asks for it)";
        absent(format!("port {port} does not have {what}: {remedy}"))
    })?;
    let now = link.address.gid();
    // `ipoib_check_lladdr` in drivers/infiniband/ulp/ipoib/ipoib_main.c.
    if gid.subnet_prefix() != now.subnet_prefix() {
        return Err(absent(format!(
            "{name} has the prefix of {now}, which Linux does not change: {gid} has another"
        )));
    }
    Ok(gid)
}

/// Has the subnet manager give the port the GID, and waits until the kernel shows it.
fn ask_sa(args: &GidArgs, port: PortName, facts: &PortFacts, gid: Gid) -> Result<(), Failure> {
    let dirs = Dirs { sys: args.sys_dir.clone(), dev: args.dev_dir.clone() };
    let failed = |reason: String| fail(FailureKind::Unreachable, format!("{port}: {reason}"));
    let opened = ports::open_device(&dirs, port).map_err(|fault| failed(fault.to_string()))?;
    alias::ask(opened, facts, gid.guid(), args.timeout)
        .map_err(|error| failed(error.to_string()))?;
    let has_gid = |(name, facts): &(PortName, PortFacts)| *name == port && facts.gids.contains(gid);
    for _ in 0..=args.pauses() {
        if ports::all(&dirs.sys).iter().any(has_gid) {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
    Err(failed(format!("its table does not show {gid}, which the subnet administrator has taken")))
}

fn not_listed(name: &str, error: &io::Error) -> Failure {
    let why = match error.raw_os_error() {
        Some(libc::EAGAIN) => {
            "something else changes addresses or routes now: try again".to_owned()
        }
        Some(libc::EOPNOTSUPP) => {
            "it has nexthop objects (ip nexthop), whose routes would be lost".to_owned()
        }
        _ => format!("rtnetlink: {error}"),
    };
    fail(FailureKind::Unreachable, format!("{name}: {why}"))
}

fn not_changed(name: &str, error: &ChangeError) -> Failure {
    let message = format!("{name}: {error}");
    match error {
        ChangeError::NotBegun { why: Why::Kernel(error), .. }
            if error.kind() == io::ErrorKind::PermissionDenied =>
        {
            fail(FailureKind::Permission, format!("{message}; it needs root or CAP_NET_ADMIN"))
        }
        _ => fail(FailureKind::Unreachable, message),
    }
}

fn fail(kind: FailureKind, message: String) -> Failure {
    Failure { kind, message }
}

/// The kernel of this machine. While it is there, no signal ends the process but SIGKILL.
struct Kernel {
    interrupts: SignalFd,
}

impl Kernel {
    fn begin() -> nix::Result<Self> {
        SigSet::all().thread_block()?;
        let interrupts: SigSet =
            [Signal::SIGINT, Signal::SIGTERM, Signal::SIGQUIT].into_iter().collect();
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        Ok(Self { interrupts: SignalFd::with_flags(&interrupts, flags)? })
    }
}

impl Machine for Kernel {
    fn set_up(&mut self, link: &Ipoib, up: bool) -> io::Result<()> {
        ipoib::set_up(link.ifindex, up)
    }

    fn set_address(&mut self, link: &Ipoib, address: IpoibHwAddr) -> io::Result<()> {
        ipoib::set_address(link.ifindex, address)
    }

    fn has_carrier(&mut self, link: &Ipoib) -> io::Result<bool> {
        let links = ipoib::interfaces()?;
        Ok(links.iter().any(|now| now.ifindex == link.ifindex && now.has_carrier))
    }

    fn remember(&mut self, entry: &Entry) -> io::Result<()> {
        ipoib::remember(entry)
    }

    fn pause(&mut self) {
        thread::sleep(PAUSE);
    }

    fn take_interrupt(&mut self) -> bool {
        matches!(self.interrupts.read_signal(), Ok(Some(_)))
    }

    fn say(&mut self, step: &dyn fmt::Display) {
        print::error_text(&step.to_string());
    }
}

#[cfg(test)]
mod tests {
    use ibarr_common::IfIndex;
    use ibarr_common::ib::Lid;

    use super::*;

    const OWN: &str = "fec0::1:2:c903:0:1";
    const ALIAS: &str = "fec0:0:0:1::5";

    fn gid(text: &str) -> Gid {
        text.parse().unwrap()
    }

    fn facts(lid: u16, gids: &[&str]) -> PortFacts {
        let gids = (0..).map(GidIndex).zip(gids.iter().map(|text| gid(text))).collect();
        PortFacts { lid: Lid::new(lid), gids, ..PortFacts::default() }
    }

    fn link(ifindex: u32, of: &str) -> Ipoib {
        let octets = [&[0x80, 0, 2, 8], &gid(of).octets()[..]].concat();
        Ipoib {
            ifindex: IfIndex::new(ifindex).unwrap(),
            name: format!("ib{ifindex}"),
            address: IpoibHwAddr::parse(&octets).unwrap(),
            permanent: None,
            is_up: true,
            has_carrier: true,
            parent: None,
        }
    }

    #[test]
    fn gid_is_of_the_port_or_is_asked_for() {
        let port = "mlx5_0/1".parse().unwrap();
        let of = |facts: &PortFacts, wanted: &str, may_ask| {
            let chosen = chosen(port, facts, &link(1, OWN), wanted.parse().unwrap(), may_ask);
            chosen.map_err(|failure| failure.message)
        };
        let (plain, with_alias) = (facts(5, &[OWN]), facts(5, &[OWN, ALIAS]));
        assert_eq!(of(&with_alias, "alias", false), Ok(gid(ALIAS)));
        assert_eq!(of(&with_alias, "port", false), Ok(gid(OWN)));
        assert_eq!(of(&plain, "alias", true), Ok(gid(ALIAS)));
        let other = "fec0:0:0:1::6";
        assert_eq!(of(&plain, other, true), Ok(gid(other)));
        let remedy = "the subnet manager has to give it (--ask-sa asks for it)";
        for (wanted, what) in [("alias", "an alias GID with its LID"), (other, other)] {
            let message = format!("port mlx5_0/1 does not have {what}: {remedy}");
            assert_eq!(of(&plain, wanted, false), Err(message));
        }
        // The alias is of an earlier LID.
        assert!(of(&facts(6, &[OWN, ALIAS]), "alias", false).is_err());
        assert!(of(&plain, "fec0:0:0:2::5", true).unwrap_err().contains("does not change"));
        assert!("ib0".parse::<Wanted>().is_err());
    }

    #[test]
    fn interface_that_is_up_without_a_carrier_has_to_be_set_again() {
        let facts = facts(5, &[OWN, ALIAS]);
        let is_done = |of: &str, is_up, has_carrier| {
            is_done(&facts, &Ipoib { is_up, has_carrier, ..link(1, of) }, gid(ALIAS))
        };
        assert!(is_done(ALIAS, true, true) && is_done(ALIAS, false, false));
        assert!(!is_done(ALIAS, true, false) && !is_done(OWN, true, true));
    }

    #[test]
    fn port_is_that_of_the_permanent_guid_the_gid_or_the_parent() {
        let other = "fec0::1:2:c903:0:2";
        let ports = [
            ("mlx5_0/1".parse().unwrap(), facts(5, &[OWN, ALIAS])),
            ("mlx5_0/2".parse().unwrap(), facts(6, &[other])),
        ];
        let stale = "fec0:0:0:1::4";
        let of = |links: &[Ipoib], link: &Ipoib| {
            port_of(&ports, links, link).map(|(port, _)| port.to_string())
        };
        assert_eq!(of(&[], &link(1, ALIAS)).unwrap(), "mlx5_0/1");
        assert_eq!(of(&[], &link(1, stale)), None);
        let parent = Ipoib { permanent: Some(gid(other).guid()), ..link(1, stale) };
        assert_eq!(of(&[], &parent).unwrap(), "mlx5_0/2");
        let child = Ipoib { parent: Some(parent.ifindex), ..link(2, stale) };
        assert_eq!(of(&[parent], &child).unwrap(), "mlx5_0/2");
    }
}
