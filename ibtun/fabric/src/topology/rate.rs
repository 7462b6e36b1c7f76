// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The widths and speeds of links.

use std::fmt;
use std::str::FromStr;

/// The width and speed of a link, such as `4xNDR`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rate {
    width: &'static Width,
    speed: &'static Speed,
}

/// The widths and speeds that a port has enabled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rates {
    /// In the form of PortInfo:LinkWidthEnabled.
    widths: u8,
    /// PortInfo:LinkSpeedEnabled in bits 0 to 2, LinkSpeedExtEnabled from bit 4 on, and
    /// LinkSpeedExtEnabled2 from bit 9 on.
    speeds: u16,
}

#[derive(Debug, Eq, PartialEq)]
struct Width {
    lanes: u8,
    bit: u8,
    /// This and the narrower ones that such a port has.
    all: u8,
}

#[derive(Debug, Eq, PartialEq)]
struct Speed {
    name: &'static str,
    bit: u16,
}

/// From the narrowest on. Ports of 4 lanes and more have no width of 2.
const WIDTHS: [Width; 5] = [
    Width { lanes: 1, bit: 1, all: 1 },
    Width { lanes: 2, bit: 16, all: 17 },
    Width { lanes: 4, bit: 2, all: 3 },
    Width { lanes: 8, bit: 4, all: 7 },
    Width { lanes: 12, bit: 8, all: 11 },
];

/// From the slowest on: 2.5, 5, 10, 14, 25, 50, 100 and 200 Gb/s a lane.
const SPEEDS: [Speed; 8] = [
    Speed { name: "SDR", bit: 1 },
    Speed { name: "DDR", bit: 2 },
    Speed { name: "QDR", bit: 4 },
    Speed { name: "FDR", bit: 0x10 },
    Speed { name: "EDR", bit: 0x20 },
    Speed { name: "HDR", bit: 0x40 },
    Speed { name: "NDR", bit: 0x80 },
    Speed { name: "XDR", bit: 0x200 },
];

/// The bits that are defined.
const ALL_WIDTHS: u64 = 0x1f;
const ALL_SPEEDS: u64 = 0x07;
const ALL_EXTENDED: u64 = 0x2f;
const ALL_BITS: u16 = 0x2f7;

impl Rates {
    /// The width and speed, and all below them.
    pub fn up_to(rate: Rate) -> Self {
        Self { widths: rate.width.all, speeds: (rate.speed.bit * 2 - 1) & ALL_BITS }
    }

    /// The fastest that both have. `None` if they have no width or no speed in common.
    pub fn common(self, other: Self) -> Option<Rate> {
        let (widths, speeds) = (self.widths & other.widths, self.speeds & other.speeds);
        Some(Rate {
            width: WIDTHS.iter().rfind(|width| width.bit & widths != 0)?,
            speed: SPEEDS.iter().rfind(|speed| speed.bit & speeds != 0)?,
        })
    }

    /// LinkWidthEnabled. `None` if the value is not defined.
    pub(super) fn with_widths(self, bits: u64) -> Option<Self> {
        let is_defined = bits != 0 && bits & !ALL_WIDTHS == 0;
        Some(Self { widths: u8::try_from(bits).ok().filter(|_| is_defined)?, ..self })
    }

    /// LinkSpeedEnabled; 0 is QDR, as for ibsim.
    pub(super) fn with_speeds(self, bits: u64) -> Option<Self> {
        let bits = if bits == 0 { 4 } else { bits };
        let bits = u16::try_from(bits).ok().filter(|_| bits & !ALL_SPEEDS == 0)?;
        Some(Self { speeds: self.speeds & !7 | bits, ..self })
    }

    /// LinkSpeedExtEnabled, with XDR as 32, as infiniband-diags count it.
    pub(super) fn with_extended_speeds(self, bits: u64) -> Option<Self> {
        let bits = u16::try_from(bits).ok().filter(|_| bits & !ALL_EXTENDED == 0)?;
        Some(Self { speeds: self.speeds & 7 | bits << 4, ..self })
    }

    /// The bits of PortInfo:LinkWidthEnabled.
    pub fn widths(self) -> u8 {
        self.widths
    }

    /// All that are not in LinkSpeedEnabled, as [`Rates::with_extended_speeds`] takes them.
    pub(crate) fn extended(self) -> u16 {
        self.speeds >> 4
    }

    /// The bits of PortInfo:LinkSpeedEnabled.
    pub fn speeds(self) -> u8 {
        (self.speeds & 0x07) as u8
    }

    /// The bits of PortInfo:LinkSpeedExtEnabled.
    pub fn extended_speeds(self) -> u8 {
        (self.speeds >> 4 & 0x0f) as u8
    }

    /// The bits of PortInfo:LinkSpeedExtEnabled2.
    pub fn extended_speeds_2(self) -> u8 {
        (self.speeds >> 9) as u8
    }
}

impl Default for Rates {
    /// 4 lanes of QDR, and below.
    fn default() -> Self {
        Self { widths: 3, speeds: 7 }
    }
}

impl Rate {
    /// What a link has in the end: the same in the form of [`Rates`], with one bit of each.
    pub fn alone(self) -> Rates {
        Rates { widths: self.width.bit, speeds: self.speed.bit }
    }
}

impl FromStr for Rate {
    type Err = ();

    /// FDR10 is QDR: that is what PortInfo says of such a link, and an attribute of one vendor the
    /// rest.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (lanes, name) = text.split_once('x').ok_or(())?;
        let lanes: u8 = lanes.parse().map_err(|_| ())?;
        let name = if name == "FDR10" { "QDR" } else { name };
        let width = WIDTHS.iter().find(|width| width.lanes == lanes).ok_or(())?;
        let speed = SPEEDS.iter().find(|speed| speed.name == name).ok_or(())?;
        Ok(Self { width, speed })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width.lanes, self.speed.name)
    }
}
