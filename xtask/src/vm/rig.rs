// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The files of a guest with real InfiniBand software: our fabric, and Debian's programs.
//! `ibtun/guest/src/rig` makes a network of them.

use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::image::{self, Program};
use super::run::Prepared;
use super::{libraries, module};
use crate::artifacts::{self, Artifact};
use crate::package;
use crate::tools;
use crate::workspace::Workspace;

/// The modules to load.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "ib_umad",
    "ib_uverbs",
    "ib_ipoib",
    "rdma_ucm",
    "veth",
    "sch_ingress",
    "cls_bpf",
    module::NAME,
];

/// Programs of Debian's packages.
const PROGRAMS: &[&str] = &[
    "opensm",
    "ibacm",
    "ib_acme",
    "rping",
    "udaddy",
    "ucmatose",
    "rdma_client",
    "rdma_server",
    "rdma_xclient",
    "rdma_xserver",
    "rstream",
    "mckey",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "ibv_srq_pingpong",
    "ibv_uc_pingpong",
    "ibv_ud_pingpong",
    "ibnetdiscover",
    "ibping",
    "ibstat",
    "saquery",
    "sminfo",
    "smpquery",
    "perfquery",
    "ip",
    "tc",
    "rdma",
    "ping",
];

/// Libraries that programs load by their names.
const PLUGINS: &[&str] = &["libibverbs/libipathverbs-rdmav34.so", "ibacm/libibacmp.so"];

/// Every machine with a compiler has it.
const LIBGCC: &str = "/lib/x86_64-linux-gnu/libgcc_s.so.1";

/// Two switches. The ports of all nodes are on one channel adapter, the subnet manager's on another. The
/// host of a third may join. GUIDs begin with the vendor's number.
const TOPOLOGY: &str = "\
vendid=0x021122
switchguid=0x0211220000200000
Switch 8 \"S1\"
[1] \"N\"[1]
[3] \"N\"[3]
[5] \"N\"[5]
[7] \"SM\"[1]
[8] \"S2\"[8]

switchguid=0x0211220000200010
Switch 8 \"S2\"
[2] \"N\"[2]
[4] \"N\"[4]
[6] \"J\"[1]

caguid=0x0211220000100000
Ca 5 \"N\"

caguid=0x0211220000100010
Ca 1 \"SM\"

caguid=0x0211220000100020
Ca 1 \"J\"
";

/// The fabric of two guests: A and the router R are in the first, B in the other. B has a second port, for addresses
/// that move.
const CLUSTER: &str = "\
Switch 8 \"S1\"
[1] \"A\"[1]
[3] \"R\"[1]
[8] \"S2\"[8]

Switch 8 \"S2\"
[2] \"B\"[1]
[3] \"B\"[2]
[4] \"R\"[2]

Ca 1 \"A\"

Ca 2 \"B\"

Ca 2 \"R\"
";

/// Two subnets, which the router X connects. R routes IP between them. A has two ports, for a bond. The low bits of no
/// GUID of A and B are the LID of a port.
const SUBNETS: &str = "\
Switch 8 \"S1\"
[1] \"A\"[1]
[2] \"A\"[2]
[3] \"R\"[1]
[4] \"SM\"[1]
[5] \"X\"[1]

Switch 8 \"S2\"
[1] \"B\"[1]
[3] \"R\"[2]
[5] \"X\"[2]

caguid=0x107000
Ca 2 \"A\"

caguid=0x107100
Ca 1 \"B\"

Ca 2 \"R\"

Ca 1 \"SM\"

rtguid=0x300000
Rt 2 \"X\"
[1](300001) \"S1\"[5]
[2](300002) \"S2\"[5]
";

/// Files, with their contents.
const FILES: &[(&str, &str)] = &[
    ("/etc/rig/topology", TOPOLOGY),
    ("/etc/rig/cluster", CLUSTER),
    ("/etc/rig/subnets", SUBNETS),
    (
        "/usr/share/doc/ibfab/examples/laptop.topo",
        include_str!("../../../ibtun/fabric/laptop.topo"),
    ),
    (
        "/etc/rig/partitions.conf",
        "Default=0x7fff, ipoib : ALL=full, SELF=full;\nchildren=0x0001, ipoib : ALL=full;\n",
    ),
    // OpenSM writes its log at once, so that scenarios can read it. A standby notices soon that the master is gone.
    (
        "/etc/rig/opensm.conf",
        "force_log_flush TRUE\nsminfo_polling_timeout 500\npolling_retry_number 4\n",
    ),
    ("/etc/libibverbs.d/ipathverbs.driver", "driver ipathverbs\n"),
    ("/etc/hosts", "127.0.0.1 localhost\n10.1.0.1 node1\n10.1.0.2 node2\n10.2.0.1 node3\n"),
    // The transports of NFS's programs (netconfig(5)).
    (
        "/etc/netconfig",
        "udp tpi_clts v inet udp - -\ntcp tpi_cots_ord v inet tcp - -\nlocal tpi_cots_ord - loopback - - -\n",
    ),
    ("/etc/services", "nfs 2049/tcp\nnfs 2049/udp\nnfsrdma 20049/tcp\n"),
    ("/etc/passwd", "root:x:0:0::/:\nibarr:x:900:900::/:\n"),
    ("/etc/group", "root:x:0:\nibarr:x:900:\n"),
    // Directories into which OpenSM and ibacm write.
    ("/var/cache/opensm/made", ""),
    ("/var/log/made", ""),
    ("/etc/rdma/ibacm_opts.cfg", "log_file /results/ibacm-daemon.log\nlog_level 2\n"),
    ("/run/ibacm/made", ""),
];

/// Prepares a guest that runs the scenario `name` on the rig.
pub(super) fn prepare(
    workspace: &Workspace,
    name: &'static str,
    built: &[Artifact],
    prepared: &mut Prepared,
) -> Result<()> {
    prepared.name = name;
    prepared.modules = MODULES;
    prepared.files = FILES;
    prepared.programs.push(image::ours("/bin/ibfab", artifacts::binary(built, "ibfab")?)?);
    prepared.programs.extend(programs(workspace)?);
    prepared.command.push(name.to_owned());
    prepared.results = true;
    Ok(())
}

/// Gives the guest programs of perftest.
pub(super) fn with_perftest(workspace: &Workspace, prepared: &mut Prepared) -> Result<()> {
    let root = tools::root(workspace, &tools::PERFTEST)?;
    for name in [
        "ib_atomic_bw",
        "ib_read_bw",
        "ib_read_lat",
        "ib_send_bw",
        "ib_send_lat",
        "ib_write_bw",
        "ib_write_lat",
    ] {
        prepared.programs.extend(libraries::program(&root, name)?);
    }
    Ok(())
}

/// Gives the guest NFS, client and server, beside NVMe.
pub(super) fn with_nfs(workspace: &Workspace, prepared: &mut Prepared) -> Result<()> {
    prepared.later = &["virtio_net", "brd", "nvme_rdma", "nvmet_rdma", "nfsv4", "nfsd", "rpcrdma"];
    let root = tools::root(workspace, &tools::NFS)?;
    for name in ["exportfs", "mount.nfs", "rpc.mountd", "rpc.nfsd"] {
        prepared.programs.extend(libraries::program(&root, name)?);
    }
    Ok(())
}

/// Gives the guest Soft-RoCE.
pub(super) fn with_soft_roce(workspace: &Workspace, prepared: &mut Prepared) -> Result<()> {
    // It asks the kernel's crypto layer for a checksum, whose module the kernel cannot load here.
    prepared.later = &["crc32_generic", "crc32_pclmul", "rdma_rxe"];
    let root = tools::root(workspace, &tools::RDMA)?;
    let provider = "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so";
    prepared.programs.extend(libraries::plugin(&root, provider)?);
    Ok(())
}

/// Gives the guest the diagnostics that no other scenario has. The scripts take their tools from busybox; those in
/// Perl are left out.
pub(super) fn with_diagnostics(workspace: &Workspace, prepared: &mut Prepared) -> Result<()> {
    let root = tools::root(workspace, &tools::RDMA)?;
    for name in
        ["dump_fts", "ibaddr", "iblinkinfo", "ibportstate", "ibqueryerrors", "ibroute", "ibtracert"]
    {
        prepared.programs.extend(libraries::program(&root, name)?);
    }
    for name in ["ibhosts", "ibnodes", "ibstatus", "ibswitches"] {
        let executable = root.join("usr/sbin").join(name);
        executable.metadata().with_context(|| executable.display().to_string())?;
        prepared.programs.push(Program { path: format!("/bin/{name}"), executable });
    }
    Ok(())
}

/// Parts of Python's library that rdma-core's tests do without, and that are large or need further libraries.
const NOT_IN_PYTHON: [&str; 13] = [
    "__pycache__",
    "_crypt",
    "_ctypes_test",
    "_curses",
    "_dbm",
    "_hashlib",
    "_lzma",
    "_sqlite3",
    "_ssl",
    "_test",
    "gconv",
    "nis",
    "readline",
];

/// Gives the guest Python and rdma-core's own tests.
pub(super) fn with_pyverbs(workspace: &Workspace, prepared: &mut Prepared) -> Result<()> {
    let root = tools::root(workspace, &tools::PYVERBS)?;
    let leave_out = |name: &str| NOT_IN_PYTHON.iter().any(|part| name.starts_with(part));
    prepared.programs.extend(libraries::program(&root, "python3.11")?);
    for place in ["/usr/lib/python3.11", "/usr/lib/python3", TESTS] {
        prepared.programs.extend(libraries::directory(&root, place, &leave_out)?);
    }
    Ok(())
}

/// Where both releases have rdma-core's tests.
const TESTS: &str = "/usr/share/doc/rdma-core/tests";

/// The same of Debian 13, below `/trixie`.
pub(super) fn with_pyverbs_13(workspace: &Workspace, prepared: &mut Prepared) -> Result<()> {
    let root = tools::root(workspace, &tools::PYVERBS_13)?;
    let leave_out = |name: &str| NOT_IN_PYTHON.iter().any(|part| name.starts_with(part));
    let own = ["/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/lib/python3.13", "/usr/lib/python3"];
    for place in own.into_iter().chain([TESTS]) {
        prepared.programs.extend(libraries::tree(&root, place, "/trixie", &leave_out)?);
    }
    Ok(())
}

/// Gives the guest libraries above verbs, with their programs.
pub(super) fn with_ucx(workspace: &Workspace, prepared: &mut Prepared) -> Result<()> {
    let root = tools::root(workspace, &tools::UCX)?;
    // libfabric needs it. The script of its package makes the link.
    let link = root.join("usr/lib/x86_64-linux-gnu/libpsm_infinipath.so.1");
    if !link.exists() {
        let file = "../libpsm1/libpsm_infinipath.so.1.16";
        symlink(file, &link).with_context(|| link.display().to_string())?;
    }
    for name in ["ucx_perftest", "io_demo", "fi_pingpong"] {
        prepared.programs.extend(libraries::program(&root, name)?);
    }
    let modules = "/usr/lib/x86_64-linux-gnu/ucx";
    prepared.programs.extend(libraries::plugin(&root, &format!("{modules}/libuct_ib.so.0"))?);
    // It needs no others, but the first, which it finds beside itself.
    let path = format!("{modules}/libuct_rdmacm.so.0");
    let executable = root.join(path.trim_start_matches('/'));
    prepared.programs.push(Program { path, executable });
    Ok(())
}

/// Gives the guest the `ibarr` of the packages, which opens libibverbs, and a program that gives up root's
/// rights.
pub(super) fn with_package(workspace: &Workspace, prepared: &mut Prepared) -> Result<()> {
    let executable = package::program(workspace)?;
    let root = tools::root(workspace, &tools::RDMA)?;
    prepared.programs.extend(libraries::linked(&root, "ibarr", &executable)?);
    prepared.programs.extend(libraries::program(Path::new("/"), "setpriv")?);
    Ok(())
}

/// Debian's programs, with their libraries.
fn programs(workspace: &Workspace) -> Result<Vec<Program>> {
    let root = tools::root(workspace, &tools::RDMA)?;
    let mut programs = Vec::new();
    for name in PROGRAMS {
        programs.extend(libraries::program(&root, name)?);
    }
    for name in PLUGINS {
        let place = format!("/usr/lib/x86_64-linux-gnu/{name}");
        programs.extend(libraries::plugin(&root, &place)?);
    }
    let bpftool = tools::root(workspace, &tools::BPFTOOL)?;
    programs.extend(libraries::program(&bpftool, "bpftool")?);
    // pthread_exit(3) loads this library.
    programs.extend(libraries::plugin(Path::new("/"), LIBGCC)?);
    // busybox is linked statically.
    let executable = root.join("bin/busybox");
    executable.metadata().with_context(|| executable.display().to_string())?;
    programs.push(Program { path: "/bin/busybox".to_owned(), executable });
    Ok(programs)
}
