// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Starts and stops daemons in a guest, also with descriptors that the last one kept.

use std::fs::{self, Permissions};
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, ensure};
use ibarr_user::control::client;
use ibarr_user::control::messages::{Request, Response};
use nix::cmsg_space;
use nix::mount::{MsFlags, mount};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::unistd::close;
use serde_json::Value;

use super::{PATIENCE, Place, Process, eventually, spawn};

/// The bpffs of the daemons, outside of /sys because `ip netns exec` hides mounts in /sys.
const BPFFS: &str = "/run/bpf";

/// The user and the group `ibarr`. `xtask/src/vm/rig.rs` has the same.
const USER: u32 = 900;

/// `ibarr` in one of the namespaces.
#[derive(Debug)]
pub(crate) struct Ibarr {
    process: Process,
    name: &'static str,
    /// The socket of its notifications to systemd.
    notify: UnixDatagram,
}

/// A descriptor that a daemon has given to systemd.
#[derive(Debug)]
pub(crate) struct Kept {
    name: String,
    number: RawFd,
}

/// Passes the descriptors of `KEPT` to a program, as the first ones after the standard ones (sd_listen_fds(3)).
const PASS: &str = "
    export LISTEN_PID=$$ LISTEN_FDS=0
    for kept in $KEPT; do
        eval \"exec $((LISTEN_FDS + 3))<&$kept\"
        LISTEN_FDS=$((LISTEN_FDS + 1))
    done
    exec \"$@\"";

impl Ibarr {
    /// Starts a daemon with this configuration, as root. When it is ready, its programs must be on so many
    /// interfaces.
    pub(crate) fn start(
        name: &'static str,
        place: Place,
        config: &str,
        interfaces: u64,
    ) -> Result<Self> {
        Self::launch(name, place, config, interfaces, &[])
    }

    /// Like [`start`](Self::start), here, with descriptors of an earlier daemon, which are closed here.
    pub(crate) fn start_with(
        name: &'static str,
        config: &str,
        interfaces: u64,
        kept: Vec<Kept>,
    ) -> Result<Self> {
        let names: Vec<_> = kept.iter().map(|kept| kept.name.as_str()).collect();
        let names = format!("LISTEN_FDNAMES={}", names.join(":"));
        let numbers: Vec<_> = kept.iter().map(|kept| kept.number.to_string()).collect();
        let numbers = format!("KEPT={}", numbers.join(" "));
        let by = ["busybox", "env", &names, &numbers, "busybox", "sh", "-ec", PASS, "sh"];
        let ibarr = Self::launch(name, Place::Here, config, interfaces, &by);
        kept.into_iter().try_for_each(|kept| close(kept.number))?;
        ibarr
    }

    /// Like [`start`](Self::start), as the user and with the capabilities of `ibarr.service`. It gives the
    /// user the daemon's directories, as tmpfiles does for the package.
    pub(crate) fn start_as_service(
        name: &'static str,
        place: Place,
        config: &str,
        interfaces: u64,
    ) -> Result<Self> {
        mount_bpffs()?;
        for directory in [run_dir(name), bpf_dir(name)] {
            fs::create_dir_all(&directory).context(directory.clone())?;
            fs::set_permissions(&directory, Permissions::from_mode(0o750))
                .and_then(|()| chown(directory.as_str(), Some(USER), Some(USER)))
                .context(directory)?;
        }
        let user = [format!("--reuid={USER}"), format!("--regid={USER}")];
        let limits = ["inh", "ambient", "bounding"].map(|set| {
            let option =
                if set == "bounding" { "bounding-set".to_owned() } else { format!("{set}-caps") };
            format!("--{option}=-all,+net_admin,+bpf,+perfmon")
        });
        // LimitMEMLOCK=infinity of the unit.
        setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY)?;
        // busybox has a `setpriv` of its own, which cannot do this.
        let mut words = vec!["/bin/setpriv", "--clear-groups", "--no-new-privs"];
        words.extend(user.iter().chain(&limits).map(String::as_str));
        let ibarr = Self::launch(name, place, config, interfaces, &words)?;
        ibarr.has_only_the_rights_of_the_service()?;
        Ok(ibarr)
    }

    /// Gives the user of `ibarr.service` the umad devices, as the package's udev rule does.
    pub(crate) fn give_devices() -> Result<()> {
        for device in fs::read_dir("/dev/infiniband").context("/dev/infiniband")? {
            let device = device?;
            if device.file_name().to_string_lossy().starts_with("umad") {
                chown(device.path(), Some(USER), None).context("umad")?;
            }
        }
        Ok(())
    }

    fn launch(
        name: &'static str,
        place: Place,
        config: &str,
        interfaces: u64,
        by: &[&str],
    ) -> Result<Self> {
        mount_bpffs()?;
        fs::write(file(name), config)?;
        let (config, run_dir, bpf_dir) = (file(name), run_dir(name), bpf_dir(name));
        let files = ["--config", &config, "--run-dir", &run_dir, "--bpf-dir", &bpf_dir];
        let notify = format!("/run/ibarr-{name}.notify");
        let variable = format!("NOTIFY_SOCKET={notify}");
        // As ibarr@NAME.service does.
        let off = matches!(place, Place::Netns(_)).then_some("--no-local-service");
        let words = [&["busybox", "env", &variable], by, &["ibarr", "run"], off.as_slice(), &files];
        let words = words.concat();
        let _ = fs::remove_file(&notify);
        let socket = UnixDatagram::bind(&notify).context(notify.clone())?;
        fs::set_permissions(&notify, Permissions::from_mode(0o666)).context(notify)?;
        let process = spawn(&format!("ibarr-{name}"), place, &words)?;
        let ibarr = Self { process, name, notify: socket };
        is_ready(&ibarr.notify).with_context(|| ibarr.process.said().unwrap_or_default())?;
        // A busy machine loads programs for longer than a daemon waits for them before it is ready.
        eventually(|| {
            let attached = ibarr.count("responder.attached")?;
            ensure!(attached == interfaces, "programs on {attached} interfaces");
            Ok(())
        })?;
        Ok(ibarr)
    }

    fn has_only_the_rights_of_the_service(&self) -> Result<()> {
        let status = self.process.status()?;
        let user = format!("Uid:\t{USER}\t{USER}\t{USER}\t{USER}");
        // CAP_NET_ADMIN (12), CAP_PERFMON (38), CAP_BPF (39).
        let capabilities = format!("{:016x}", 1_u64 << 12 | 1 << 38 | 1 << 39);
        for line in [user, format!("CapPrm:\t{capabilities}"), format!("CapBnd:\t{capabilities}")] {
            ensure!(status.lines().any(|has| has == line), "no {line:?}: {status}");
        }
        Ok(())
    }

    /// Makes the daemon use another configuration, which is in effect when this returns.
    pub(crate) fn reconfigure(&self, config: &str) -> Result<()> {
        fs::write(file(self.name), config)?;
        // On a busy machine this takes longer than the time-out of the answer.
        eventually(|| self.ask(&Request::Reload)).map(drop)
    }

    /// The daemon's answer, as the command line's `--json` prints it. To start the command would take most
    /// of the time.
    pub(crate) fn ask(&self, request: &Request) -> Result<Value> {
        let answer = client::ask(Path::new(&run_dir(self.name)), request, client::PATIENCE);
        let body = answer.map_err(|failure| anyhow!("{request:?}: {}", failure.message))?;
        Ok(serde_json::to_value(Response::from(body))?)
    }

    /// Makes the daemon forget what it has learned from peers and from subnet administrators.
    pub(crate) fn flush(&self) -> Result<()> {
        self.ask(&Request::Flush).map(drop)
    }

    /// The value of one of its counters.
    pub(crate) fn count(&self, counter: &str) -> Result<u64> {
        let counters = self.ask(&Request::Counters)?;
        counters["counters"][counter].as_u64().with_context(|| format!("no {counter}: {counters}"))
    }

    /// Waits until a counter has this value. What a peer or caller sees may be counted a moment later.
    pub(crate) fn until_counted(&self, counter: &str, expected: u64) -> Result<()> {
        eventually(|| {
            let count = self.count(counter)?;
            ensure!(count == expected, "{counter} is {count} instead of {expected}");
            Ok(())
        })
    }

    /// The directory of its control socket.
    pub(crate) fn run_dir(&self) -> String {
        run_dir(self.name)
    }

    /// The directory of its maps and links, also after it has ended.
    pub(crate) fn bpf_dir(&self) -> String {
        bpf_dir(self.name)
    }

    /// The descriptors that the daemon has given to systemd since its start, once there are so many with this
    /// name. Programs that are started meanwhile inherit them.
    pub(crate) fn kept(&self, name: &str, count: usize) -> Result<Vec<Kept>> {
        let mut all: Vec<Kept> = Vec::new();
        while all.iter().filter(|kept| kept.name == name).count() < count {
            let mut message = [0; 256];
            let mut parts = [IoSliceMut::new(&mut message)];
            let mut control = cmsg_space!(RawFd);
            let (socket, flags) = (self.notify.as_raw_fd(), MsgFlags::empty());
            let received = recvmsg::<()>(socket, &mut parts, Some(&mut control), flags);
            let received = received.context("the daemon keeps nothing more")?;
            let descriptors = received.cmsgs()?.filter_map(|control| match control {
                ControlMessageOwned::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            });
            let descriptors: Vec<_> = descriptors.flatten().collect();
            let length = received.bytes;
            let text = String::from_utf8_lossy(&message[..length]).into_owned();
            let named = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
            for number in descriptors {
                let name = named.context("a descriptor without a name")?.to_owned();
                all.push(Kept { name, number });
            }
        }
        // In this order none takes the number of a later one.
        all.sort_by_key(|kept| kept.number);
        Ok(all)
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Kills the daemon, and waits for its end.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Checks that the daemon has not ended.
    pub(crate) fn check_alive(&mut self) -> Result<()> {
        self.process.check_alive()
    }

    /// Asks the daemon to end, and checks its exit status.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.process.check_alive()?;
        let status = self.process.stop()?;
        ensure!(status.success(), "ibarr: {status}");
        Ok(())
    }
}

/// Waits until the daemon says that it is ready (sd_notify(3)). To ask it again and again would take the
/// time that it needs, on one processor.
fn is_ready(notify: &UnixDatagram) -> Result<()> {
    notify.set_read_timeout(Some(PATIENCE))?;
    let mut message = [0; 256];
    loop {
        let length =
            notify.recv(&mut message).context("the daemon does not say that it is ready")?;
        if message[..length].split(|&byte| byte == b'\n').any(|line| line == b"READY=1") {
            return Ok(());
        }
    }
}

fn mount_bpffs() -> Result<()> {
    if !fs::exists(BPFFS)? {
        fs::create_dir(BPFFS)?;
        mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), None::<&str>)?;
    }
    Ok(())
}

fn file(name: &str) -> String {
    format!("/run/ibarr-{name}.toml")
}

fn run_dir(name: &str) -> String {
    format!("/run/ibarr-{name}")
}

/// The directory of the maps and links of a daemon called `name`.
pub(crate) fn bpf_dir(name: &str) -> String {
    format!("{BPFFS}/{name}")
}
