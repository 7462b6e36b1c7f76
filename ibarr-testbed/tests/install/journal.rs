// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The log in a real journal.

use std::collections::BTreeMap;

use ibarr_user::logging::ids;
use serde_json::Value;

use crate::node::{GID, Node};

/// The entries of the unit with this `MESSAGE_ID`, in order.
fn entries(node: &Node, id: &str) -> Vec<BTreeMap<String, Value>> {
    let output =
        node.ok(&format!("journalctl --no-pager --output=json --unit=ibarr MESSAGE_ID={id}"));
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn journal_has_fields_priority_and_explanation_of_each_event() {
    let node = Node::installed();
    node.ok("systemctl start ibarr");
    node.until("it is ready", || entries(&node, ids::READY).len() == 1);
    let ready = &entries(&node, ids::READY)[0];
    assert_eq!(ready["PRIORITY"], "6");
    assert_eq!(ready["SYSLOG_IDENTIFIER"], "ibarr");
    assert_eq!(ready["MESSAGE"], "ready");
    let answering = "journalctl --no-pager --output=cat --unit=ibarr";
    assert!(node.ok(&format!("{answering} IBARR_GID={GID}")).contains("answering ip="));

    node.configure("udp-prot = 4791\n");
    assert!(!node.run("systemctl reload ibarr").status.success());
    let refused = &entries(&node, ids::RELOAD_REFUSED)[0];
    assert_eq!(refused["PRIORITY"], "3");
    assert!(refused["IBARR_CAUSE"].as_str().unwrap().contains("udp-prot is not a key"));
    let explained = node.ok(&format!(
        "journalctl --no-pager --catalog --unit=ibarr MESSAGE_ID={}",
        ids::RELOAD_REFUSED
    ));
    for words in
        ["Subject: ibarr has refused its new configuration", "udp-prot is not", "ibarr validate"]
    {
        assert!(explained.contains(words), "{explained}");
    }
    let shown = node.ok("journalctl --no-pager --output=cat --unit=ibarr --priority=warning");
    assert!(shown.contains("not reloaded") && !shown.contains("ready"), "{shown}");
}
