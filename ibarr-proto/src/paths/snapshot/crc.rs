// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! CRC-32 as of IEEE 802.3: finds each burst of up to 32 wrong bits, and others but for one in 2³².

/// Of the bytes so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crc(u32);

impl Default for Crc {
    fn default() -> Self {
        Self(u32::MAX)
    }
}

impl Crc {
    pub(super) fn of(bytes: &[u8]) -> u32 {
        let mut this = Self::default();
        this.update(bytes);
        this.get()
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let [low, ..] = self.0.to_le_bytes();
            self.0 = TABLE[usize::from(low ^ byte)] ^ self.0 >> 8;
        }
    }

    pub(super) fn get(self) -> u32 {
        !self.0
    }
}

/// The remainder of each byte; bits are reflected.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0_u32;
    while byte < 256 {
        let mut remainder = byte;
        let mut bit = 0;
        while bit < 8 {
            let is_odd = remainder & 1 != 0;
            remainder >>= 1;
            if is_odd {
                remainder ^= 0xedb8_8320;
            }
            bit += 1;
        }
        table[byte as usize] = remainder;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value that every catalogue of CRCs has.
    #[test]
    fn remainder_is_that_of_everybody_else() {
        assert_eq!(Crc::of(b"123456789"), 0xcbf4_3926);
        assert_eq!(Crc::of(b""), 0);
        let mut parts = Crc::default();
        parts.update(b"1234");
        parts.update(b"56789");
        assert_eq!(parts.get(), 0xcbf4_3926);
    }
}
