// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! All sets of tools.

use super::Set;

/// Tools for network namespaces.
pub(crate) const IPROUTE2: Set = Set {
    name: "iproute2",
    purpose: "ip, tc and bridge, for the lab",
    programs: &["ip", "tc", "bridge"],
    packages: &["iproute2"],
    suites: &[],
    only: &[],
};

/// Tool for BPF programs and maps.
pub(crate) const BPFTOOL: Set = Set {
    name: "bpftool",
    purpose: "shows the BPF programs and maps of a running ibarr",
    programs: &["bpftool"],
    packages: &["bpftool"],
    suites: &[],
    only: &[],
};

/// Tool for settings of drivers, for system tests.
pub(crate) const ETHTOOL: Set = Set {
    name: "ethtool",
    purpose: "switches offloads of interfaces, for system tests",
    programs: &["ethtool"],
    packages: &["ethtool"],
    suites: &[],
    only: &[],
};

/// A firewall, for tests of what `ibarr doctor` says of it.
pub(crate) const NFTABLES: Set = Set {
    name: "nftables",
    purpose: "makes the firewall of which `ibarr doctor` must know",
    programs: &["nft"],
    packages: &["nftables"],
    suites: &[],
    only: &[],
};

/// Shows system calls, for the test of those of the engine's thread.
pub(crate) const STRACE: Set = Set {
    name: "strace",
    purpose: "shows which system calls the daemon's engine makes, for system tests",
    programs: &["strace"],
    packages: &["strace"],
    suites: &[],
    only: &[],
};

/// Counts instructions, for `bench instructions`.
pub(crate) const VALGRIND: Set = Set {
    name: "valgrind",
    purpose: "counts the daemon's instructions, for `bench instructions`",
    programs: &["valgrind", "vgdb"],
    packages: &["valgrind"],
    suites: &[],
    only: &[],
};

/// A terminal for tests.
pub(crate) const TMUX: Set = Set {
    name: "tmux",
    purpose: "is the terminal in which `ibarr top` is tested",
    programs: &["tmux"],
    packages: &["tmux"],
    suites: &[],
    only: &[],
};

/// Prometheus, whose promtool tests the alerts.
pub(crate) const PROMETHEUS: Set = Set {
    name: "prometheus",
    purpose: "tests the alerts (promtool), and scrapes the metrics",
    programs: &["promtool", "prometheus"],
    packages: &["prometheus"],
    suites: &[],
    only: &[],
};

/// node_exporter, whose textfile collector reads the metrics.
pub(crate) const NODE_EXPORTER: Set = Set {
    name: "node-exporter",
    purpose: "collects the metrics from a file",
    programs: &["prometheus-node-exporter"],
    packages: &["prometheus-node-exporter"],
    suites: &[],
    only: &[],
};

/// libFuzzer, for machines that cannot compile it. The version is that of Debian 12; the interface of
/// instrumented code has not changed since.
pub(crate) const LIBFUZZER: Set = Set {
    name: "libfuzzer",
    purpose: "the fuzzer's library, where there is no C++ compiler",
    programs: &["g++"],
    packages: &["libclang-rt-14-dev"],
    suites: &["bookworm"],
    only: &[],
};

pub(crate) const QEMU: Set = Set {
    name: "qemu",
    purpose: "runs stock kernels in a virtual machine, for `vm`",
    programs: &["qemu-system-x86_64"],
    packages: &["qemu-system-x86"],
    suites: &[],
    only: &[],
};

/// Decompression of kernel modules.
pub(crate) const XZ: Set = Set {
    name: "xz",
    purpose: "unpacks kernel modules, for `vm`",
    programs: &["xz"],
    packages: &["xz-utils"],
    suites: &[],
    only: &[],
};

/// Debian 12's kernel, and the headers for its modules.
pub(crate) const LINUX_6_1: Set = Set {
    name: "linux-6.1",
    purpose: "Debian 12's kernel, for `vm`",
    programs: &[],
    packages: &["linux-image-amd64/bookworm-security", "linux-headers-amd64/bookworm-security"],
    suites: &["bookworm-security"],
    only: &[],
};

/// Debian 13's kernel from Debian 12's backports, and the headers for its modules.
pub(crate) const LINUX_6_12: Set = Set {
    name: "linux-6.12",
    purpose: "Debian 13's kernel, for `vm`",
    programs: &[],
    packages: &["linux-image-amd64/bookworm-backports", "linux-headers-amd64/bookworm-backports"],
    suites: &["bookworm-backports"],
    only: &[],
};

/// Debian 11's kernel, and the headers for its modules.
pub(crate) const LINUX_5_10: Set = Set {
    name: "linux-5.10",
    purpose: "Debian 11's kernel, for `vm`",
    programs: &[],
    packages: &["linux-image-amd64/bullseye-security", "linux-headers-amd64/bullseye-security"],
    suites: &["bullseye", "bullseye-security"],
    only: &["linux-"],
};

/// The newest kernel that a stable Debian serves, and the headers for its modules, whose programs need a newer C
/// library than Debian 12's.
pub(crate) const LINUX_NEWEST: Set = Set {
    name: "linux-newest",
    purpose: "the kernel of Debian 13's backports, for `vm`",
    programs: &[],
    packages: &["linux-image-amd64/trixie-backports", "linux-headers-amd64/trixie-backports"],
    suites: &["trixie", "trixie-backports"],
    only: &["linux-", "libc6_", "libelf1t64_"],
};

/// The kernel's sources, for its style checker. The same version on every machine.
pub(crate) const LINUX_SOURCE: Set = Set {
    name: "linux-source",
    purpose: "the kernel's style checker, for `checkpatch`",
    programs: &[],
    packages: &["linux-source-6.1/bookworm"],
    suites: &["bookworm"],
    only: &[],
};

/// The kernel's own checker of types: address spaces, byte orders, locks.
pub(crate) const SPARSE: Set = Set {
    name: "sparse",
    purpose: "checks the types of the module `ibtun` as the kernel has them",
    programs: &["sparse"],
    packages: &["sparse"],
    suites: &[],
    only: &[],
};

/// OpenSM and diagnostics, for a fabric in user space.
pub(crate) const OPENSM: Set = Set {
    name: "opensm",
    purpose: "OpenSM, diagnostics and the library for a fabric without a kernel, for `test opensm`",
    programs: &[],
    packages: &["opensm", "infiniband-diags", "libumad2sim0"],
    suites: &[],
    only: &[],
};

/// Programs of an InfiniBand node, for guests with a software HCA.
pub(crate) const RDMA: Set = Set {
    name: "rdma",
    purpose: "OpenSM, ibacm, librdmacm and diagnostics, for `vm run`",
    programs: &[],
    packages: &[
        "opensm",
        "ibacm",
        "ibverbs-providers",
        "ibverbs-utils",
        "infiniband-diags",
        "rdmacm-utils",
        "iproute2",
        "iputils-ping",
        "busybox-static",
    ],
    suites: &[],
    only: &[],
};

/// Measures verbs, and is the only packaged program with atomic operations.
pub(crate) const PERFTEST: Set = Set {
    name: "perftest",
    purpose: "ib_write_bw, ib_read_lat, ib_atomic_bw and others, for `vm run h`",
    programs: &[],
    packages: &["perftest", "ibverbs-providers"],
    suites: &[],
    only: &[],
};

/// NFS, client and server.
pub(crate) const NFS: Set = Set {
    name: "nfs",
    purpose: "mount.nfs, exportfs and rpc.nfsd, for `vm storage` and `vm routers`",
    programs: &[],
    packages: &["nfs-common", "nfs-kernel-server"],
    suites: &[],
    only: &[],
};

/// rdma-core's own tests, their library, and Python without what the tests do not use.
pub(crate) const PYVERBS: Set = Set {
    name: "pyverbs",
    purpose: "rdma-core's own tests, in Python, for `vm run i`",
    programs: &[],
    packages: &[
        "python3-pyverbs",
        "python3.11-minimal",
        "libpython3.11-minimal",
        "libpython3.11-stdlib",
    ],
    suites: &[],
    only: &[],
};

/// Those of Debian 13, with its C library.
pub(crate) const PYVERBS_13: Set = Set {
    name: "pyverbs-13",
    purpose: "the tests of Debian 13's rdma-core, for `vm run o`",
    programs: &[],
    packages: &[
        "python3-pyverbs/trixie",
        "python3.13-minimal/trixie",
        "libpython3.13/trixie",
        "libpython3.13-minimal/trixie",
        "libpython3.13-stdlib/trixie",
        "ibverbs-providers/trixie",
        "libc6/trixie",
        "libffi8/trixie",
        "libnl-3-200/trixie",
        "libnl-route-3-200/trixie",
        "zlib1g/trixie",
    ],
    suites: &["trixie"],
    only: &[
        "ibverbs-providers_",
        "libc6_",
        "libexpat1_",
        "libffi8_",
        "libibverbs1_",
        "libnl-",
        "libpython3.13",
        "librdmacm1",
        "python3-pyverbs_",
        "python3.13-minimal_",
        "rdma-core_",
        "zlib1g_",
    ],
};

/// Libraries above verbs, through which MPI and others use InfiniBand.
pub(crate) const UCX: Set = Set {
    name: "ucx",
    purpose: "UCX and libfabric, for `vm run o`",
    programs: &[],
    packages: &["ucx-utils", "libfabric-bin", "ibverbs-providers"],
    suites: &[],
    only: &[],
};

/// Makes the root file system of a Debian 12.
pub(crate) const MMDEBSTRAP: Set = Set {
    name: "mmdebstrap",
    purpose: "makes a Debian 12 root file system, for `test install`",
    programs: &["mmdebstrap"],
    packages: &["mmdebstrap"],
    suites: &[],
    only: &[],
};

/// Makes man pages.
pub(crate) const LOWDOWN: Set = Set {
    name: "lowdown",
    purpose: "turns Markdown into man pages, for `package`",
    programs: &["lowdown"],
    packages: &["lowdown"],
    suites: &[],
    only: &[],
};

/// Makes and reads RPM packages.
pub(crate) const RPM: Set = Set {
    name: "rpm",
    purpose: "makes RPM packages, for `package rpm`",
    programs: &["rpmbuild"],
    packages: &["rpm"],
    suites: &[],
    only: &[],
};

/// Makes and signs repositories of packages.
pub(crate) const REPOSITORY: Set = Set {
    name: "repository",
    purpose: "lists and signs packages for apt and dnf, for `repository`",
    programs: &["apt-ftparchive", "createrepo_c", "gpg", "gpg-agent", "gpgconf"],
    packages: &["apt-utils", "createrepo-c", "gpg", "gpg-agent", "gpgconf"],
    suites: &[],
    only: &[],
};

/// A Rust compiler for this machine with the standard library of 64-bit Arm, which rustup may not reach.
pub(crate) const RUST_ARM64: Set = Set {
    name: "rust-arm64",
    purpose: "compiles for 64-bit Arm, for `package --arch arm64`",
    programs: &[],
    packages: &["rustc-web", "libstd-rust-web-dev", "libstd-rust-web-dev:arm64"],
    suites: &["bookworm-security"],
    only: &["rustc-web_", "libstd-rust-web-", "libllvm"],
};

/// Runs programs of 64-bit Arm, each by itself.
pub(crate) const QEMU_USER: Set = Set {
    name: "qemu-user",
    purpose: "runs programs of 64-bit Arm, for `test arm64`",
    programs: &["qemu-aarch64-static"],
    packages: &["qemu-user-static"],
    suites: &[],
    only: &[],
};

/// The C library that these programs load.
pub(crate) const GLIBC_ARM64: Set = Set {
    name: "glibc-arm64",
    purpose: "the C library of 64-bit Arm, for `test arm64`",
    programs: &[],
    packages: &["libc6-arm64-cross"],
    suites: &[],
    only: &["libc6-arm64-cross_", "libgcc-s1-arm64-cross_"],
};

/// Debian 12's kernel for 64-bit Arm.
pub(crate) const LINUX_ARM64: Set = Set {
    name: "linux-arm64",
    purpose: "Debian 12's kernel for 64-bit Arm, for `test arm64`",
    programs: &[],
    packages: &["linux-image-arm64:arm64"],
    suites: &["bookworm-security"],
    only: &["linux-image-"],
};

/// The only program beside ours in a guest of 64-bit Arm.
pub(crate) const BUSYBOX_ARM64: Set = Set {
    name: "busybox-arm64",
    purpose: "a shell of 64-bit Arm, for `test arm64`",
    programs: &[],
    packages: &["busybox-static:arm64"],
    suites: &[],
    only: &["busybox-static_"],
};

pub(crate) const QEMU_ARM: Set = Set {
    name: "qemu-arm",
    purpose: "a virtual machine of 64-bit Arm, for `test arm64`",
    programs: &["qemu-system-aarch64"],
    packages: &["qemu-system-arm"],
    suites: &[],
    only: &[],
};

pub(super) const SETS: &[&Set] = &[
    &IPROUTE2,
    &BPFTOOL,
    &ETHTOOL,
    &NFTABLES,
    &STRACE,
    &TMUX,
    &VALGRIND,
    &PROMETHEUS,
    &NODE_EXPORTER,
    &LIBFUZZER,
    &QEMU,
    &XZ,
    &LINUX_5_10,
    &LINUX_6_1,
    &LINUX_6_12,
    &LINUX_NEWEST,
    &LINUX_SOURCE,
    &SPARSE,
    &RDMA,
    &PERFTEST,
    &NFS,
    &PYVERBS,
    &PYVERBS_13,
    &UCX,
    &OPENSM,
    &MMDEBSTRAP,
    &LOWDOWN,
    &RPM,
    &REPOSITORY,
    &RUST_ARM64,
    &LINUX_ARM64,
    &BUSYBOX_ARM64,
    &QEMU_ARM,
    &QEMU_USER,
    &GLIBC_ARM64,
];
