// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! A fabric, OpenSM, and nodes in namespaces, on software HCAs: the rig of scenarios with real
//! InfiniBand.
//!
//! ```text
//!   N port 1  ib0  10.1.0.1    here         N 1, 3, 5 --- S1 --- S2 --- N 2, 4
//!   N port 2  ib1  10.2.0.1    netns b                    |
//!   N port 3  ib2  10.1.0.254  netns r                    SM
//!   N port 4  ib3  10.2.0.254  netns r
//!   N port 5  ib4  10.1.0.2    netns n
//! ```
//!
//! One more channel adapter, J, is down until a host joins.
//!
//! There is one InfiniBand subnet with two IP subnets, and `r` routes between them. All nodes are ports
//! of one HCA, whose connections the kernel carries without the fabric. OpenSM has an HCA of its own,
//! because its library skips HCAs of more than two ports. Callers are in the first namespace, because the
//! kernel sends its requests only there.

pub mod capture;
mod connections;
mod process;
mod sysfs;
pub mod verbs;

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

pub use self::connections::{
    Connection, is_listening, pair, rping, rping_from, rping_lossy, stream,
};
pub use self::process::{Process, RESULTS, STAND_IN, cpu_time, run, spawn};

/// Where a command runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Place {
    /// The first network namespace, in which the kernel sends its requests.
    Here,
    /// A network namespace by its name.
    Netns(&'static str),
    /// The other guest of `vm cluster`.
    Other,
}

/// The node behind the router.
pub const B: Place = Place::Netns("b");
/// The other node in our IP subnet.
pub const N: Place = Place::Netns("n");
/// The router between both IP subnets.
pub const R: Place = Place::Netns("r");

/// An IPoIB interface of the rig.
#[derive(Clone, Copy, Debug)]
pub struct Interface {
    /// As the kernel names it.
    pub name: &'static str,
    /// `device/ports/number` in /sys/class/infiniband.
    pub port: &'static str,
    /// The namespace into which it is moved.
    pub place: Place,
    /// Its addresses with their prefix lengths, IPv4 and IPv6.
    pub addresses: [&'static str; 2],
}

/// All of them, in the order of their ports.
pub const INTERFACES: [Interface; 5] = [
    Interface {
        name: "ib0",
        port: "ibtun0/ports/1",
        place: Place::Here,
        addresses: ["10.1.0.1/24", "fd00:1::1/64"],
    },
    Interface {
        name: "ib1",
        port: "ibtun0/ports/2",
        place: B,
        addresses: ["10.2.0.1/24", "fd00:2::1/64"],
    },
    Interface {
        name: "ib2",
        port: "ibtun0/ports/3",
        place: R,
        addresses: ["10.1.0.254/24", "fd00:1::fe/64"],
    },
    Interface {
        name: "ib3",
        port: "ibtun0/ports/4",
        place: R,
        addresses: ["10.2.0.254/24", "fd00:2::fe/64"],
    },
    Interface {
        name: "ib4",
        port: "ibtun0/ports/5",
        place: N,
        addresses: ["10.1.0.2/24", "fd00:1::2/64"],
    },
];

/// What a port counts only if packets were lost, or were thought to be.
pub const LOSSES: [&str; 6] = [
    "rc_time_outs",
    "rc_sequence_naks",
    "rc_lost_responses",
    "rx_duplicates",
    "rx_drop_sequence",
    "tx_drop_queue",
];

/// The second partition, as in names of interfaces.
pub const PKEY: &str = "8001";

/// The port of OpenSM.
const SM_PORT: &str = "ibtun1/ports/1";

/// The topology file that `xtask/src/vm/rig.rs` puts into the guest.
pub const TOPOLOGY: &str = "/etc/rig/topology";
const PARTITIONS: &str = "/etc/rig/partitions.conf";
const OPENSM: &str = "/etc/rig/opensm.conf";

/// The address at which hosts of other channel adapters may join.
pub const FABRIC: &str = "udp:127.0.0.1:7471";

/// How long work of a daemon or of the kernel in the background may take, on a machine with other
/// work.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// The rig: its programs run until it is dropped.
#[derive(Debug)]
pub struct Rig {
    /// The subnet manager, which runs here.
    pub opensm: Process,
    /// `ibfab`, whose HCAs these are.
    pub fabric: Process,
}

impl Rig {
    /// Starts the fabric, whose channel adapters become HCAs of this machine, and captures its packets.
    pub fn fabric() -> Result<Process> {
        Self::fabric_with(&["--capture", &format!("{RESULTS}/fabric.pcap")])
    }

    fn fabric_with(options: &[&str]) -> Result<Process> {
        ip(Place::Here, "link set lo up")?;
        let devices = ["--device", "N,SM", "--listen", FABRIC];
        let words = [&["ibfab", "run", TOPOLOGY], options, &devices[..]].concat();
        let fabric = spawn("ibfab", Place::Here, &words)?;
        eventually(|| {
            for Interface { name, .. } in INTERFACES {
                let file = format!("/sys/class/net/{name}");
                ensure!(Path::new(&file).exists(), "there is no {name}");
            }
            Ok(())
        })?;
        Ok(fabric)
    }

    /// Starts OpenSM on its port.
    pub fn opensm() -> Result<Process> {
        opensm_at(Place::Here, SM_PORT, &["--Pconfig", PARTITIONS])
    }

    /// Checks that every port is ACTIVE and has a LID.
    pub fn ports_are_active() -> Result<()> {
        INTERFACES.iter().try_for_each(|interface| is_active(Place::Here, interface.port))
    }

    /// Makes namespaces, addresses and routes, and sets every interface up.
    pub fn network() -> Result<()> {
        for name in ["b", "n", "r"] {
            ip(Place::Here, &format!("netns add {name}"))?;
            ip(Place::Netns(name), "link set lo up")?;
        }
        write(R, "/proc/sys/net/ipv4/ip_forward", "1")?;
        if has_ipv6() {
            write(R, "/proc/sys/net/ipv6/conf/all/forwarding", "1")?;
        }
        Self::distribute()?;
        Self::wire()
    }

    /// Moves new interfaces to their namespaces.
    pub fn distribute() -> Result<()> {
        for Interface { name, place, .. } in INTERFACES {
            if let Place::Netns(netns) = place {
                ip(Place::Here, &format!("link set {name} netns {netns}"))?;
            }
        }
        Ok(())
    }

    /// Makes missing addresses and routes, and sets every interface up.
    pub fn wire() -> Result<()> {
        INTERFACES.iter().try_for_each(|interface| equip(interface, interface.name))?;
        Self::routes()?;
        INTERFACES.iter().try_for_each(|interface| is_up(interface.place, interface.name))
    }

    /// Makes the routes through the router. They do not name an interface.
    pub fn routes() -> Result<()> {
        for (place, destination, gateway) in [
            (Place::Here, "10.2.0.0/24", "10.1.0.254"),
            (Place::Here, "fd00:2::/64", "fd00:1::fe"),
            (B, "10.1.0.0/24", "10.2.0.254"),
            (B, "fd00:1::/64", "fd00:2::fe"),
            (N, "10.2.0.0/24", "10.1.0.254"),
            (N, "fd00:2::/64", "fd00:1::fe"),
        ] {
            if is_known(destination) {
                ip(place, &format!("route replace {destination} via {gateway}"))?;
            }
        }
        Ok(())
    }

    /// Sets every interface to connected mode, with the largest MTU of that mode.
    pub fn connected_mode() -> Result<()> {
        for Interface { name, place, .. } in INTERFACES {
            connected_mode(place, name)?;
        }
        INTERFACES.iter().try_for_each(|interface| is_up(interface.place, interface.name))
    }

    /// Sets up the whole rig, in datagram mode.
    pub fn up() -> Result<Self> {
        Self::up_on(Self::fabric()?)
    }

    /// The same without a capture, which takes time.
    pub fn up_without_capture() -> Result<Self> {
        Self::up_on(Self::fabric_with(&[])?)
    }

    fn up_on(fabric: Process) -> Result<Self> {
        let opensm = Self::opensm()?;
        Self::ports_are_active()?;
        Self::network()?;
        Ok(Self { opensm, fabric })
    }
}

/// Starts OpenSM on a port, which is written `device/ports/number`.
pub fn opensm_at(place: Place, port: &str, options: &[&str]) -> Result<Process> {
    let guid = guid_of(place, port)?;
    let log = format!("{RESULTS}/opensm.log");
    let words = ["opensm", "-F", OPENSM, "--guid", &guid, "--log_file", &log];
    spawn("opensm", place, &[&words, options].concat())
}

/// The GUID of a port that may not be there yet, as OpenSM wants it.
pub fn guid_of(place: Place, port: &str) -> Result<String> {
    let first = eventually(|| port_attribute(place, port, "gids/0"))?;
    // Four groups of the prefix, and the GUID.
    let guid = first.get(20..).context("a short GID")?;
    Ok(format!("0x{}", guid.replace(':', "")))
}

/// Waits until a port is ACTIVE and has a LID.
pub fn is_active(place: Place, port: &str) -> Result<()> {
    eventually(|| {
        let state = port_attribute(place, port, "state")?;
        ensure!(state == "4: ACTIVE", "{port} is {state}");
        ensure!(port_attribute(place, port, "lid")? != "0x0", "{port} has no LID");
        Ok(())
    })
}

/// A file of a port in /sys/class/infiniband.
pub fn port_attribute(place: Place, port: &str, name: &str) -> Result<String> {
    let file = format!("/sys/class/infiniband/{port}/{name}");
    let text = match place {
        Place::Other => run(place, &["busybox", "cat", &file])?,
        _ => fs::read_to_string(&file).context(file)?,
    };
    Ok(text.trim().to_owned())
}

/// The name of the partition's interface on top of `parent`.
pub fn child_of(parent: &str) -> String {
    format!("{parent}.{PKEY}")
}

/// Makes an interface of the partition, with addresses, and sets it up.
pub fn add_child(parent: &str, place: Place, addresses: &[&str]) -> Result<()> {
    let child = child_of(parent);
    ip(place, &format!("link add link {parent} name {child} type ipoib pkey 0x{PKEY}"))?;
    for address in addresses {
        ip(place, &format!("address add {address} dev {child} nodad"))?;
    }
    ip(place, &format!("link set {child} up"))?;
    is_up(place, &child)
}

/// Whether the kernel has IPv6, and it is on (`ipv6.disable=0`).
pub fn has_ipv6() -> bool {
    Path::new("/proc/net/if_inet6").exists()
}

/// Whether the kernel knows the family of an address.
fn is_known(address: &str) -> bool {
    !address.contains(':') || has_ipv6()
}

/// Gives an interface, whose current name is `name`, its addresses, and sets it up.
pub fn equip(interface: &Interface, name: &str) -> Result<()> {
    let Interface { place, addresses, .. } = *interface;
    set_up(place, name, addresses)
}

/// Gives an interface addresses, IPv4 and IPv6, and sets it up.
pub fn set_up(place: Place, name: &str, addresses: [&str; 2]) -> Result<()> {
    for address in addresses.into_iter().filter(|address| is_known(address)) {
        ip(place, &format!("address replace {address} dev {name} nodad"))?;
    }
    ip(place, &format!("link set {name} up")).map(drop)
}

/// Sets an interface to connected mode, with the largest MTU of that mode.
pub fn connected_mode(place: Place, name: &str) -> Result<()> {
    ip(place, &format!("link set {name} type ipoib mode connected"))?;
    ip(place, &format!("link set {name} mtu 65520")).map(drop)
}

/// iproute2's `ip`, its arguments separated by spaces.
pub fn ip(place: Place, arguments: &str) -> Result<String> {
    let words: Vec<_> = ["ip"].into_iter().chain(arguments.split(' ')).collect();
    run(place, &words)
}

/// Writes to a file of /proc or /sys in a namespace.
pub fn write(place: Place, file: &str, value: &str) -> Result<()> {
    run(place, &["busybox", "sh", "-c", &format!("echo {value} > {file}")]).map(drop)
}

/// Waits until an interface has joined its broadcast group and can send.
pub fn is_up(place: Place, name: &str) -> Result<()> {
    eventually(|| {
        let shown = ip(place, &format!("link show {name}"))?;
        ensure!(shown.contains("LOWER_UP") && shown.contains("state UP"), "{shown}");
        Ok(())
    })
}

/// Waits until `check` succeeds. Returns its last error if it never does.
pub fn eventually<T>(check: impl Fn() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    loop {
        match check() {
            Err(_) if began.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(50)),
            outcome => return outcome,
        }
    }
}
