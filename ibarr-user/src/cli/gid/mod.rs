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
use crate::transport::ports;
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
    /// Only print the commands
    #[arg(long, requires = "set")]
    dry_run: bool,
    /// How long to wait for the carrier, like 1m, before the interface gets its old GID again
    #[arg(long, value_name = "TIME", default_value = "30s", requires = "set", value_parser = super::patience)]
    timeout: Duration,
    /// Directory where sysfs is mounted
    #[arg(long, value_name = "DIR", env = "IBARR_SYS_DIR", default_value = "/sys")]
    sys_dir: PathBuf,
    #[command(flatten)]
    daemon: Daemon,
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
    let gid = chosen(port_of(&ports, &links, link), link, wanted)?;
    if gid == link.address.gid() {
        return Ok(Body::Done { done: format!("{} has {gid} already", link.name) });
    }
    let is_child = |of: &&Ipoib| of.parent == Some(link.ifindex);
    let family: Vec<_> = [link].into_iter().chain(links.iter().filter(is_child)).cloned().collect();
    let entries = ipoib::forgotten(&family).map_err(|error| not_listed(&link.name, &error))?;
    let pauses = args.timeout.as_millis().div_ceil(PAUSE.as_millis());
    let change = Change {
        links: family,
        entries,
        address: link.address.with_gid(gid),
        pauses: u32::try_from(pauses).unwrap_or(u32::MAX),
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

fn chosen(
    port: Option<&(PortName, PortFacts)>,
    link: &Ipoib,
    wanted: Wanted,
) -> Result<Gid, Failure> {
    let name = &link.name;
    let absent = |message| fail(FailureKind::Absent, message);
    let Some((port, facts)) = port else {
        return Err(absent(format!("the port of {name} is not known")));
    };
    let gid = match wanted {
        Wanted::Port => facts.gids.first(),
        Wanted::Alias => facts.alias(),
        Wanted::Gid(gid) => Some(gid).filter(|gid| facts.gids.contains(*gid)),
    };
    let gid = gid.ok_or_else(|| {
        let what = match wanted {
            Wanted::Port => "a GID of its own".to_owned(),
            Wanted::Alias => "an alias GID with its LID".to_owned(),
            Wanted::Gid(gid) => gid.to_string(),
        };
        absent(format!("port {port} does not have {what}: the subnet manager has to give it"))
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
