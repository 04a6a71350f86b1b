//! What a tar header says by itself.

use super::super::tree::Facts;
use super::pax;

/// What a header is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Described {
    /// A file.
    File,
    /// A file without its holes, which the header describes.
    Sparse,
    /// What has no content: a directory, a device, a fifo.
    Other,
    Symlink,
    HardLink,
}

/// What follows the header of an entry that keeps no content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// The next header, whatever the size says.
    Header,
    /// As many bytes as the size says.
    Content,
    /// The same, or the next header.
    Either,
}

/// What the type in a header says follows it. Of hard links many archivers state the size of the
/// file, and nothing follows. But in POSIX' own format the file's content may follow (pax(1), `-o
/// linkdata`), and there it cannot be told by the header alone; no more can it of a directory that is
/// one by the slash behind its name.
pub(super) fn behind(header: &tar::Header, is_posix: bool) -> Behind {
    match header.as_bytes()[156] {
        b'1' if is_posix => Behind::Either,
        b'1'..=b'6' => Behind::Header,
        // A dumped directory lists its names.
        b'D' => Behind::Content,
        _ => Behind::Either,
    }
}

/// A header's kind and what it says of the file.
pub(super) struct Description {
    pub kind: Described,
    pub facts: Facts,
}

/// Where the sum of the header's bytes lies.
const SUM: std::ops::Range<usize> = 148..156;

/// Checks the sum of a header's bytes.
pub(super) fn check_sum(header: &tar::Header) -> Result<(), String> {
    let bytes = header.as_bytes();
    let others = || bytes[..SUM.start].iter().chain(&bytes[SUM.end..]);
    let blanks = 8 * i64::from(b' ');
    let sum = blanks + others().map(|&byte| i64::from(byte)).sum::<i64>();
    let signed = blanks
        + others()
            .map(|&byte| i64::from(byte.cast_signed()))
            .sum::<i64>();
    match header.cksum().map(i64::from) {
        Ok(stated) if stated == sum || stated == signed => Ok(()),
        _ => Err("it is no tar archive, or damaged: a header's sum is wrong".to_owned()),
    }
}

/// What a header and its extensions say of a file.
pub(super) fn describe(
    header: &tar::Header,
    name: &[u8],
    pax: &pax::Values,
) -> Result<Description, String> {
    let letter = header.as_bytes()[156];
    let (kind, type_bits) = match letter {
        b'0' | 0 if name.ends_with(b"/") => (Described::Other, 0o040_000),
        b'0' | 0 | b'7' => (Described::File, 0o100_000),
        b'S' => (Described::Sparse, 0o100_000),
        b'1' => (Described::HardLink, 0o100_000),
        b'2' => (Described::Symlink, 0o120_000),
        b'3' => (Described::Other, 0o020_000),
        b'4' => (Described::Other, 0o060_000),
        b'5' | b'D' => (Described::Other, 0o040_000),
        b'6' => (Described::Other, 0o010_000),
        other => {
            let shown = char::from(other).escape_default();
            return Err(format!("entries of type `{shown}` are not understood"));
        }
    };
    let number = |value: std::io::Result<u64>, what: &str| {
        value
            .ok()
            .and_then(|value| u32::try_from(value).ok())
            .ok_or_else(|| format!("its {what} is no number of 32 bits"))
    };
    let permissions = header.mode().map_err(|_| "its mode is no number")? & 0o7777;
    let uid = pax.uid.map_or_else(|| number(header.uid(), "owner"), Ok)?;
    let gid = pax.gid.map_or_else(|| number(header.gid(), "group"), Ok)?;
    let (seconds, nanoseconds) = match pax.time {
        Some(time) => (time.seconds, time.nanoseconds),
        None => {
            let seconds = header.mtime().map_err(|_| "its time is no number")?;
            // Times before 1970 are two's complement.
            (seconds.cast_signed(), 0)
        }
    };
    let size = match letter {
        b'3' | b'4' => device(header)?,
        _ => 0,
    };
    let permissions = u16::try_from(permissions).expect("masked to 12 bits");
    let permissions = if letter == b'2' { 0o777 } else { permissions };
    Ok(Description {
        kind,
        facts: Facts {
            mode: type_bits | permissions,
            uid,
            gid,
            size,
            seconds,
            nanoseconds,
            ..Facts::default()
        },
    })
}

/// A device's numbers, as they are kept.
fn device(header: &tar::Header) -> Result<u64, String> {
    let number = |value: std::io::Result<Option<u32>>| value.ok().flatten().unwrap_or(0);
    let (major, minor) = (number(header.device_major()), number(header.device_minor()));
    if major >= 1 << 12 || minor >= 1 << 20 {
        return Err(format!("ext4 holds no device {major}:{minor}"));
    }
    Ok(u64::from(major) << 32 | u64::from(minor))
}
