// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `MESSAGE_ID`s of the journal, by which monitoring finds events whatever their text is. An ID never
//! gets another meaning. ibarr(8) lists them.

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $id:literal,)+) => {
        $($(#[$doc])* pub const $name: &str = $id;)+

        #[cfg(test)]
        pub(crate) const ALL: &[&str] = &[$($name),+];
    };
}

ids! {
    /// The daemon is ready.
    READY = "3206d620d129604141d96bf5ae3e6f0e",
    /// The daemon does not run.
    NOT_STARTED = "fe9346fffd96011356429181066371bf",
    /// The daemon ends.
    ENDING = "050061f5a8ddce1c4eb59dde46791507",
    /// A new configuration has taken effect.
    RELOADED = "29decf2a78ac7aab8abcc00892042c63",
    /// A configuration is refused, and the old one stays in force.
    RELOAD_REFUSED = "84a205f1c7bd79081651b8fec1955f65",
    /// A port's subnet administrator can be asked.
    SA_ASKED = "06ada722f7bc853aea559781208f361c",
    /// A port's subnet administrator cannot be asked.
    SA_NOT_ASKED = "8514e33c0d15200a5722eb44ab6eb227",
    /// A port's umad device is lost.
    UMAD_LOST = "4f266d9eefda29125a6ac16edec014b6",
    /// The kernel answers peers on an interface.
    KERNEL_ANSWERS = "1d984e934903ff3cb2f5d963d842c751",
    /// The kernel cannot answer peers on an interface, or on any. The daemon answers them.
    USER_ANSWERS = "742f1270238e8ef7334bab5bb2f4ee42",
    /// Another process has removed a program of ibarr.
    PROGRAM_REMOVED = "7085c9fd64df10a3cf57b12a712c5b40",
    /// Peers' queries are received.
    SERVING = "8e42a61c8c5db5568154a4bc4e43d405",
    /// Peers' queries cannot be received.
    NOT_SERVING = "681bdc099e65fafc36177ab5be0c1bdc",
    /// The kernel sends its requests to ibarr.
    KERNEL_ASKS = "392e451d6dd1b8fa8585ae026d065cfd",
    /// The kernel cannot send its requests to ibarr.
    KERNEL_DOES_NOT_ASK = "df615a4fe11b82590c9ddb52508dd5e3",
    /// Another process receives the kernel's requests, too.
    OTHER_LISTENER = "a1c6ecd59e8117b9204db5497334ff90",
    /// Events of ports are not heard.
    EVENTS_NOT_HEARD = "0593394533069e016fc636dfbe9e76d7",
    /// The paths of the last daemon are not used, or those of this one not saved.
    SNAPSHOT_FAILED = "5cb06130e2c4ebb293af1344fc4c889d",
    /// Paths of this daemon are saved again.
    SNAPSHOT_WORKS = "b776f51736fe924859530df74ae5e911",
    /// The kernel is not nudged to ask again.
    NUDGES_FAIL = "c2493e71c198927d1fdd2e5d339b6957",
    /// The kernel is nudged again.
    NUDGES_WORK = "8cb1a1915935ab7f2a20b2bcabb54f66",
    /// A subsystem works worse than before.
    HEALTH_WORSE = "99377ca581bd25b02b062b2d274d7fb8",
    /// A reason for which a subsystem worked worse has gone.
    HEALTH_BETTER = "8cb6146978a3d846d5b9438b83666109",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_id_is_valid_unique_and_documented() {
        let manual = include_str!("../../../docs/man/ibarr.8.md");
        let catalog = include_str!("../../../pkg/ibarr.catalog");
        let entries: Vec<_> = catalog.split("\n-- ").skip(1).collect();
        assert_eq!(entries.len(), ALL.len());
        for (n, id) in ALL.iter().enumerate() {
            assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
            assert!(!ALL[..n].contains(id), "{id}");
            assert!(manual.contains(id), "{id}");
            let start = format!("{id}\nSubject: ");
            assert!(entries.iter().any(|entry| entry.starts_with(&start)), "{id}");
        }
    }
}
