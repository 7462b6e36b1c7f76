// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! What a single line says.

use ibarr_common::ib::{Guid, PortNum};

use super::super::{Rate, Rates};
use super::Mistake;
use crate::wire::smp::NodeType;

/// A line like `Switch 8 "S1" # "description"`.
pub(super) struct Node<'a> {
    pub(super) kind: NodeType,
    pub(super) ports: PortNum,
    pub(super) name: &'a str,
    pub(super) description: Option<&'a str>,
}

/// A line like `[1](100001) "S1"[2] w=3`.
pub(super) struct Cable<'a> {
    pub(super) number: PortNum,
    pub(super) guid: Option<Guid>,
    pub(super) to: Option<(&'a str, PortNum)>,
    pub(super) far_guid: Option<Guid>,
    pub(super) options: Vec<RateOption<'a>>,
}

/// The other end of a cable.
pub(super) struct Far {
    pub(super) name: String,
    pub(super) port: PortNum,
    pub(super) guid: Option<Guid>,
}

/// An option like `w=3`.
pub(super) struct RateOption<'a> {
    text: &'a str,
}

impl RateOption<'_> {
    pub(super) fn apply(&self, rates: Rates) -> Result<Rates, Mistake> {
        let (key, value) =
            self.text.split_once('=').ok_or_else(|| Mistake::PortNumber(self.text.to_owned()))?;
        let bits = number(value)?;
        let changed = match key {
            "w" => rates.with_widths(bits),
            "s" => rates.with_speeds(bits),
            "e" => rates.with_extended_speeds(bits),
            _ => None,
        };
        changed.ok_or_else(|| Mistake::Option(self.text.to_owned()))
    }
}

/// Splits at the first `#` outside quotes.
pub(super) fn split_comment(line: &str) -> (&str, &str) {
    let mut quoted = false;
    let hash = line.char_indices().find(|&(_, character)| {
        quoted ^= character == '"';
        character == '#' && !quoted
    });
    hash.map_or((line, ""), |(at, _)| line.split_at(at))
}

/// A heading of `ibnetdiscover -g`.
pub(super) fn is_heading(code: &str) -> bool {
    code.starts_with("Chassis ") || code.starts_with("Hostname: ") || code == "Non-Chassis Nodes"
}

/// What infiniband-diags and its libraries say on stderr, or tell of their progress.
pub(super) fn is_message(line: &str) -> bool {
    const BEGINNINGS: [&str; 5] =
        ["ibwarn: [", "ibpanic: [", "ibdebug: [", "WARNING failed", "DR path slid "];
    // `/build/rdma-core/libibnetdisc/query_smp.c:227; umad …`.
    let place = line.split_once("; ").and_then(|(place, _)| place.rsplit_once(".c:"));
    BEGINNINGS.iter().any(|beginning| line.starts_with(beginning))
        || place.is_some_and(|(_, line)| line.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The file of `include "FILE"`.
pub(super) fn include(line: &str) -> Option<Result<&str, Mistake>> {
    let rest = line.trim_start().strip_prefix("include")?;
    Some(quoted(rest).map(|(name, _)| name).ok_or(Mistake::Name))
}

/// Parses `key=value`, and `key+value`, which is relative. A quoted name may contain `=` as well.
pub(super) fn assignment(code: &str) -> Option<(&str, &str, bool)> {
    let (key, value, is_relative) = match code.split_once('=') {
        Some((key, value)) => (key, value, false),
        None => code.split_once('+').map(|(key, value)| (key, value, true))?,
    };
    let key = key.trim();
    key.bytes().all(|byte| byte.is_ascii_alphabetic()).then_some((key, value, is_relative))
}

pub(super) fn node<'a>(code: &'a str, comment: &'a str) -> Result<Node<'a>, Mistake> {
    let (kind, rest) = code.split_once(char::is_whitespace).unwrap_or((code, ""));
    let rest = rest.trim_start();
    let kind = match kind {
        "Ca" | "Switch" | "Router" | "???" if rest.starts_with(':') => return Err(Mistake::List),
        "SW" | "CA" | "RT" => return Err(Mistake::Report),
        "<" | ">" => return Err(Mistake::Difference),
        "do" => return Err(Mistake::Console),
        "Ca" | "Hca" => NodeType::ChannelAdapter,
        "Switch" => NodeType::Switch,
        "Rt" => NodeType::Router,
        _ => return Err(Mistake::Unknown),
    };
    let count = rest.split(|character: char| !character.is_ascii_digit()).next();
    let count = count.unwrap_or_default();
    let ports = count.parse().ok().and_then(PortNum::new);
    let ports = ports.ok_or_else(|| Mistake::PortCount(count.to_owned()))?;
    let (name, _) = quoted(rest).ok_or(Mistake::Name)?;
    Ok(Node { kind, ports, name, description: description(comment) })
}

/// The description, which may contain quotes. Old versions of `ibnetdiscover` put none around it.
fn description<'a>(comment: &'a str) -> Option<&'a str> {
    let text = comment.strip_prefix('#')?.trim().trim_end_matches(" (scp)");
    // `"leaf" base port 0 lid 2 lmc 0`.
    let port_0 = [" base port 0", " enhanced port 0"].map(|end| text.rfind(end));
    let before = port_0.into_iter().flatten().max().and_then(|end| text.get(..end));
    let within = |text: &'a str| text.strip_prefix('"')?.strip_suffix('"');
    let description = match text.strip_prefix('"') {
        None => before,
        Some(behind) => {
            let short = || Some(behind.split_once('"')?.0);
            before.and_then(within).or_else(|| within(text)).or_else(short)
        }
    };
    description.filter(|description| !description.is_empty())
}

/// The width and speed at the end of `"S1" lid 2 4xNDR`. A speed that `ibnetdiscover` did not
/// know, `4x???`, says nothing.
pub(super) fn seen(comment: &str) -> Result<Option<Rate>, Mistake> {
    let (_, end) = comment.rsplit_once('"').unwrap_or_default();
    let mut words = end.split_whitespace();
    let rate = match (words.next(), words.next(), words.next()) {
        (Some("lid"), Some(_), Some(rate)) if !rate.contains('?') => rate,
        _ => return Ok(None),
    };
    rate.parse().map(Some).map_err(|()| Mistake::Rate(rate.to_owned()))
}

/// The part of `[1](100001) "S1"[2]` after the first bracket.
pub(super) fn cable(cable: &str) -> Result<Cable<'_>, Mistake> {
    let (number, rest) = port_number(cable)?;
    let (guid, rest) = guid(without_label(rest).trim_start())?;
    let mut line = Cable { number, guid, to: None, far_guid: None, options: Vec::new() };
    if rest.trim().is_empty() {
        return Ok(line);
    }
    let (to, rest) = rest.trim_start().strip_prefix('"').ok_or(Mistake::Name).and_then(|rest| {
        rest.split_once('"').filter(|(name, _)| !name.is_empty()).ok_or(Mistake::Name)
    })?;
    let rest = rest.trim_start();
    let (far, rest) = match rest.strip_prefix('[') {
        Some(rest) => port_number(rest)?,
        None => (port_number("1]")?.0, rest),
    };
    line.to = Some((to, far));
    let (far_guid, rest) = self::guid(without_label(rest).trim_start())?;
    line.far_guid = far_guid;
    line.options = rest.split_whitespace().map(|text| RateOption { text }).collect();
    Ok(line)
}

/// The text without the number of the chassis, `[ext 5]`.
fn without_label(text: &str) -> &str {
    let label = text.strip_prefix("[ext ").and_then(|label| label.split_once(']'));
    label.map_or(text, |(_, rest)| rest)
}

/// The GUID in `(100001) …`, if there is one, and the part after it.
fn guid(text: &str) -> Result<(Option<Guid>, &str), Mistake> {
    let Some((guid, rest)) = text.strip_prefix('(').and_then(|rest| rest.split_once(')')) else {
        return Ok((None, text));
    };
    let hex = u64::from_str_radix(guid.trim_start_matches("0x"), 16);
    Ok((Some(Guid::new(hex.map_err(|_| Mistake::Number(guid.to_owned()))?)), rest))
}

/// The number in `1] …`, and the part after the bracket.
fn port_number(text: &str) -> Result<(PortNum, &str), Mistake> {
    let (number, rest) = text.split_once(']').unwrap_or((text, ""));
    let port = number.trim().parse().ok().and_then(PortNum::new);
    Ok((port.ok_or_else(|| Mistake::PortNumber(number.to_owned()))?, rest))
}

/// The text in the first pair of double quotes, and the part after it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let (_, behind) = text.split_once('"')?;
    behind.split_once('"').filter(|(name, _)| !name.is_empty())
}

/// The name in quotes, which may be empty.
pub(super) fn name(text: &str) -> Result<&str, Mistake> {
    let name = text.trim().strip_prefix('"').and_then(|name| name.strip_suffix('"'));
    name.filter(|name| !name.contains('"')).ok_or(Mistake::Name)
}

pub(super) fn number(text: &str) -> Result<u64, Mistake> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number.map_err(|_| Mistake::Number(text.to_owned()))
}
