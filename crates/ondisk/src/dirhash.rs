//! The hash of a name, which selects the leaf of an indexed directory.
//!
//! There are three algorithms (a legacy one, half of MD4, and TEA in hash mode), each with name
//! bytes taken as signed or as unsigned, because early kernels used the processor's `char`. The
//! major hash orders the directory; its low bit is always clear, since the index uses that bit to
//! mark runs of equal hashes that continue in the next leaf. The minor hash only refines listing
//! cookies. Format: the kernel's `Documentation/filesystems/ext4/directory.rst`.

use crate::casefold::Naming;

/// The hash algorithm of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashVersion {
    /// The first algorithm; weak.
    Legacy,
    /// Three rounds of MD4 over half its block: the default.
    HalfMd4,
    /// The Tiny Encryption Algorithm as a hash.
    Tea,
    /// SipHash with a key: for directories both encrypted and casefolded; not computed here.
    SipHash,
}

impl HashVersion {
    /// The version of a number on disk; the in-memory variants (3 to 5) are not valid there.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            0 => Some(Self::Legacy),
            1 => Some(Self::HalfMd4),
            2 => Some(Self::Tea),
            6 => Some(Self::SipHash),
            _ => None,
        }
    }

    /// The number on disk.
    #[must_use]
    pub const fn to_raw(self) -> u8 {
        match self {
            Self::Legacy => 0,
            Self::HalfMd4 => 1,
            Self::Tea => 2,
            Self::SipHash => 6,
        }
    }
}

/// The type of name bytes in the computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signedness {
    /// Bytes from 0x80 on are negative.
    Signed,
    /// All bytes are positive.
    Unsigned,
}

/// The hash of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Hash {
    /// Selects the leaf; even, and never 0xFFFFFFFE.
    pub major: u32,
    /// Orders names with the same major hash in listings.
    pub minor: u32,
}

/// The parameters of the hash: one set for each directory index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hasher {
    /// The algorithm.
    pub version: HashVersion,
    /// The type of name bytes.
    pub signedness: Signedness,
    /// The seed of the file system; all zero selects the algorithm's constants.
    pub seed: [u32; 4],
    /// How the directory compares names: equal names have equal hashes.
    pub naming: Naming,
}

impl Hasher {
    /// Computes the hash of a name; `None` for an algorithm that needs a key.
    #[must_use]
    pub fn hash(&self, name: &[u8]) -> Option<Hash> {
        let key = self.naming.key(name);
        hash(self.version, self.signedness, self.seed, &key)
    }
}

/// The bits that make signed bytes negative.
const SIGNS: u32 = 0x8080_8080;
const INITIAL: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];

/// Computes the hash of a name's bytes; `None` for an algorithm that needs a key.
#[must_use]
pub fn hash(
    version: HashVersion,
    signedness: Signedness,
    seed: [u32; 4],
    name: &[u8],
) -> Option<Hash> {
    let state = if seed == [0; 4] { INITIAL } else { seed };
    let (major, minor) = match version {
        HashVersion::Legacy => (legacy(signedness, name), 0),
        HashVersion::HalfMd4 => half_md4(signedness, state, name),
        HashVersion::Tea => tea(signedness, state, name),
        HashVersion::SipHash => return None,
    };
    Some(Hash {
        major: usable(major),
        minor,
    })
}

/// Clears the continuation bit, and avoids the value that ends a listing.
fn usable(major: u32) -> u32 {
    let even = major & !1;
    if even == 0xFFFF_FFFE {
        0xFFFF_FFFC
    } else {
        even
    }
}

fn widen(signedness: Signedness, byte: u8) -> u32 {
    match signedness {
        Signedness::Signed => i32::from(byte.cast_signed()).cast_unsigned(),
        Signedness::Unsigned => u32::from(byte),
    }
}

fn legacy(signedness: Signedness, name: &[u8]) -> u32 {
    let (mut current, mut previous) = (0x12A3_FE2D_u32, 0x37AB_E8F9_u32);
    for &byte in name {
        let mixed = current ^ widen(signedness, byte).wrapping_mul(7_152_373);
        let mut next = previous.wrapping_add(mixed);
        if next & 0x8000_0000 != 0 {
            next = next.wrapping_sub(0x7FFF_FFFF);
        }
        previous = current;
        current = next;
    }
    current << 1
}

/// Packs up to `4 * N` bytes into words, first byte highest, padded with the remaining length.
fn pack<const N: usize>(signedness: Signedness, rest: &[u8]) -> [u32; N] {
    let length = u32::try_from(rest.len()).unwrap_or(u32::MAX);
    let doubled = length | length << 8;
    let padding = doubled | doubled << 16;
    let mut words = [padding; N];
    let (whole, behind) = rest.as_chunks();
    for (word, bytes) in words.iter_mut().zip(whole) {
        *word = pack_word(signedness, *bytes);
    }
    if let Some(last) = words.get_mut(whole.len()) {
        *last = append(signedness, padding, behind);
    }
    words
}

/// Packs 4 bytes: nothing of the padding is left.
#[inline]
fn pack_word(signedness: Signedness, bytes: [u8; 4]) -> u32 {
    let word = u32::from_be_bytes(bytes);
    // Unless a byte is negative, none changes those above it.
    if word & SIGNS == 0 || signedness == Signedness::Unsigned {
        word
    } else {
        append(signedness, 0, &bytes)
    }
}

/// `word`, of which `bytes` push out as many.
fn append(signedness: Signedness, word: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(word, |word, &byte| {
        widen(signedness, byte).wrapping_add(word << 8)
    })
}

fn half_md4(signedness: Signedness, mut state: [u32; 4], name: &[u8]) -> (u32, u32) {
    for start in (0..name.len()).step_by(32) {
        let words = pack::<8>(signedness, &name[start..]);
        half_md4_transform(&mut state, &words);
    }
    (state[1], state[2])
}

fn half_md4_transform(state: &mut [u32; 4], words: &[u32; 8]) {
    let [w0, w1, w2, w3, w4, w5, w6, w7] = *words;
    let mut mixed = *state;
    half_md4_round(
        &mut mixed,
        [w0, w1, w2, w3, w4, w5, w6, w7],
        [3, 7, 11, 19],
        |x, y, z| z ^ (x & (y ^ z)),
    );
    half_md4_round(
        &mut mixed,
        [w1, w3, w5, w7, w0, w2, w4, w6],
        [3, 5, 9, 13],
        |x, y, z| (x & y).wrapping_add((x ^ y) & z).wrapping_add(0x5A82_7999),
    );
    half_md4_round(
        &mut mixed,
        [w3, w7, w2, w6, w1, w5, w0, w4],
        [3, 9, 11, 15],
        |x, y, z| (x ^ y ^ z).wrapping_add(0x6ED9_EBA1),
    );
    for (word, mixed) in state.iter_mut().zip(mixed) {
        *word = word.wrapping_add(mixed);
    }
}

/// One of the three rounds: `words` in its order, and its function with its constant.
#[inline]
fn half_md4_round(
    state: &mut [u32; 4],
    words: [u32; 8],
    shifts: [u32; 4],
    function: impl Fn(u32, u32, u32) -> u32,
) {
    let [mut a, mut b, mut c, mut d] = *state;
    for half in [
        [words[0], words[1], words[2], words[3]],
        [words[4], words[5], words[6], words[7]],
    ] {
        let mix = |a: u32, x, y, z, step: usize| {
            let sum = a.wrapping_add(function(x, y, z)).wrapping_add(half[step]);
            sum.rotate_left(shifts[step])
        };
        a = mix(a, b, c, d, 0);
        d = mix(d, a, b, c, 1);
        c = mix(c, d, a, b, 2);
        b = mix(b, c, d, a, 3);
    }
    *state = [a, b, c, d];
}

fn tea(signedness: Signedness, mut state: [u32; 4], name: &[u8]) -> (u32, u32) {
    for start in (0..name.len()).step_by(16) {
        let words = pack::<4>(signedness, &name[start..]);
        tea_transform(&mut state, words);
    }
    (state[0], state[1])
}

fn tea_transform(state: &mut [u32; 4], [a, b, c, d]: [u32; 4]) {
    const DELTA: u32 = 0x9E37_79B9;
    let (mut left, mut right, mut sum) = (state[0], state[1], 0u32);
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        left = left.wrapping_add(
            (right << 4).wrapping_add(a) ^ right.wrapping_add(sum) ^ (right >> 5).wrapping_add(b),
        );
        right = right.wrapping_add(
            (left << 4).wrapping_add(c) ^ left.wrapping_add(sum) ^ (left >> 5).wrapping_add(d),
        );
    }
    state[0] = state[0].wrapping_add(left);
    state[1] = state[1].wrapping_add(right);
}

#[cfg(test)]
mod tests {
    use super::{Hash, HashVersion, Signedness, hash, usable};
    use proptest::prelude::*;

    #[test]
    fn the_value_that_ends_a_listing_is_never_used() {
        assert_eq!(usable(u32::MAX), 0xFFFF_FFFC);
        assert_eq!(usable(0xFFFF_FFFD), 0xFFFF_FFFC);
        assert_eq!(usable(7), 6);
    }

    #[test]
    fn signedness_matters_only_from_0x80_on() {
        for version in [HashVersion::Legacy, HashVersion::HalfMd4, HashVersion::Tea] {
            let of = |signedness, name: &[u8]| hash(version, signedness, [0; 4], name);
            assert_eq!(
                of(Signedness::Signed, b"name"),
                of(Signedness::Unsigned, b"name")
            );
            assert_ne!(
                of(Signedness::Signed, b"n\xE4me"),
                of(Signedness::Unsigned, b"n\xE4me")
            );
        }
        assert_eq!(
            hash(HashVersion::SipHash, Signedness::Signed, [0; 4], b"x"),
            None
        );
    }

    proptest! {
        #[test]
        fn majors_are_even_and_bounded(
            name in proptest::collection::vec(any::<u8>(), 0..256),
            seed in any::<[u32; 4]>(),
            raw in 0u8..3,
        ) {
            let version = HashVersion::from_raw(raw).expect("three are known");
            let Hash { major, .. } =
                hash(version, Signedness::Signed, seed, &name).expect("computed");
            prop_assert!(major & 1 == 0 && major < 0xFFFF_FFFE);
        }
    }
}
