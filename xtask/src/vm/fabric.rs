// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The scenarios of `vm run`.

use clap::ValueEnum;

/// A scenario on the software fabric.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(super) enum Fabric {
    /// the other InfiniBand software works
    A,
    /// with ibarr, connections across a router
    B,
    /// how long addresses and routes take
    C,
    /// programs in the kernel answer peers
    D,
    /// the subnet changes while ibarr runs
    E,
    /// ibarr on a kernel without IPv6
    F,
    /// ib_acme and librdmacm, without ibacm
    G,
    /// connections between HCAs
    H,
    /// rdma-core's own tests, and infiniband-diags
    I,
    /// floating LIDs: connections between InfiniBand subnets
    J,
    /// an address moves to another node
    K,
    /// two rails with a router each
    L,
    /// OpenSM is silent for some seconds
    M,
    /// a router as it is sold, which needs alias GIDs
    N,
    /// UCX, libfabric, and the tests of Debian 13's rdma-core
    O,
    /// HCAs belong to network namespaces, and one is moved
    P,
    /// what the kernel makes of path records from and to other GIDs than the interfaces'
    Q,
    /// b and librdmacm's part of g, behind a router that needs alias GIDs
    R,
    /// the same behind one with floating LIDs
    S,
    /// the commands of ibtun's README, and ibfab up
    Tutorial,
}

impl Fabric {
    /// Its name in the guest.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::A => "run-a",
            Self::B => "run-b",
            Self::C => "run-c",
            Self::D => "run-d",
            Self::E => "run-e",
            Self::F => "run-f",
            Self::G => "run-g",
            Self::H => "run-h",
            Self::I => "run-i",
            Self::J => "run-j",
            Self::K => "run-k",
            Self::L => "run-l",
            Self::M => "run-m",
            Self::N => "run-n",
            Self::O => "run-o",
            Self::P => "run-p",
            Self::Q => "run-q",
            Self::R => "run-r",
            Self::S => "run-s",
            Self::Tutorial => "run-tutorial",
        }
    }

    /// Whether `ibtun/proofs` has it, and it does without `ibarr`.
    pub(super) fn proves_ibtun(self) -> bool {
        matches!(self, Self::A | Self::H | Self::I | Self::O | Self::Tutorial)
    }

    /// Its text in `--help`.
    pub(super) fn about(self) -> String {
        let value = self.to_possible_value();
        let help = value.as_ref().and_then(|value| value.get_help());
        help.map(ToString::to_string).unwrap_or_default()
    }
}
