// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The daemon's own code on devices for MADs that behave as the kernel's do.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ibarr_common::ib::{Gid, Guid, Lid, PKey, PortNum, Sl, SubnetPrefix};
use ibarr_common::wire::mad::Transaction;
use ibarr_common::wire::sa::{Question, Request, Response};
use ibarr_common::wire::umad::{Form, MAX_LEN, PKeyIndex, Received, Send};
use ibarr_fabric::sa::{AddressedPort, StandIn, Subnet};
use ibarr_proto::paths::PortName;
use ibarr_testbed::umad::{Abilities, Administrator, Directory, Port, Shown};
use ibarr_user::sys::umad::{Device, Opened};
use serde_json::Value;
use tokio::time::timeout;

use crate::machine::{MARKER, Machine, ibarr};

const PATIENCE: Duration = Duration::from_secs(30);

fn administrator() -> Administrator {
    let mut subnet = Subnet::new(SubnetPrefix::DEFAULT);
    for guid in 1..=8 {
        let port = AddressedPort { lid: Lid::new(guid).unwrap(), pkeys: vec![PKey::DEFAULT] };
        subnet.ports.insert(Guid::new(guid.into()), port);
    }
    Administrator::new(StandIn::new(subnet, Lid::new(1).unwrap(), 1))
}

fn gid(guid: u8) -> Gid {
    format!("fe80::{guid:x}").parse().unwrap()
}

fn name() -> PortName {
    PortName { device: "mlx5_0".parse().unwrap(), port: PortNum::new(1).unwrap() }
}

fn port(directory: &Directory, abilities: Abilities, sa: &Administrator) -> Port {
    let shown = Shown::active(Lid::new(8).unwrap(), gid(8), Lid::new(1).unwrap());
    Port::new(directory, name(), 0, abilities, Some(shown), sa.clone()).unwrap()
}

fn in_runtime<F: Future>(work: impl FnOnce() -> F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(PATIENCE, work()).await.expect("it hangs") })
}

fn question(device: &Device, transaction: u32, time: Duration) -> Vec<u8> {
    let tid = Transaction(transaction).into();
    let mad = Request { tid, question: Question::ClassPortInfo }.emit();
    let (sl, pkey_index) = (Sl::default(), PKeyIndex(0));
    let to = Lid::new(1).unwrap();
    let send = Send { agent: device.agent(), to, sl, pkey_index, timeout: time, mad };
    send.emit(device.form()).as_ref().to_vec()
}

#[test]
fn questions_are_answered_or_come_back_whatever_the_header() {
    let machine = Machine::new();
    let directory = Directory::new(machine.directory());
    for (abilities, form) in [
        (Abilities::default(), Form::WithPKey),
        (Abilities { register_agent_2: false, ..Abilities::default() }, Form::WithPKey),
        (
            Abilities { register_agent_2: false, enable_pkey: false, ..Abilities::default() },
            Form::WithoutPKey,
        ),
    ] {
        let sa = administrator();
        let port = port(&directory, abilities, &sa);
        let opened = Opened::open(&directory.dev().join("infiniband/umad0")).unwrap();
        in_runtime(async || {
            let device = Device::adopt(opened).unwrap();
            assert_eq!(device.form(), form);
            assert_eq!(port.device(|device| device.forms().collect::<Vec<_>>()), [form]);
            let mut buffer = [0; MAX_LEN];
            for transaction in 1..=100 {
                device.write(&question(&device, transaction, PATIENCE)).unwrap();
                let len = device.read(&mut buffer).await.unwrap();
                assert_eq!(len, form.header_len() + 256);
                let Ok(Received::Mad { agent, mad }) = Received::parse(form, &buffer[..len]) else {
                    panic!("{buffer:?}");
                };
                assert_eq!(agent, device.agent());
                let response = Response::parse(mad).unwrap();
                assert_eq!(response.tid.transaction(), Transaction(transaction));
            }
            sa.sa().behaviour_mut().silent = true;
            device.write(&question(&device, 7, Duration::from_millis(20))).unwrap();
            let len = device.read(&mut buffer).await.unwrap();
            assert_eq!(len, form.header_len() + 24);
            let Ok(Received::Unanswered { tid, .. }) = Received::parse(form, &buffer[..len]) else {
                panic!("{buffer:?}");
            };
            assert_eq!(tid.transaction(), Transaction(7));
        });
        assert_eq!(sa.sa().counts().asked, 101);
    }
}

#[test]
fn who_waits_for_a_device_that_goes_is_told() {
    let machine = Machine::new();
    let directory = Directory::new(machine.directory());
    let port = port(&directory, Abilities::default(), &administrator());
    let path = directory.dev().join("infiniband/umad0");
    let opened = Opened::open(&path).unwrap();
    in_runtime(async || {
        let device = Device::adopt(opened).unwrap();
        let mut buffer = [0; MAX_LEN];
        let reading = device.read(&mut buffer);
        let unplugging = async {
            // First it waits.
            tokio::task::yield_now().await;
            port.unplug().unwrap();
        };
        let (read, ()) = tokio::join!(reading, unplugging);
        assert_eq!(read.unwrap_err().raw_os_error(), Some(nix::libc::EIO));
    });
    assert_eq!(Opened::open(&path).unwrap_err().raw_os_error(), Some(nix::libc::ENXIO));
    port.plug().unwrap();
    Opened::open(&path).unwrap();
}

/// A daemon for that directory, and who asks it.
struct Daemon {
    child: Child,
    run_dir: String,
}

impl Daemon {
    fn start(machine: &Machine) -> Self {
        let directory = Directory::new(machine.directory());
        let run_dir = machine.directory().join("run").display().to_string();
        let config = machine.directory().join("ibarr.toml");
        fs::write(&config, "responder = \"user\"\n").unwrap();
        let child = Command::new(ibarr())
            .args(["run", "-l", "3", "--config"])
            .arg(config)
            .args(["--run-dir", &run_dir])
            .arg("--dev-dir")
            .arg(directory.dev())
            .arg("--sys-dir")
            .arg(directory.sys())
            .env(MARKER, machine.marker())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, run_dir }
    }

    fn ask(&self, words: &[&str]) -> Option<Value> {
        let output = Command::new(ibarr())
            .args(words)
            .args(["--json", "--run-dir", &self.run_dir])
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).ok()
    }

    fn until<T>(&self, mut ask: impl FnMut(&Self) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(answer) = ask(self) {
                return answer;
            }
            assert!(begun.elapsed() < PATIENCE, "{:?}", self.ask(&["ports"]));
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The status of the path to the port of that GUID.
    fn path(&self, guid: u8) -> Option<String> {
        let said = self.ask(&["path", &gid(guid).to_string()])?;
        Some(said["path"]["status"].as_str()?.to_owned())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Within a second, so that sysfs looks the same before and after; some kernels tell nobody.
#[test]
fn a_device_that_was_gone_for_a_moment_is_opened_again() {
    for tells_of_loss in [true, false] {
        let machine = Machine::new();
        let directory = Directory::new(machine.directory());
        let abilities = Abilities { tells_of_loss, ..Abilities::default() };
        let port = port(&directory, abilities, &administrator());
        let daemon = Daemon::start(&machine);
        daemon.until(|daemon| (daemon.path(2)? == "found").then_some(()));
        for guid in 3..=5 {
            port.unplug().unwrap();
            port.plug().unwrap();
            daemon.until(|daemon| (daemon.path(guid)? == "found").then_some(()));
        }
    }
}
