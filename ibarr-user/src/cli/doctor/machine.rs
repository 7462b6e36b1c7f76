// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What the machine itself has: modules, InfiniBand ports, IPoIB interfaces, and a place for BPF maps.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::control::messages::Check;
use crate::regular_file::text;
use crate::transport::ports::Dirs;

/// `ARPHRD_INFINIBAND`.
pub(super) const INFINIBAND: &str = "32";

pub(super) fn checks(dirs: &Dirs) -> Vec<Check> {
    vec![modules(&dirs.sys), ports(&dirs.sys), interfaces(&dirs.sys), umad(dirs)]
}

/// Whether programs that are started from here may lock enough memory, which RDMA programs do with what they register.
pub(super) fn memlock(limit: Option<u64>) -> Check {
    const CHECK: &str = "memlock";
    /// What an MPI rank registers easily.
    const LITTLE: u64 = 64 << 20;
    match limit {
        None => Check::skipped(CHECK, "the limit of locked memory cannot be read"),
        Some(RLIM_INFINITY) => Check::ok(CHECK, "programs started here may lock all memory"),
        Some(most @ ..LITTLE) => Check::warn(
            CHECK,
            format!(
                "programs started here may lock {} KiB, and RDMA programs lock what they register",
                most >> 10
            ),
            "memlock unlimited in /etc/security/limits.d for users, LimitMEMLOCK=infinity in units",
        ),
        Some(most) => {
            Check::ok(CHECK, format!("programs started here may lock {} MiB", most >> 20))
        }
    }
}

/// The limit of this process.
pub(super) fn locked_memory() -> Option<u64> {
    getrlimit(Resource::RLIMIT_MEMLOCK).ok().map(|(soft, _)| soft)
}

/// Whether the kernel forwards packets of either family.
pub(super) fn forwards() -> bool {
    let is_on =
        |file: &str| text(&Path::new("/proc/sys/net").join(file)).is_some_and(|value| value != "0");
    is_on("ipv4/ip_forward") || is_on("ipv6/conf/all/forwarding")
}

/// A part of the kernel, the evidence for it below sysfs, and what does not work without it.
struct Part {
    module: &'static str,
    evidence: &'static str,
    gives: &'static str,
    is_vital: bool,
}

const PARTS: [Part; 4] = [
    Part {
        module: "ib_core",
        evidence: "class/infiniband",
        gives: "no InfiniBand at all",
        is_vital: true,
    },
    Part {
        module: "ib_ipoib",
        evidence: "module/ib_ipoib",
        gives: "no IP addresses on InfiniBand",
        is_vital: true,
    },
    Part {
        module: "ib_umad",
        evidence: "class/infiniband_mad",
        gives: "the daemon cannot ask the subnet administrator, so the kernel does for each connection",
        is_vital: false,
    },
    Part {
        module: "rdma_ucm",
        evidence: "class/misc/rdma_cm",
        gives: "no application can connect by librdmacm",
        is_vital: false,
    },
];

/// A module that is compiled into the kernel leaves only the evidence.
fn modules(sys: &Path) -> Check {
    const CHECK: &str = "modules";
    let is_there = |part: &&Part| {
        sys.join("module").join(part.module).exists() || sys.join(part.evidence).exists()
    };
    let (there, missing): (Vec<_>, Vec<_>) = PARTS.iter().partition(is_there);
    if missing.is_empty() {
        let names: Vec<_> = there.iter().map(|part| part.module).collect();
        return Check::ok(CHECK, format!("{} are loaded", names.join(", ")));
    }
    let lack = |part: &&Part| format!("{} is not loaded: {}", part.module, part.gives);
    let found = missing.iter().map(lack).collect::<Vec<_>>().join("; ");
    let names: Vec<_> = missing.iter().map(|part| part.module).collect();
    let remedy = format!("modprobe -a {}", names.join(" "));
    if missing.iter().any(|part| part.is_vital) {
        Check::fail(CHECK, found, remedy)
    } else {
        Check::warn(CHECK, found, remedy)
    }
}

/// An InfiniBand port as sysfs shows it: its name, and its state such as `4: ACTIVE`.
fn ports(sys: &Path) -> Check {
    const CHECK: &str = "ports";
    let mut ports = Vec::new();
    for device in entries(&sys.join("class/infiniband")) {
        for port in entries(&device.join("ports")) {
            if text(&port.join("link_layer")).as_deref() == Some("InfiniBand") {
                let name = format!("{}/{}", name(&device), name(&port));
                ports.push((name, text(&port.join("state")).unwrap_or_default()));
            }
        }
    }
    let Some((first, state)) = ports.iter().find(|(_, state)| !state.starts_with('4')) else {
        if ports.is_empty() {
            let remedy = "load the driver of the HCA (lspci -k names it)";
            return Check::fail(CHECK, "this machine has no InfiniBand port", remedy);
        }
        let names: Vec<_> = ports.iter().map(|(name, _)| name.as_str()).collect();
        return Check::ok(CHECK, format!("active: {}", names.join(", ")));
    };
    let remedy = match state.as_bytes().first() {
        Some(b'1') => "check the cable, and the port of the switch (iblinkinfo)",
        Some(b'2' | b'3') => "the subnet manager has not set it up: is one running (sminfo)?",
        _ => "see dmesg for what the driver says",
    };
    let found =
        format!("{first} is not active, but {}", state.trim_start_matches(|c| c != ' ').trim());
    if ports.iter().any(|(_, state)| state.starts_with('4')) {
        Check::warn(CHECK, found, remedy)
    } else {
        Check::fail(CHECK, found, remedy)
    }
}

fn interfaces(sys: &Path) -> Check {
    const CHECK: &str = "interfaces";
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for interface in entries(&sys.join("class/net")) {
        if text(&interface.join("type")).as_deref() == Some(INFINIBAND) {
            // A driver without carrier detection says "unknown".
            let is_up =
                matches!(text(&interface.join("operstate")).as_deref(), Some("up" | "unknown"));
            if is_up { &mut up } else { &mut down }.push(name(&interface));
        }
    }
    match (up.as_slice(), down.as_slice()) {
        ([], []) => Check::fail(
            CHECK,
            "there is no IPoIB interface",
            "modprobe ib_ipoib; where there is no InfiniBand, only [[static-gid]] serves",
        ),
        ([], [first, ..]) => Check::fail(
            CHECK,
            format!("{} is down", down.join(", ")),
            format!("ip link set {first} up"),
        ),
        (_, []) => Check::ok(CHECK, format!("up: {}", up.join(", "))),
        (_, [first, ..]) => Check::warn(
            CHECK,
            format!("up: {}; down: {}", up.join(", "), down.join(", ")),
            format!("ip link set {first} up"),
        ),
    }
}

fn umad(Dirs { sys, dev }: &Dirs) -> Check {
    const CHECK: &str = "umad";
    let devices: Vec<_> = entries(&sys.join("class/infiniband_mad"))
        .iter()
        .map(|device| name(device))
        .filter(|name| name.starts_with("umad"))
        .collect();
    let missing: Vec<_> = devices
        .iter()
        .map(|name| dev.join("infiniband").join(name))
        .filter(|file| !file.exists())
        .map(|file| file.display().to_string())
        .collect();
    if devices.is_empty() {
        return Check::warn(CHECK, "there is no umad device", "modprobe ib_umad");
    }
    if !missing.is_empty() {
        return Check::warn(
            CHECK,
            format!("missing: {}", missing.join(", ")),
            "is udev running (udevadm trigger), or does a container lack /dev/infiniband?",
        );
    }
    Check::ok(CHECK, devices.join(", "))
}

/// Whether the directory of pins is on a bpffs. The daemon makes it, so its parent is what counts until then, or where
/// users may not look into the parent. The `process` of a daemon in procfs has its own mounts.
pub(super) fn bpffs(bpf_dir: &Path, process: Option<&Path>) -> Check {
    const CHECK: &str = "bpffs";
    let parent = bpf_dir.parent().unwrap_or(bpf_dir);
    let inside = |path: &Path| Some(process?.join("root").join(path.strip_prefix("/").ok()?));
    let of = |path: &Path| match inside(path).map(|path| statfs(&path)) {
        Some(Ok(found)) => Ok(found),
        _ => statfs(path),
    };
    match of(bpf_dir).or_else(|_| of(parent)) {
        Ok(found) if found.filesystem_type() == BPF_FS_MAGIC => {
            Check::ok(CHECK, format!("{} is on a bpffs", bpf_dir.display()))
        }
        found => {
            let why = found.map_or_else(|error| format!(" ({})", error.desc()), |_| String::new());
            let parent = parent.display();
            Check::warn(
                CHECK,
                format!("no bpffs is mounted at {parent}{why}: programs end with the daemon"),
                format!("mount -t bpf bpf {parent}, then restart the daemon"),
            )
        }
    }
}

/// The files of a directory in the order of their names; none if it cannot be read.
pub(super) fn entries(directory: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> =
        fs::read_dir(directory).into_iter().flatten().flatten().map(|it| it.path()).collect();
    entries.sort();
    entries
}

pub(super) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::control::messages::CheckState;

    /// A machine with one port, which a test breaks.
    struct Machine(TempDir);

    impl Machine {
        fn new() -> Self {
            let machine = Self(TempDir::new().unwrap());
            for file in [
                "sys/module/ib_core/x",
                "sys/module/ib_ipoib/x",
                "sys/module/ib_umad/x",
                "sys/module/rdma_ucm/x",
                "sys/class/infiniband_mad/umad0/ibdev",
                "dev/infiniband/umad0",
            ] {
                machine.write(file, "x");
            }
            machine.write("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n");
            machine.write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
            machine.write("sys/class/net/ib0/type", "32\n");
            machine.write("sys/class/net/ib0/operstate", "up\n");
            machine.write("sys/class/net/eth0/type", "1\n");
            machine
        }

        fn write(&self, file: &str, text: &str) {
            let path = self.0.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// The state and the remedy of each check that does not say ok.
        fn troubles(&self) -> Vec<(String, CheckState, String)> {
            let dirs = Dirs { sys: self.0.path().join("sys"), dev: self.0.path().join("dev") };
            let checks = checks(&dirs);
            assert_eq!(checks.len(), 4);
            let bad = checks.into_iter().filter(|check| check.state != CheckState::Ok);
            bad.map(|check| (check.check, check.state, check.remedy.unwrap())).collect()
        }
    }

    /// The one trouble of a machine.
    fn trouble(machine: &Machine) -> (String, CheckState, String) {
        let mut troubles = machine.troubles();
        assert_eq!(troubles.len(), 1, "{troubles:?}");
        troubles.remove(0)
    }

    #[test]
    fn machine_with_everything_has_no_trouble() {
        assert_eq!(Machine::new().troubles(), []);
    }

    #[test]
    fn module_that_is_not_loaded_is_named() {
        let machine = Machine::new();
        fs::remove_dir_all(machine.0.path().join("sys/module/rdma_ucm")).unwrap();
        let found = ("modules".to_owned(), CheckState::Warn, "modprobe -a rdma_ucm".to_owned());
        assert_eq!(trouble(&machine), found);
        machine.write("sys/class/misc/rdma_cm/dev", "10:1");
        assert_eq!(machine.troubles(), []);
        fs::remove_dir_all(machine.0.path().join("sys/module/ib_ipoib")).unwrap();
        assert_eq!(trouble(&machine).1, CheckState::Fail);
    }

    #[test]
    fn port_that_is_not_active_is_named_with_the_reason() {
        let machine = Machine::new();
        let state = "sys/class/infiniband/mlx5_0/ports/1/state";
        for (text, remedy) in [("1: DOWN", "cable"), ("2: INIT", "subnet manager")] {
            machine.write(state, text);
            let (check, state, said) = trouble(&machine);
            assert_eq!((check.as_str(), state), ("ports", CheckState::Fail));
            assert!(said.contains(remedy), "{said}");
        }
        machine.write("sys/class/infiniband/mlx5_1/ports/1/link_layer", "InfiniBand");
        machine.write("sys/class/infiniband/mlx5_1/ports/1/state", "4: ACTIVE");
        assert_eq!(trouble(&machine).1, CheckState::Warn);
    }

    #[test]
    fn interface_that_is_down_or_missing_is_named() {
        let machine = Machine::new();
        machine.write("sys/class/net/ib0/operstate", "down");
        assert_eq!(trouble(&machine).2, "ip link set ib0 up");
        fs::remove_dir_all(machine.0.path().join("sys/class/net/ib0")).unwrap();
        assert_eq!(trouble(&machine).1, CheckState::Fail);
    }

    #[test]
    fn umad_device_without_its_file_is_named() {
        let machine = Machine::new();
        fs::remove_file(machine.0.path().join("dev/infiniband/umad0")).unwrap();
        assert_eq!(trouble(&machine).0, "umad");
    }

    #[test]
    fn little_locked_memory_is_a_warning() {
        let state = |limit| memlock(limit).state;
        assert_eq!(state(Some(RLIM_INFINITY)), CheckState::Ok);
        assert_eq!(state(Some(8 << 20)), CheckState::Warn);
        assert!(memlock(Some(65536)).found.contains("may lock 64 KiB"));
        assert_eq!(state(Some(1 << 30)), CheckState::Ok);
        assert_eq!(state(None), CheckState::Skipped);
    }

    #[test]
    fn directory_of_pins_elsewhere_than_on_a_bpffs_is_named() {
        let dir = TempDir::new().unwrap();
        for pins in [dir.path().join("pins"), dir.path().join("no/pins")] {
            let check = bpffs(&pins, None);
            assert_eq!(check.state, CheckState::Warn);
            let parent = pins.parent().unwrap().display();
            assert!(check.found.contains(&format!("no bpffs is mounted at {parent}")), "{check:?}");
            let remedy = format!("mount -t bpf bpf {parent}, then restart the daemon");
            assert_eq!(check.remedy, Some(remedy));
        }
    }
}
