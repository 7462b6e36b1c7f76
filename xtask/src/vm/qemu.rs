// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Starts a guest, and returns its output and how it ended.
//!
//! The guest has two serial ports. The first is its console, on which the kernel writes as well; it goes
//! to a file. The second has only the output of the guest's command.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};

pub(super) struct Guest<'a> {
    pub(super) kernel: &'a Path,
    pub(super) initramfs: &'a Path,
    /// The program that the kernel starts.
    pub(super) init: &'a str,
    /// The file for its console.
    pub(super) console: &'a Path,
    /// When it is killed.
    pub(super) deadline: Duration,
    /// A disk that it may write to.
    pub(super) disk: Option<&'a Path>,
    /// Directories of this machine that it may read, with a tag for each.
    pub(super) shares: &'a [(&'static str, PathBuf)],
    pub(super) processors: Processors,
    /// Further arguments on the kernel's command line.
    pub(super) kernel_arguments: &'a str,
    /// Its Ethernet link to another guest.
    pub(super) link: Option<&'a Link>,
}

/// One end of an Ethernet link between two guests.
#[derive(Clone, Debug)]
pub(super) struct Link {
    /// The directory of the ends' sockets. QEMU runs there, because names of sockets have to be short.
    pub(super) directory: PathBuf,
    /// The sockets of this end and of the other one.
    pub(super) own: String,
    pub(super) other: String,
    /// The last byte of the MAC address.
    pub(super) number: u8,
    /// Whether a guest that is reset starts again.
    pub(super) restarts: bool,
}

/// The processors of a guest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Processors {
    One,
    /// Two, which take turns on one thread of QEMU. On two threads, a guest dies now and then at a
    /// breakpoint of unknown origin (`int3: 0000`), mostly while it boots: its kernel changes its code
    /// under the other processor, and QEMU's emulation may let that one run the old code.
    Two,
    /// One, and the clock counts its instructions; idle time passes at once. So the guest's times do not
    /// depend on other work of the machine.
    Counted,
    /// The same, and no other guest runs meanwhile, because this one measures.
    CountedAlone,
}

/// How a guest ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum End {
    /// Its command ended with this status. 57 also stands for higher statuses and for a signal.
    Status(u8),
    /// It did not end in time.
    Deadline,
    /// It ended without a status: the kernel panicked, or QEMU could not run it.
    Died(ExitStatus),
}

/// The guest's init adds this to its command's status, so that no status looks like a failure of QEMU or
/// of `timeout`, whose exit codes are 1 and 124 to 137. Therefore statuses end at 57.
const STATUS_BASE: u8 = 70;

impl Guest<'_> {
    /// Runs the guest to its end, and passes each line of its second serial port to `line`. `path` is the
    /// PATH for QEMU.
    pub(super) fn run(&self, path: &OsStr, line: &mut dyn FnMut(&str)) -> Result<End> {
        let mut child = self
            .command(path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("`timeout qemu-system-x86_64` cannot be run")?;
        let stdout = child.stdout.take().context("qemu has a standard output")?;
        let mut said = BufReader::new(stdout);
        let mut bytes = Vec::new();
        while said.read_until(b'\n', &mut bytes)? > 0 {
            line(String::from_utf8_lossy(&bytes).trim_end_matches(['\r', '\n']));
            bytes.clear();
        }
        Ok(End::of(child.wait()?))
    }

    /// Runs the guest, with our terminal on its second serial port.
    pub(super) fn talk(&self, path: &OsStr) -> Result<End> {
        let status = self.command(path).status();
        Ok(End::of(status.context("`timeout qemu-system-x86_64` cannot be run")?))
    }

    /// The command runs under `timeout`, which ends the guest in time even if we are killed first.
    ///
    /// It does not use KVM: a guest must boot on every machine that builds ibarr, also in CI, and nested
    /// virtualization often fails.
    fn command(&self, path: &OsStr) -> Command {
        let escaped = |path: &Path| path.display().to_string().replace(',', ",,");
        let console = format!("file:{}", escaped(self.console));
        // no_timer_check: on a busy machine the kernel would regard the timer as not connected, and panic.
        let append = format!(
            "console=ttyS0 loglevel=5 panic=-1 rdinit={} nokaslr mitigations=off random.trust_cpu=on \
             log_buf_len=16M no_timer_check {}",
            self.init, self.kernel_arguments
        );
        let mut command = Command::new("timeout");
        command.env("PATH", path);
        command.args(["--foreground", "--kill-after=5"]).arg(self.deadline.as_secs().to_string());
        command.args(["qemu-system-x86_64", "-nodefaults", "-no-user-config"]);
        command.args(["-machine", "q35,usb=off,vmport=off"]);
        match self.processors {
            Processors::One => command.args(["-accel", "tcg,thread=multi", "-smp", "1"]),
            Processors::Two => command.args(["-accel", "tcg,thread=single", "-smp", "2"]),
            Processors::Counted | Processors::CountedAlone => {
                command.args(["-accel", "tcg,thread=single", "-smp", "1"]);
                // Two to the power of two nanoseconds an instruction.
                command.args(["-icount", "shift=2,sleep=off"])
            }
        };
        command.args(["-cpu", "max", "-m", "1024"]);
        command.args(["-display", "none", "-monitor", "none", "-nic", "none"]);
        if let Some(Link { directory, own, other, number, .. }) = self.link {
            command.current_dir(directory);
            let ends = format!("local.path={own},remote.type=unix,remote.path={other}");
            command.args(["-netdev", &format!("dgram,id=link,local.type=unix,{ends}")]);
            let device =
                format!("virtio-net-pci,netdev=link,romfile=,mac=52:54:00:00:00:{number:02x}");
            command.args(["-device", &device]);
        }
        if !self.link.is_some_and(|link| link.restarts) {
            command.arg("-no-reboot");
        }
        command.args(["-serial", &console]);
        command.args(["-chardev", "stdio,id=said,signal=off", "-serial", "chardev:said"]);
        command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x01"]);
        command.arg("-kernel").arg(self.kernel).arg("-initrd").arg(self.initramfs);
        command.args(["-append", &append]);
        if let Some(disk) = self.disk {
            let drive = format!("if=none,id=disk,format=raw,cache=unsafe,file={}", escaped(disk));
            command.args(["-drive", &drive, "-device", "virtio-blk-pci,drive=disk"]);
        }
        for (tag, directory) in self.shares {
            let options = "security_model=none,readonly=on,multidevs=remap";
            let local = format!("local,id={tag},{options},path={}", escaped(directory));
            let device = format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}");
            command.args(["-fsdev", &local, "-device", &device]);
        }
        command
    }
}

impl End {
    fn of(status: ExitStatus) -> Self {
        match status.code() {
            // The statuses of `timeout` after SIGTERM and SIGKILL.
            Some(124 | 137) => Self::Deadline,
            // isa-debug-exit makes `value` (value << 1) | 1.
            Some(code) if code % 2 == 1 => u8::try_from(code / 2)
                .ok()
                .and_then(|value| value.checked_sub(STATUS_BASE))
                .map_or(Self::Died(status), Self::Status),
            _ => Self::Died(status),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn end(code: i32) -> End {
        End::of(ExitStatus::from_raw(code << 8))
    }

    #[test]
    fn guest_status_is_told_from_every_other_end() {
        assert_eq!(end(70 << 1 | 1), End::Status(0));
        assert_eq!(end(127 << 1 | 1), End::Status(57));
        for code in [0, 1, 2, 125, 126, 127, 139, 142] {
            assert!(matches!(end(code), End::Died(_)), "{code}");
        }
        assert_eq!(end(124), End::Deadline);
        assert_eq!(end(137), End::Deadline);
        assert!(matches!(End::of(ExitStatus::from_raw(11)), End::Died(_)));
    }
}
