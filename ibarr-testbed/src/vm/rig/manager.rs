// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! OpenSM as the manager of one of several subnets.

use anyhow::Result;

use super::{Place, Process, guid_of, run, spawn};

/// What OpenSM is told. Each manager has its own directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manager<'a> {
    pub(crate) name: &'a str,
    pub(crate) place: Place,
    /// Its port, as sysfs writes it.
    pub(crate) port: &'a str,
    /// Of the subnet's GIDs.
    pub(crate) prefix: u64,
    pub(crate) lmc: u8,
    /// Further options of the first partition.
    pub(crate) partition: &'a str,
    /// Partitions after the first two.
    pub(crate) others: &'a str,
    /// GUIDs, and a LID among those that the port gets.
    pub(crate) lids: &'a [(String, u16)],
}

impl Manager<'_> {
    pub(crate) fn start(&self) -> Result<Process> {
        let Self { name, place, port, prefix, lmc, partition, others, lids } = self;
        let directory = format!("/run/sm-{name}");
        let range = |(guid, lid): &(String, u16)| {
            let first = lid >> lmc << lmc;
            // A blank line ends an entry.
            format!("{guid} 0x{first:04x} 0x{:04x}\n\n", first + (1 << lmc) - 1)
        };
        let lids: String = lids.iter().map(range).collect();
        let qos = if partition.is_empty() { "FALSE" } else { "TRUE" };
        let config = format!(
            "force_log_flush TRUE\nsubnet_prefix 0x{prefix:016x}\nlmc {lmc}\nhonor_guid2lid_file TRUE\n\
             prefix_routes_file {directory}/prefix-routes\nqos {qos}\n"
        );
        let partitions = format!(
            "Default=0x7fff, ipoib{partition} : ALL=full, SELF=full;\n\
             children=0x0001, ipoib : ALL=full;\n{others}"
        );
        run(*place, &["busybox", "mkdir", "-p", &directory])?;
        for (file, text) in [
            ("guid2lid", lids.as_str()),
            // To any other prefix by any router.
            ("prefix-routes", "* *\n"),
            ("partitions", &partitions),
            ("opensm.conf", &config),
        ] {
            put(*place, &format!("{directory}/{file}"), text)?;
        }
        let guid = guid_of(*place, port)?;
        let cache = format!("OSM_CACHE_DIR={directory}/");
        let [config, partitions, log] =
            ["opensm.conf", "partitions", "log"].map(|file| format!("{directory}/{file}"));
        let words = ["busybox", "env", &cache, "opensm", "-F", &config, "--guid", &guid];
        let files = ["--Pconfig", &partitions, "--log_file", &log];
        spawn(&format!("opensm-{name}"), *place, &[&words[..], &files].concat())
    }
}

/// Writes a file, also of the other guest.
pub(crate) fn put(place: Place, file: &str, text: &str) -> Result<()> {
    run(place, &["busybox", "sh", "-c", &format!("cat > {file} <<'end'\n{text}end\n")]).map(drop)
}
