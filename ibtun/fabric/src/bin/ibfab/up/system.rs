// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What `ibfab up` needs of the machine, and changes: modules, HCAs, interfaces, and a network namespace.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use ibarr_common::ib::{Guid, PortNum};
use ibarr_fabric::topology::Node;
use nix::unistd::Uid;

use super::STATE;
use super::process;

/// What programs on an HCA need, besides `ibtun`.
const MODULES: [&str; 4] = ["ib_umad", "ib_uverbs", "ib_ipoib", "rdma_ucm"];

/// The file that names those of [`MODULES`] that were not loaded.
const LOADED: &str = "modules";

/// How long the kernel may take to leave its multicast groups.
const LEAVING: Duration = Duration::from_millis(300);

/// The file with the options of `ip` that name each interface with an address.
const INTERFACES: &str = "interfaces";

pub(super) fn check_root() -> anyhow::Result<()> {
    ensure!(Uid::effective().is_root(), "root is needed");
    Ok(())
}

/// Whether `ibfab up` can work here. Nothing is changed.
pub(super) fn check(needs_manager: bool) -> anyhow::Result<()> {
    check_root()?;
    ensure!(Path::new("/dev/ibtun").exists(), "the module ibtun is not loaded: `modprobe ibtun`");
    let mut programs = vec![("ip", "iproute2")];
    programs.extend(needs_manager.then_some(("opensm", "opensm")));
    for (program, package) in programs {
        let path = env::var_os("PATH").unwrap_or_default();
        let is_there = env::split_paths(&path).any(|directory| directory.join(program).is_file());
        ensure!(
            is_there,
            "{program} is missing: `apt install {package}`, or name its directory in PATH"
        );
    }
    Ok(())
}

/// Loads the modules that are missing.
pub(super) fn load() -> anyhow::Result<()> {
    for name in MODULES {
        if Path::new("/sys/module").join(name).exists() {
            continue;
        }
        let known = fs::read_to_string(format!("{STATE}/{LOADED}")).unwrap_or_default();
        run("modprobe", &[name]).context(
            "this kernel's package may lack it (Ubuntu: `apt install linux-modules-extra-$(uname -r)`)",
        )?;
        fs::write(format!("{STATE}/{LOADED}"), format!("{known}{name}\n")).context(STATE)?;
    }
    Ok(())
}

/// Unloads what [`load`] has loaded. What others use by now stays.
pub(super) fn unload() {
    let loaded = fs::read_to_string(format!("{STATE}/{LOADED}")).unwrap_or_default();
    for name in loaded.lines().rev() {
        let _ = run("modprobe", &["-r", name]);
    }
}

/// The HCA that is this node, if there is one.
pub(super) fn device(node: &Node) -> anyhow::Result<Option<String>> {
    let guid = pairs(&format!("{:016x}", node.guid.get()), 4);
    find("/sys/class/infiniband", "node_guid", |text| text == guid)
}

/// The IPoIB interface of the node's port, in this network namespace. Its hardware address ends with the GUID.
pub(super) fn interface(node: &Node) -> anyhow::Result<Option<String>> {
    let guid = format!(":{}", pairs(&format!("{:016x}", port_guid(node)?.get()), 2));
    find("/sys/class/net", "address", |text| text.len() == 59 && text.ends_with(&guid))
}

pub(super) fn port_guid(node: &Node) -> anyhow::Result<Guid> {
    PortNum::new(1).and_then(|number| node.port_guid(number)).context("a node without port")
}

/// Whether the subnet manager has made the port of an HCA active.
pub(super) fn is_active(device: &str) -> anyhow::Result<Option<()>> {
    let file = format!("/sys/class/infiniband/{device}/ports/1/state");
    let state = fs::read_to_string(&file).context(file)?;
    Ok(state.starts_with("4:").then_some(()))
}

/// Gives an interface its address, in the namespace, if there is one, which is made.
pub(super) fn give_address(
    interface: &str,
    namespace: Option<&str>,
    address: &str,
) -> anyhow::Result<()> {
    let inside = inside(namespace);
    let ip = |words: &[&str]| run("ip", &[&inside[..], words].concat());
    if let Some(name) = namespace {
        run("ip", &["netns", "add", name])?;
        run("ip", &["link", "set", interface, "netns", name])?;
        ip(&["link", "set", "lo", "up"])?;
    }
    let file = format!("{STATE}/{INTERFACES}");
    let known = fs::read_to_string(&file).unwrap_or_default();
    let down = [&inside[..], &["link", "set", interface, "down"]].concat().join(" ");
    fs::write(&file, format!("{known}{down}\n")).context(file)?;
    ip(&["address", "add", &format!("{address}/24"), "dev", interface])?;
    ip(&["link", "set", interface, "up"]).map(drop)
}

/// Sets all interfaces down while the subnet manager is there: otherwise the kernel waits 15 s for its answers when
/// the HCA goes.
pub(super) fn close_interfaces() {
    let lines = fs::read_to_string(format!("{STATE}/{INTERFACES}")).unwrap_or_default();
    for line in lines.lines() {
        // It may have gone already.
        let _ = run("ip", &line.split(' ').collect::<Vec<_>>());
    }
    if !lines.is_empty() {
        // The kernel tells the manager after that.
        thread::sleep(LEAVING);
    }
}

fn inside(namespace: Option<&str>) -> Vec<&str> {
    namespace.map_or(Vec::new(), |name| vec!["-n", name])
}

/// Whether an interface can send: IPoIB has joined its broadcast group.
pub(super) fn is_running(interface: &str, namespace: Option<&str>) -> anyhow::Result<Option<()>> {
    let shown = run("ip", &[&inside(namespace)[..], &["link", "show", interface]].concat())?;
    Ok(shown.contains("state UP").then_some(()))
}

/// Ends the programs in the namespace, which keep it and an HCA.
pub(super) fn empty_namespace(name: &str) -> anyhow::Result<()> {
    if !has_namespace(name) {
        return Ok(());
    }
    for id in run("ip", &["netns", "pids", name])?.split_whitespace() {
        process::ask_to_end(id.parse().with_context(|| format!("a process {id}"))?)?;
    }
    Ok(())
}

pub(super) fn remove_namespace(name: &str) -> anyhow::Result<()> {
    if has_namespace(name) { run("ip", &["netns", "delete", name]).map(drop) } else { Ok(()) }
}

fn has_namespace(name: &str) -> bool {
    Path::new("/run/netns").join(name).exists()
}

/// The first entry of a class of devices whose attribute is as wanted.
fn find(
    class: &str,
    attribute: &str,
    is_it: impl Fn(&str) -> bool,
) -> anyhow::Result<Option<String>> {
    let Ok(entries) = fs::read_dir(class) else { return Ok(None) };
    for entry in entries {
        let entry = entry.context(class.to_owned())?;
        // A device may go while we look.
        let text = fs::read_to_string(entry.path().join(attribute)).unwrap_or_default();
        if is_it(text.trim()) {
            return Ok(Some(entry.file_name().to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

/// Digits with a colon after each group.
fn pairs(digits: &str, group: usize) -> String {
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && place % group == 0 {
            text.push(':');
        }
        text.push(digit);
    }
    text
}

/// Runs a program to its end, and returns what it says.
fn run(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let line = || format!("`{program} {}`", arguments.join(" "));
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.with_context(line)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("{} failed: {}", line(), said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guid_is_written_as_sysfs_does() {
        assert_eq!(pairs("0211220000100001", 4), "0211:2200:0010:0001");
        assert_eq!(pairs("0211220000100001", 2), "02:11:22:00:00:10:00:01");
    }
}
