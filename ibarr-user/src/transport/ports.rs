// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The InfiniBand ports of this machine, as sysfs shows them, and their umad devices. Each RDMA
//! device has its own thread, which reads it every second and on request: a driver may ask its
//! firmware, and one that hangs must not block anything else.
//!
//! A table can have 128 P_Keys, and a driver asks its firmware for each. So **where events of the device are heard, its
//! tables are read after each event, and otherwise every [`TABLES_EVERY`] looks**; elsewhere in each look.
//!
//! | below `--sys-dir` | |
//! |---|---|
//! | `class/infiniband/DEVICE/` | `node_guid` |
//! | `class/infiniband/DEVICE/ports/N/` | `link_layer`, `rate`, `state`, `lid`, `lid_mask_count`, `sm_lid`, `sm_sl`, `gids/I`, `pkeys/I` |
//! | `class/infiniband_mad/umadM/` | `ibdev`, `port`: the port of `--dev-dir`/infiniband/umadM |

mod sysfs;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use ibarr_common::ib::{DeviceName, PortNum};
use ibarr_proto::paths::{PortFacts, PortName};
use tokio::sync::mpsc;
use tracing::warn;

pub(crate) use self::sysfs::all;
use self::sysfs::{facts, names};
use crate::causes::{Fault, fault};
use crate::regular_file::text;
use crate::sys::umad::Opened;

/// Mount points of the kernel's file systems.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Dirs {
    /// Sysfs, usually `/sys`.
    pub sys: PathBuf,
    /// Device files, usually `/dev`.
    pub dev: PathBuf,
}

/// A message of a thread.
#[derive(Debug)]
pub(crate) enum Event {
    /// A port is new or has changed.
    Port {
        /// Device and port number.
        name: PortName,
        /// What sysfs says. Whether the port can send MADs is unknown here.
        facts: PortFacts,
        /// The umad device, if it has just been opened.
        opened: Option<(Opened, Token)>,
        /// Why no umad device is open.
        blocked: Option<Fault>,
    },
    /// A port was removed.
    Gone(PortName),
    /// The devices that were there at the start.
    Listed(Vec<DeviceName>),
    /// The ports of a device have been read.
    Read(DeviceName),
}

/// Held by the user of a umad device. When it is dropped, the device is opened again.
#[derive(Debug, Default)]
pub(crate) struct Token(Arc<()>);

/// The threads that watch ports.
#[derive(Debug)]
pub(crate) struct Ports {
    poke: Arc<Poke>,
}

impl Ports {
    /// Starts to watch all ports, present and future.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(dirs: Dirs) -> io::Result<(Self, mpsc::Receiver<Event>)> {
        let (events, received) = mpsc::channel(super::PORT_EVENTS);
        let poke = Arc::new(Poke::default());
        let watch = Watch { dirs, poke: Arc::clone(&poke), events };
        thread::Builder::new().name("ports".to_owned()).spawn(move || watch.devices())?;
        Ok((Self { poke }, received))
    }

    /// Makes the threads look now, because something about ports has probably changed.
    pub(crate) fn look(&self) {
        self.poke.poke();
    }

    /// Says whether the kernel tells of each change of a device.
    pub(crate) fn note_heard(&self, device: DeviceName, is_heard: bool) {
        let mut state = self.poke.state.lock().unwrap_or_else(PoisonError::into_inner);
        if is_heard {
            state.heard.insert(device);
        } else {
            state.heard.remove(&device);
        }
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        self.poke.end();
    }
}

/// Wakes threads, or ends them.
#[derive(Debug, Default)]
pub(super) struct Poke {
    state: Mutex<Pokes>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Pokes {
    count: u64,
    ended: bool,
    /// The devices whose events are received.
    heard: BTreeSet<DeviceName>,
}

/// Interval between two looks of a thread.
const PERIOD: Duration = Duration::from_secs(1);
/// Of so many looks, one reads the tables although nothing has happened.
const TABLES_EVERY: u32 = 10;
/// So many looks after an event read them: before Linux 5.6 the kernel may tell of an event before it has read the
/// tables itself (`ib_cache_event` in drivers/infiniband/core/cache.c).
const TABLES_AFTER: u32 = 2;

impl Poke {
    fn poke(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).count += 1;
        self.changed.notify_all();
    }

    fn is_heard(&self, device: DeviceName) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).heard.contains(&device)
    }

    pub(super) fn end(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.changed.notify_all();
    }

    /// Waits for a poke after number `seen`, at most for `period`; `false` at the end of the
    /// daemon.
    pub(super) fn wait(&self, seen: &mut u64, period: Duration) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |pokes: &mut Pokes| !pokes.ended && pokes.count == *seen;
        let waited = self.changed.wait_timeout_while(state, period, idle);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *seen = state.count;
        !state.ended
    }
}

#[derive(Clone, Debug)]
struct Watch {
    dirs: Dirs,
    poke: Arc<Poke>,
    events: mpsc::Sender<Event>,
}

impl Watch {
    /// Starts a thread for each device that appears.
    fn devices(self) {
        let mut watched: BTreeMap<DeviceName, thread::JoinHandle<()>> = BTreeMap::new();
        let (mut pokes, mut is_first) = (0, true);
        loop {
            watched.retain(|_, thread| !thread.is_finished());
            let devices: Vec<_> = names(&self.dirs.sys.join("class/infiniband")).collect();
            if std::mem::take(&mut is_first) {
                // Without a receiver the engine has ended; the poke then ends this thread.
                drop(self.events.blocking_send(Event::Listed(devices.clone())));
            }
            for device in devices {
                if watched.contains_key(&device) {
                    continue;
                }
                let watch = self.clone();
                let name = format!("ports {device}").chars().take(15).collect();
                match thread::Builder::new().name(name).spawn(move || watch.device(device)) {
                    Ok(thread) => drop(watched.insert(device, thread)),
                    Err(error) => {
                        warn!(%device, %error, "cannot start a thread to watch its ports");
                    }
                }
            }
            if !self.poke.wait(&mut pokes, PERIOD) {
                return;
            }
        }
    }

    /// Watches the ports of a device until it is removed.
    fn device(&self, device: DeviceName) {
        let mut told: BTreeMap<PortName, LastReport> = BTreeMap::new();
        let (mut pokes, mut is_first) = (0, true);
        let mut tables = Tables::default();
        loop {
            let is_whole = tables.are_due(self.poke.is_heard(device));
            let dir = self.dirs.sys.join("class/infiniband").join(device.as_str()).join("ports");
            let is_there = dir.exists();
            let numbers: BTreeSet<u8> = names(&dir).collect();
            let numbers = numbers.into_iter().filter_map(PortNum::new);
            let mut seen = BTreeSet::new();
            for port in numbers {
                let name = PortName { device, port };
                let known = told.get(&name).and_then(|last| last.facts.as_ref());
                let known = known.filter(|_| !is_whole);
                let Some(facts) = facts(&dir.join(port.to_string()), known) else { continue };
                seen.insert(name);
                if !self.tell(name, facts, told.entry(name).or_default()) {
                    return;
                }
            }
            let gone: Vec<_> = told.keys().filter(|name| !seen.contains(name)).copied().collect();
            for name in gone {
                told.remove(&name);
                if self.events.blocking_send(Event::Gone(name)).is_err() {
                    return;
                }
            }
            if std::mem::take(&mut is_first)
                && self.events.blocking_send(Event::Read(device)).is_err()
            {
                return;
            }
            let before = pokes;
            if !is_there || !self.poke.wait(&mut pokes, PERIOD) {
                return;
            }
            if pokes != before {
                tables.poke();
            }
        }
    }

    /// Reports changes; `false` if the engine is gone.
    fn tell(&self, name: PortName, facts: PortFacts, told: &mut LastReport) -> bool {
        let (opened, blocked) = match told.open_device.upgrade() {
            Some(_) => (None, None),
            None => match open_device(&self.dirs, name) {
                Ok(opened) => (Some((opened, Token::default())), None),
                Err(reason) => (None, Some(reason)),
            },
        };
        let is_news =
            opened.is_some() || told.facts.as_ref() != Some(&facts) || told.blocked != blocked;
        if !is_news {
            return true;
        }
        if let Some((_, token)) = &opened {
            told.open_device = Arc::downgrade(&token.0);
        }
        told.facts = Some(facts.clone());
        told.blocked.clone_from(&blocked);
        self.events.blocking_send(Event::Port { name, facts, opened, blocked }).is_ok()
    }
}

/// When the tables of a device are read.
#[derive(Debug)]
struct Tables {
    /// So many looks from now on read them.
    wanted: u32,
    /// Looks since one that did.
    skipped: u32,
}

impl Default for Tables {
    fn default() -> Self {
        Self { wanted: TABLES_AFTER, skipped: 0 }
    }
}

impl Tables {
    fn poke(&mut self) {
        self.wanted = TABLES_AFTER;
    }

    /// Called once in each look.
    fn are_due(&mut self, is_heard: bool) -> bool {
        let are_due = !is_heard || self.wanted > 0 || self.skipped + 1 >= TABLES_EVERY;
        self.wanted = self.wanted.saturating_sub(1);
        self.skipped = if are_due { 0 } else { self.skipped + 1 };
        are_due
    }
}

/// The last report about a port.
#[derive(Debug, Default)]
struct LastReport {
    facts: Option<PortFacts>,
    blocked: Option<Fault>,
    /// Exists while the engine has the device open.
    open_device: Weak<()>,
}

/// Opens the umad device of a port.
pub(crate) fn open_device(dirs: &Dirs, name: PortName) -> Result<Opened, Fault> {
    let class = dirs.sys.join("class/infiniband_mad");
    let is_its = |umad: &String| {
        let read = |file: &str| text(&class.join(umad).join(file)).unwrap_or_default();
        read("ibdev") == name.device.as_str() && read("port") == name.port.to_string()
    };
    let umad = names::<String>(&class).filter(|name| name.starts_with("umad")).find(is_its);
    let Some(umad) = umad else {
        return Err(fault!("it has no umad device: load the module ib_umad"));
    };
    let path = dirs.dev.join("infiniband").join(umad);
    Opened::open(&path).map_err(|error| fault!("{}: {error}{}", path.display(), remedy(&error)))
}

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EACCES) => {
            ": the package's udev rule gives it to the user ibarr; for a device that was there \
             before: udevadm trigger -c change -s infiniband_mad"
        }
        Some(libc::EPERM) => OF_OTHERS,
        _ => "",
    }
}

/// For `EPERM` of a device file (`rdma_dev_access_netns` in drivers/infiniband/core/device.c, and cgroups).
pub(crate) const OF_OTHERS: &str = ": the HCA is another network namespace's (rdma system show, rdma dev show), or \
     the unit forbids the device (DeviceAllow=)";

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use ibarr_common::ib::{Guid, Lid, PKey, Rate, Sl};
    use ibarr_common::wire::umad::PKeyIndex;
    use ibarr_proto::paths::{Device, GidIndex};
    use tempfile::TempDir;

    use super::*;

    /// A fake sysfs with one device and two ports.
    struct Sys(TempDir);

    impl Sys {
        fn new() -> Self {
            let this = Self(TempDir::new().unwrap());
            this.write("class/infiniband/mlx5_1/node_guid", "0002:c903:0000:0100");
            for (device, port, layer) in [
                ("mlx5_1", 1, "InfiniBand"),
                ("mlx5_1", 2, "Ethernet"),
                ("mlx5_10", 1, "InfiniBand"),
            ] {
                let port = format!("class/infiniband/{device}/ports/{port}");
                this.write(&format!("{port}/link_layer"), layer);
                this.write(&format!("{port}/rate"), "100 Gb/sec (4X EDR)");
                this.write(&format!("{port}/state"), "4: ACTIVE");
                this.write(&format!("{port}/lid"), "0x8");
                this.write(&format!("{port}/lid_mask_count"), "1");
                this.write(&format!("{port}/sm_lid"), "0x1");
                this.write(&format!("{port}/sm_sl"), "3");
                this.write(&format!("{port}/gids/0"), "fe80:0000:0000:0000:0000:0000:0010:0009");
                this.write(&format!("{port}/gids/1"), "0000:0000:0000:0000:0000:0000:0000:0000");
                this.write(&format!("{port}/gids/2"), "fec0:0000:0001:0001:0000:0000:0010:0009");
                this.write(&format!("{port}/pkeys/0"), "0xffff");
                this.write(&format!("{port}/pkeys/1"), "0x0000");
                this.write(&format!("{port}/pkeys/2"), "0x8001");
            }
            for (umad, device) in [("umad0", "mlx5_10"), ("umad1", "mlx5_1")] {
                this.write(&format!("class/infiniband_mad/{umad}/ibdev"), device);
                this.write(&format!("class/infiniband_mad/{umad}/port"), "1");
            }
            this.write("class/infiniband_mad/abi_version", "5");
            this
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            // A reader finds the old text or the new one, as in sysfs.
            let new = path.with_extension("new");
            fs::write(&new, format!("{text}\n")).unwrap();
            fs::rename(new, path).unwrap();
        }

        fn dirs(&self) -> Dirs {
            Dirs { sys: self.0.path().to_owned(), dev: self.0.path().join("dev") }
        }
    }

    fn name(device: &str) -> PortName {
        PortName { device: device.parse().unwrap(), port: PortNum::new(1).unwrap() }
    }

    #[test]
    fn facts_of_infiniband_ports_are_read_and_other_ports_ignored() {
        let sys = Sys::new();
        let port = |device, port| {
            facts(&sys.0.path().join(format!("class/infiniband/{device}/ports/{port}")), None)
        };
        let expected = PortFacts {
            is_active: true,
            has_umad: false,
            lid: Lid::new(8),
            lmc: 1,
            sm_lid: Lid::new(1),
            sm_sl: Sl::new(3).unwrap(),
            gids: [(0, "fe80::10:9"), (2, "fec0:0:1:1::10:9")]
                .map(|(index, gid)| (GidIndex(index), gid.parse().unwrap()))
                .into_iter()
                .collect(),
            pkeys: vec![(PKeyIndex(0), PKey::DEFAULT), (PKeyIndex(2), PKey::new(0x8001).unwrap())],
            rate: Some(Rate::from_low_bits(16)),
            device: Device { guid: Some(Guid::new(0x0002_c903_0000_0100)), ports: 2 },
        };
        assert_eq!(port("mlx5_1", 1), Some(expected));
        assert_eq!(port("mlx5_1", 2), None);
        assert_eq!(port("mlx5_1", 3), None);
        sys.write("class/infiniband/mlx5_1/ports/1/state", "1: DOWN");
        sys.write("class/infiniband/mlx5_1/ports/1/sm_lid", "0x0");
        sys.write("class/infiniband/mlx5_1/ports/1/lid", "0xffff");
        let down = port("mlx5_1", 1).unwrap();
        assert_eq!((down.is_active, down.sm_lid, down.lid), (false, None, None));
    }

    #[test]
    fn tables_are_kept_while_the_rest_is_as_before() {
        let sys = Sys::new();
        let dir = sys.0.path().join("class/infiniband/mlx5_1/ports/1");
        let before = facts(&dir, None).unwrap();
        sys.write("class/infiniband/mlx5_1/ports/1/pkeys/1", "0x8002");
        assert_eq!(facts(&dir, Some(&before)).as_ref(), Some(&before));
        assert_eq!(facts(&dir, None).unwrap().pkeys.len(), 3);
        sys.write("class/infiniband/mlx5_1/ports/1/lid", "0x9");
        assert_eq!(facts(&dir, Some(&before)).unwrap().pkeys.len(), 3);
    }

    #[test]
    fn tables_are_read_after_events_and_in_each_tenth_look() {
        let mut tables = Tables::default();
        let mut looks = |count, is_heard| -> Vec<_> {
            (1..=count).filter(|_| tables.are_due(is_heard)).collect()
        };
        assert_eq!(looks(31, true), [1, 2, 12, 22]);
        assert_eq!(looks(3, false), [1, 2, 3]);
        assert_eq!(looks(10, true), [10]);
        tables.poke();
        let mut looks =
            |count| -> Vec<_> { (1..=count).filter(|_| tables.are_due(true)).collect() };
        assert_eq!(looks(12), [1, 2, 12]);
    }

    #[test]
    fn umad_device_is_found_by_the_full_device_name() {
        let sys = Sys::new();
        let reason = |device| open_device(&sys.dirs(), name(device)).unwrap_err().to_string();
        assert!(reason("mlx5_1").contains("infiniband/umad1"), "{}", reason("mlx5_1"));
        assert!(reason("mlx5_10").contains("infiniband/umad0"), "{}", reason("mlx5_10"));
        assert!(reason("mlx5_0").contains("ib_umad"), "{}", reason("mlx5_0"));
    }

    #[test]
    fn missing_right_has_a_remedy() {
        assert!(remedy(&io::Error::from_raw_os_error(libc::EACCES)).contains("udevadm trigger"));
        assert!(remedy(&io::Error::from_raw_os_error(libc::EPERM)).contains("network namespace"));
        assert_eq!(remedy(&io::Error::from_raw_os_error(libc::ENXIO)), "");
    }

    #[test]
    fn devices_are_listed_first_and_read_when_their_ports_are_told() {
        let sys = Sys::new();
        fs::remove_dir_all(sys.0.path().join("class/infiniband/mlx5_10")).unwrap();
        let (_ports, mut events) = Ports::start(sys.dirs()).unwrap();
        let device = name("mlx5_1").device;
        let mut next = || events.blocking_recv().unwrap();
        assert!(matches!(next(), Event::Listed(devices) if devices == [device]));
        assert!(matches!(next(), Event::Port { name, .. } if name.device == device));
        assert!(matches!(next(), Event::Read(read) if read == device));
    }

    #[test]
    fn only_changes_are_reported() {
        let sys = Sys::new();
        // In real sysfs, a device is a symbolic link.
        let class = sys.0.path().join("class/infiniband");
        fs::rename(class.join("mlx5_1"), sys.0.path().join("moved")).unwrap();
        symlink(sys.0.path().join("moved"), class.join("mlx5_1")).unwrap();
        fs::remove_dir_all(class.join("mlx5_10")).unwrap();
        let (ports, mut events) = Ports::start(sys.dirs()).unwrap();
        let mut next = || {
            loop {
                match events.blocking_recv().unwrap() {
                    Event::Port { name, facts, opened: None, blocked } => {
                        return (name, Some((facts.sm_lid.map(Lid::get), blocked.is_some())));
                    }
                    Event::Gone(name) => return (name, None),
                    Event::Listed(_) | Event::Read(_) => {}
                    event @ Event::Port { .. } => panic!("{event:?}"),
                }
            }
        };
        assert_eq!(next(), (name("mlx5_1"), Some((Some(1), true))));
        ports.look();
        sys.write("class/infiniband/mlx5_1/ports/1/sm_lid", "0x6");
        ports.look();
        assert_eq!(next(), (name("mlx5_1"), Some((Some(6), true))));
        fs::remove_file(class.join("mlx5_1")).unwrap();
        ports.look();
        assert_eq!(next(), (name("mlx5_1"), None));
        // The device comes back.
        symlink(sys.0.path().join("moved"), class.join("mlx5_1")).unwrap();
        ports.look();
        assert_eq!(next(), (name("mlx5_1"), Some((Some(6), true))));
    }
}
