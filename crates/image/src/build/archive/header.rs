//! What a tar header says by itself.

use super::super::tree::Facts;
use super::pax;

/// What follows a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Described {
    /// A file's content.
    File,
    /// A file's content without its holes, which the header describes.
    Sparse,
    /// Nothing that is kept: a directory, a device, a fifo.
    Other,
    Symlink,
    HardLink,
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
    let permissions = match letter {
        b'2' => 0o777,
        _ => pax.permissions.in_mode(permissions),
    };
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

#[cfg(test)]
mod tests {
    use super::super::pax::Values;
    use super::describe;
    use crate::build::rules::Rules;

    #[test]
    fn a_list_about_access_makes_the_mode() {
        for (kind, list, mode) in [
            (
                b'0',
                "user::rwx,user:7:rw-,group::r--,mask::rw-,other::r--",
                0o100_764,
            ),
            (b'5', "user::rwx,group::r-x,other::---", 0o040_750),
            (b'2', "user::---,group::---,other::---", 0o120_777),
        ] {
            // Of the header's mode, the list says nothing about the bit that sets the group.
            let header_mode = if kind == b'0' { 0o2744 } else { 0o744 };
            let expected = if kind == b'0' { mode | 0o2000 } else { mode };
            let mut header = tar::Header::new_gnu();
            header.as_mut_bytes()[156] = kind;
            header.set_mode(header_mode);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            header.set_size(0);
            let content = format!(" SCHILY.acl.access={list}\n");
            let record = format!("{}{content}", content.len() + 2);
            let mut pax = Values::default();
            pax.read(record.as_bytes(), &Rules::default()).unwrap();
            let described = describe(&header, b"name", &pax).unwrap();
            assert_eq!(described.facts.mode, expected, "{list}");
        }
    }
}
