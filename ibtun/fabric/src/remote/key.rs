// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! The code that shows that the sender of a datagram has the key: HMAC with SHA-256, cut to 16 bytes (RFC 2104;
//! RFC 4868 §2.6).

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Fewest bytes of a key.
pub const MIN_KEY_LEN: usize = 16;

/// Length of a code in bytes.
pub(super) const CODE_LEN: usize = 16;

/// The key that a fabric and its hosts share.
#[derive(Clone, Debug)]
pub struct Key(Hmac<Sha256>);

/// The key is too short.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a key has at least {MIN_KEY_LEN} bytes, and this one {0}")]
pub struct ShortKey(usize);

impl Key {
    /// A key of any length from [`MIN_KEY_LEN`].
    ///
    /// # Errors
    ///
    /// If it is shorter.
    pub fn new(bytes: &[u8]) -> Result<Self, ShortKey> {
        let short = ShortKey(bytes.len());
        if bytes.len() < MIN_KEY_LEN {
            return Err(short);
        }
        Hmac::new_from_slice(bytes).map(Self).map_err(|_| short)
    }

    /// The code of `bytes`.
    pub(super) fn code(&self, bytes: &[u8]) -> [u8; CODE_LEN] {
        let code: [u8; 32] = self.0.clone().chain_update(bytes).finalize().into_bytes().into();
        code.first_chunk().copied().unwrap_or_default()
    }

    /// Whether `code` is that of `bytes`. It takes the same time for each wrong one.
    pub(super) fn verify(&self, bytes: &[u8], code: &[u8; CODE_LEN]) -> bool {
        self.0.clone().chain_update(bytes).verify_truncated_left(code).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231 §4.5 and §4.2.
    #[test]
    fn codes_are_those_of_the_rfc() {
        let key: Vec<u8> = (1..=25).collect();
        let key = Key::new(&key).unwrap();
        let expected = 0x8255_8a38_9a44_3c0e_a4cc_8198_99f2_083a_u128.to_be_bytes();
        assert_eq!(key.code(&[0xcd; 50]), expected);
        assert!(key.verify(&[0xcd; 50], &expected));
        assert!(!key.verify(&[0xcd; 49], &expected));

        let key = Key::new(&[0x0b; 20]).unwrap();
        assert_eq!(
            key.code(b"Hi There"),
            0xb034_4c61_d8db_3853_5ca8_afce_af0b_f12b_u128.to_be_bytes()
        );
    }

    #[test]
    fn short_key_is_refused() {
        assert_eq!(Key::new(&[7; 15]).unwrap_err(), ShortKey(15));
        assert!(Key::new(&[7; 16]).is_ok());
        assert!(Key::new(&[7; 300]).is_ok());
    }
}
