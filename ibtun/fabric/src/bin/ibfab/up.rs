// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibfab up` and `ibfab down`: two HCAs with a subnet manager and IPoIB addresses by one command, and nothing of them
//! after another. What `up` has begun is in the files of [`STATE`], from which `down` ends it, also after a failure.

mod process;
mod system;

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use ibarr_fabric::Topology;
use ibarr_fabric::remote::Address;
use ibarr_fabric::topology::Node;

use self::process::Started;
use crate::cli::UpArgs;

const STATE: &str = "/run/ibfab";

/// Two nodes and a switch.
const TOPOLOGY: &str = include_str!("../../../laptop.topo");

/// The nodes of [`TOPOLOGY`], and the address of each.
const HOSTS: [Host; 2] = [
    Host { node: "laptop-1", address: "10.73.0.1" },
    Host { node: "laptop-2", address: "10.73.0.2" },
];

/// The network namespace of the second node, if both are on this machine: Linux does not send to itself.
const NAMESPACE: &str = "ibfab";

/// How long something may take that the kernel, OpenSM or the other machine has to do, on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// How long an HCA may be there after its fabric has ended: the kernel waits for answers that do not come.
const GOING: Duration = Duration::from_secs(20);

struct Host {
    node: &'static str,
    address: &'static str,
}

/// A node that has become an HCA here.
struct Up {
    host: &'static Host,
    device: String,
    interface: String,
    namespace: Option<&'static str>,
}

pub(crate) fn up(args: &UpArgs, control: &Path) -> anyhow::Result<()> {
    system::check(args.join.is_none())?;
    match fs::create_dir(STATE) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!("it is up already, or was not ended whole: `ibfab down` ends it")
        }
        made => made.context(STATE)?,
    }
    let text = start(args, control).inspect_err(|_| {
        if let Err(left) = end(control) {
            eprintln!("ibfab: not all is undone: {left:#}");
        }
    })?;
    print!("{text}");
    Ok(())
}

pub(crate) fn down(control: &Path) -> anyhow::Result<()> {
    system::check_root()?;
    ensure!(Path::new(STATE).exists(), "it is not up");
    end(control)
}

/// Returns what to tell the user.
fn start(args: &UpArgs, control: &Path) -> anyhow::Result<String> {
    let topology: Topology = TOPOLOGY.parse()?;
    let file = format!("{STATE}/topology");
    fs::write(&file, TOPOLOGY).context(file.clone())?;
    let here: &[Host] = match (&args.listen, &args.join) {
        (Some(_), _) => &HOSTS[..1],
        (_, Some(_)) => &HOSTS[1..],
        _ => &HOSTS,
    };
    for node in here.iter().map(|host| node(&topology, host)) {
        if let Some(device) = stays(node?, GOING)? {
            bail!("{device} has the GUID of ours: end the fabric that made it");
        }
    }
    system::load()?;

    let own = std::env::current_exe().context("cannot find ibfab")?;
    let mut command = Command::new(own);
    match &args.join {
        Some(fabric) => command.arg("join").arg(fabric.to_string()).arg(file).arg(HOSTS[1].node),
        None => command.arg("run").arg(file).arg("--control").arg(control),
    };
    if let Some(address) = &args.listen {
        command.args(["--device", HOSTS[0].node, "--listen", &address.to_string()]);
    }
    if let Some(key) = &args.key {
        command.arg("--key").arg(key);
    }
    let mut programs = vec![process::start("fabric", &mut command)?];

    let mut all = Vec::new();
    for host in here {
        let node = node(&topology, host)?;
        let device = wait_for("no HCA", &mut programs, || system::device(node))?;
        let interface = wait_for("no IPoIB interface", &mut programs, || system::interface(node))?;
        let namespace = (here.len() > 1 && !all.is_empty()).then_some(NAMESPACE);
        all.push(Up { host, device, interface, namespace });
    }
    if args.join.is_none() {
        let guid = system::port_guid(node(&topology, &HOSTS[0])?)?;
        let mut command = Command::new("opensm");
        command.env("OSM_CACHE_DIR", STATE).env("OSM_TMP_DIR", STATE);
        command.args(["-g", &format!("{:#x}", guid.get()), "-f", &format!("{STATE}/osm.log")]);
        programs.push(process::start("opensm", &mut command)?);
    }
    for Up { device, interface, namespace, host } in &all {
        wait_for("the port is not ACTIVE", &mut programs, || system::is_active(device))?;
        system::give_address(interface, *namespace, host.address)?;
    }
    for Up { interface, namespace, .. } in &all {
        wait_for("IPoIB has no multicast group", &mut programs, || {
            system::is_running(interface, *namespace)
        })?;
    }
    Ok(what_is_up(&all, args.listen.as_ref(), args.key.as_deref()))
}

fn node<'a>(topology: &'a Topology, host: &Host) -> anyhow::Result<&'a Node> {
    let node = topology.find(host.node).and_then(|node| topology.node(node));
    node.with_context(|| format!("the topology has no node {}", host.node))
}

/// Waits until something is there. If it never is, or a program ends before, the error has the last line of a log.
fn wait_for<T>(
    lack: &str,
    programs: &mut [Started],
    there: impl Fn() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let began = Instant::now();
    loop {
        if let Some(there) = there()? {
            return Ok(there);
        }
        programs.iter_mut().try_for_each(Started::check)?;
        if began.elapsed() > PATIENCE {
            let said: Vec<_> = programs.iter().map(Started::last_line).collect();
            bail!("{lack} after {} s; {}", PATIENCE.as_secs(), said.join("; "));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn what_is_up(all: &[Up], listen: Option<&Address>, key: Option<&Path>) -> String {
    let mut text = String::new();
    for Up { host, device, interface, namespace } in all {
        let place = namespace.map_or_else(String::new, |name| format!(" in namespace {name}"));
        let _ =
            writeln!(text, "{} is {device}; {interface}{place} has {}", host.node, host.address);
    }
    let client = |to: &str| format!("rping -c -v -C 3 -a {to}");
    let [first, second] = [HOSTS[0].address, HOSTS[1].address];
    text += "Try:\n";
    let _ = if let Some(listen) = listen {
        let key = key.map_or_else(String::new, |key| format!(" --key {}", key.display()));
        writeln!(text, "  rping -s -a {first} &").and_then(|()| {
            writeln!(text, "and on the other machine:\n  ibfab up --join {listen}{key}")?;
            writeln!(text, "  {}", client(first))
        })
    } else if all.len() == 1 {
        writeln!(text, "  {}", client(first))
    } else {
        writeln!(
            text,
            "  ip netns exec {NAMESPACE} rping -s -a {second} & sleep 1; {}\n  ibfab show",
            client(second)
        )
    };
    text
}

/// Ends all that is there. What fails does not keep it from the rest; the first failure is returned, and a
/// second call tries all again.
fn end(control: &Path) -> anyhow::Result<()> {
    let topology: Topology = TOPOLOGY.parse()?;
    let emptied = system::empty_namespace(NAMESPACE);
    system::close_interfaces();
    let steps = [
        emptied,
        process::stop("opensm"),
        process::stop("fabric"),
        HOSTS.iter().try_for_each(|host| goes(node(&topology, host)?)),
        system::remove_namespace(NAMESPACE),
    ];
    steps.into_iter().collect::<anyhow::Result<()>>()?;
    system::unload();
    // The socket of a dead fabric. It is not ours if another fabric listens there.
    if control.exists() && std::os::unix::net::UnixStream::connect(control).is_err() {
        fs::remove_file(control).with_context(|| control.display().to_string())?;
    }
    fs::remove_dir_all(STATE).context(STATE)
}

/// Waits until an HCA has gone. The kernel keeps one whose memory a program has mapped.
fn goes(node: &Node) -> anyhow::Result<()> {
    if let Some(device) = stays(node, PATIENCE)? {
        bail!("{device} is in use: end the programs that have it open, then `ibfab down`");
    }
    Ok(())
}

/// The HCA of the node, if it is there for so long.
fn stays(node: &Node, patience: Duration) -> anyhow::Result<Option<String>> {
    let began = Instant::now();
    loop {
        let device = system::device(node)?;
        if device.is_none() || began.elapsed() > patience {
            return Ok(device);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topology_has_a_cabled_node_of_one_port_for_each_host() {
        let topology: Topology = TOPOLOGY.parse().unwrap();
        for host in &HOSTS {
            let node = node(&topology, host).unwrap();
            assert_eq!(node.port_count(), 1);
            assert!(topology.peer(topology.find_port(host.node).unwrap()).is_some());
        }
    }
}
