// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The names in the directory of [pins](super::pins), and which ones are ours.

use ibarr_common::{IfIndex, map};
use ibarr_proto::responder::Hook;

use super::directory::Kind;

/// The mark of our directory. bpftool, libbpf and systemd use no such name.
pub(super) const MARK: &str = "ibarr-pins";
pub(super) const LINKS: &str = "links";
const NAMESPACE: &str = "netns-";
const QDISC: &str = "qdisc";

/// The meaning of a name in the directory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Top {
    Mark,
    Links,
    Layout(u32),
    Namespace,
}

impl Top {
    pub(super) fn of(name: &str) -> Option<Self> {
        match name {
            MARK => Some(Self::Mark),
            LINKS => Some(Self::Links),
            _ => match name.strip_prefix(NAMESPACE) {
                Some(inode) => number::<u64>(inode).map(|_| Self::Namespace),
                None => number(name.strip_prefix('v')?).map(Self::Layout),
            },
        }
    }

    /// Whether an entry of this directory is ours.
    pub(super) fn holds(self, name: &str, kind: Kind) -> bool {
        match self {
            Self::Mark | Self::Namespace => false,
            Self::Layout(_) => kind == Kind::Pin && map::NAMES.contains(&name),
            Self::Links => OurLink::of(name).is_some_and(|link| link.kind() == kind),
        }
    }
}

/// The meaning of a name in `links`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum OurLink {
    Hook(IfIndex, Hook),
    Qdisc(IfIndex),
}

impl OurLink {
    pub(super) fn of(name: &str) -> Option<Self> {
        let (kind, ifindex) = name.rsplit_once('-')?;
        let ifindex = IfIndex::new(number(ifindex)?)?;
        if kind == QDISC {
            return Some(Self::Qdisc(ifindex));
        }
        let hook = Hook::ALL.into_iter().find(|&hook| prefix(hook) == kind)?;
        Some(Self::Hook(ifindex, hook))
    }

    /// The name of the directory that stands for it, if it has one.
    pub(super) fn note(self) -> Option<String> {
        match self {
            Self::Qdisc(ifindex) => Some(qdisc(ifindex)),
            Self::Hook(ifindex, at) => (at == Hook::Clsact).then(|| hook(ifindex, at)),
        }
    }

    pub(super) fn kind(self) -> Kind {
        match self {
            _ if self.note().is_some() => Kind::Directory,
            _ => Kind::Pin,
        }
    }
}

pub(super) fn namespace(inode: u64) -> String {
    format!("{NAMESPACE}{inode}")
}

pub(super) fn layout(version: u32) -> String {
    format!("v{version}")
}

pub(super) fn hook(ifindex: IfIndex, hook: Hook) -> String {
    format!("{}-{ifindex}", prefix(hook))
}

pub(super) fn qdisc(ifindex: IfIndex) -> String {
    format!("{QDISC}-{ifindex}")
}

pub(crate) const fn prefix(hook: Hook) -> &'static str {
    match hook {
        Hook::Tcx => "tc",
        Hook::Clsact => "clsact",
        Hook::XdpNative => "xdp-native",
        Hook::XdpGeneric => "xdp-generic",
    }
}

/// A number as we write it: only digits, without leading zeros.
fn number<N: std::str::FromStr>(text: &str) -> Option<N> {
    let is_ours =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    is_ours.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_written_by_a_daemon_are_ours() {
        let pins = ["tc-7", "xdp-native-7", "xdp-generic-1"];
        let directories = ["clsact-7", "qdisc-7"];
        for name in pins {
            assert!(Top::Links.holds(name, Kind::Pin), "{name}");
            assert!(!Top::Links.holds(name, Kind::Directory), "{name}");
        }
        for name in directories {
            assert!(Top::Links.holds(name, Kind::Directory), "{name}");
            assert!(!Top::Links.holds(name, Kind::Pin), "{name}");
        }
        for name in ["tc-", "tc-0", "tc-07", "tc-+7", "tc-7a", "tcx-7", "tc7", "", "-7", "a-tc-7"] {
            assert_eq!(OurLink::of(name), None, "{name}");
        }
        assert_eq!(Top::of("v0"), Some(Top::Layout(0)));
        assert_eq!(Top::of("v4"), Some(Top::Layout(4)));
        assert_eq!(Top::of("netns-4026531840"), Some(Top::Namespace));
        for name in ["v", "v04", "v4x", "w4", "netns-", "netns-x", "link", "ibarr", "LINKS"] {
            assert_eq!(Top::of(name), None, "{name}");
        }
        assert!(Top::Layout(1).holds(map::ALLOW, Kind::Pin));
        assert!(!Top::Layout(1).holds("allowed", Kind::Pin));
        assert!(!Top::Mark.holds("x", Kind::Directory));
    }
}
