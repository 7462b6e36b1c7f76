// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Files of the administrator, read by the daemon: GIDs of names, and paths of OpenSM.

use ibarr_common::wire::acm::{Address, Ask, Name, Resolve, Status};

use crate::acm::{Client, counter, serving};
use crate::paths::{LOCAL, Port, ask, request, start};
use crate::support::{Daemon, TempDir, json};

/// What OpenSM writes for the port of this test; the SA gives the same path to the port with LID 1.
const DUMP: &str = "\
Channel Adapter 0x0000000000100009, base LID 8, \"here HCA-1\", port 1
# LID  : SL : MTU : RATE
0x0001 : 0  : 4   : 3   
0x0002 : 0  : 4   : 3   
0x0003 : nonsense

Channel Adapter 0x0000000000100001, base LID 1, \"there HCA-1\", port 1
# LID  : SL : MTU : RATE
0x0002 : 0  : 4   : 3   

Channel Adapter 0x0000000000100003, base LID 2, \"elsewhere HCA-1\", port 1
# LID  : SL : MTU : RATE
";

fn configuration(dir: &TempDir) -> String {
    let file = |name: &str| dir.path(name).display().to_string();
    let (hosts, routes) = (file("hosts"), file("routes"));
    format!("{}hosts = \"{hosts}\"\nroutes = \"{routes}\"\n", serving(dir))
}

fn by_name(name: &str) -> Ask {
    Ask::Resolve(Resolve::to(None, Address::Name(Name::new(name).unwrap())))
}

fn warnings(daemon: &Daemon) -> String {
    json(&daemon.ask(&["status", "--json"]))["status"]["warnings"].to_string()
}

#[test]
fn listed_name_leads_along_a_listed_path_when_the_sa_is_silent() {
    let dir = TempDir::new("preload");
    dir.write("hosts", &format!("There {LOCAL}\nbroken\n"));
    dir.write("routes", DUMP);
    let port = Port::new(&dir);
    let (daemon, kernel) = start(&dir, &configuration(&dir));
    daemon.until(|daemon| (counter(daemon, "paths.preloaded") == 2).then_some(()));
    // Both files have a bad line, which is named.
    let warned = warnings(&daemon);
    assert!(warned.contains("hosts:2: write a name or an address"), "{warned}");
    assert!(warned.contains("routes:5: the SL must be"), "{warned}");
    let mut client = Client::connect(&dir);
    let sa = port.hold();
    assert_eq!(client.ask(by_name("there")), Ok(vec![(0x2b, 1)]));
    assert_eq!(counter(&daemon, "paths.found-doubted"), 1);
    drop(sa);
    // The kernel has the same memory. What the SA has said is sure.
    assert_eq!(ask(&kernel, 1, request(LOCAL, 1)), Some(vec![(0x2b, 1, 8)]));
    daemon.until(|_| (port.asked() > 0).then_some(()));
    // A reload reads both again: names that are gone are not known any more.
    dir.write("hosts", &format!("elsewhere {LOCAL}\n"));
    assert!(daemon.ask(&["reload"]).status.success());
    daemon.until(|daemon| (!warnings(daemon).contains("hosts:2")).then_some(()));
    assert_eq!(client.ask(by_name("elsewhere")), Ok(vec![(0x2b, 1)]));
}

#[test]
fn name_is_looked_up_by_the_resolver_of_the_system() {
    let dir = TempDir::new("preload-names");
    let _port = Port::new(&dir);
    let (daemon, _kernel) = start(&dir, &serving(&dir));
    let mut client = Client::connect(&dir);
    // A resolver reads numbers without a network. This machine has a route to itself, but no GID.
    assert_eq!(client.ask(by_name("127.0.0.1")), Err(Status::DestinationAddress));
    assert_eq!(counter(&daemon, "acm.names-asked"), 1);
    let missing = "no such file; the daemon says so";
    let config = serving(&dir) + "hosts = \"/nonexistent/hosts\"\n";
    dir.write("ibarr.toml", &format!("responder = \"user\"\n{config}"));
    assert!(daemon.ask(&["reload"]).status.success());
    daemon.until(|daemon| warnings(daemon).contains("/nonexistent/hosts").then_some(missing));
}
