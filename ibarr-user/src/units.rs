// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The units of the package that run a daemon, and their run directories.

use std::path::Path;

/// The default directory of the control socket, and that of the machine's own daemon.
pub(crate) const RUN_DIR: &str = "/run/ibarr";

/// The unit of the machine's own daemon.
pub(crate) const SERVICE: &str = "ibarr.service";

/// Each daemon of `ibarr@.service` has a directory in it, with the name of its network namespace.
const RUN_DIR_OF_NAMESPACES: &str = "/run/ibarr-netns";

/// The unit that has `path` below its run directory.
pub(crate) fn unit_of(path: &Path) -> Option<String> {
    if path.starts_with(RUN_DIR) {
        return Some(SERVICE.to_owned());
    }
    let mut names = path.strip_prefix(RUN_DIR_OF_NAMESPACES).ok()?.iter();
    Some(format!("ibarr@{}.service", names.next()?.to_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_of_a_daemon_is_known_by_its_directory() {
        for (path, unit) in [
            ("/run/ibarr", Some("ibarr.service")),
            ("/run/ibarr/bpf", Some("ibarr.service")),
            ("/run/ibarr-netns/cni-1", Some("ibarr@cni-1.service")),
            ("/run/ibarr-netns/cni-1/bpf", Some("ibarr@cni-1.service")),
            ("/run/ibarr-netns", None),
            ("/run/ibarr-lab-1/1", None),
        ] {
            assert_eq!(unit_of(Path::new(path)).as_deref(), unit, "{path}");
        }
    }
}
