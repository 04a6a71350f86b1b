//! Recognises what is often given in the place of an ext4 image, so that the error can say what it
//! is and what helps.
//!
//! The signatures are those by which `file(1)` and `blkid(8)` know these formats; each is long
//! enough not to be there by accident.

use std::io;

/// A format, by bytes at a fixed place.
struct Format {
    offset: u64,
    signature: &'static [u8],
    name: &'static str,
    /// What helps, if it is not just another image.
    advice: &'static str,
}

const fn other(offset: u64, signature: &'static [u8], name: &'static str) -> Format {
    with_advice(offset, signature, name, "")
}

const fn with_advice(
    offset: u64,
    signature: &'static [u8],
    name: &'static str,
    advice: &'static str,
) -> Format {
    Format {
        offset,
        signature,
        name,
        advice,
    }
}

const TO_RAW: &str = "`qemu-img convert -O raw FILE IMAGE` makes a raw image of it";
const TO_ASSEMBLE: &str = "`mdadm --assemble` makes a device of its parts";
const TO_ACTIVATE: &str = "`vgchange -ay` makes a device of each logical volume";
const PHYSICAL_VOLUME: &str = "a physical volume of LVM";
const RAID_MEMBER: &str = "a member of a RAID of Linux (md)";
const TO_BUILD: &str = "`pext4 build IMAGE FILE` makes an image of it";

const FORMATS: [Format; 30] = [
    with_advice(0, b"QFI\xFB", "a disk image of QEMU (qcow2)", TO_RAW),
    with_advice(0, b"KDMV", "a disk image of VMware (vmdk)", TO_RAW),
    with_advice(0, b"vhdxfile", "a disk image of Hyper-V (vhdx)", TO_RAW),
    with_advice(0, b"conectix", "a disk image of Hyper-V (vhd)", TO_RAW),
    with_advice(
        0,
        b"\x3A\xFF\x26\xED",
        "a sparse image of Android",
        "`simg2img FILE IMAGE` makes a raw image of it",
    ),
    with_advice(
        0,
        b"LUKS\xBA\xBE",
        "an encrypted volume (LUKS)",
        "`cryptsetup open` decrypts it",
    ),
    with_advice(
        0,
        b"\x1F\x8B\x08",
        "compressed (gzip)",
        "`gzip -d` decompresses it",
    ),
    with_advice(
        0,
        b"\x28\xB5\x2F\xFD",
        "compressed (zstd)",
        "`zstd -d` decompresses it",
    ),
    with_advice(
        0,
        b"\xFD7zXZ\0",
        "compressed (xz)",
        "`xz -d` decompresses it",
    ),
    with_advice(
        0,
        b"BZh",
        "compressed (bzip2)",
        "`bzip2 -d` decompresses it",
    ),
    with_advice(
        0,
        b"\x04\x22\x4D\x18",
        "compressed (lz4)",
        "`lz4 -d` decompresses it",
    ),
    with_advice(
        0x40,
        b"\x7F\x10\xDA\xBE",
        "a disk image of VirtualBox (vdi)",
        TO_RAW,
    ),
    // In one of the first four sectors, usually in the second.
    with_advice(512, b"LABELONE", PHYSICAL_VOLUME, TO_ACTIVATE),
    with_advice(0, b"LABELONE", PHYSICAL_VOLUME, TO_ACTIVATE),
    with_advice(1024, b"LABELONE", PHYSICAL_VOLUME, TO_ACTIVATE),
    with_advice(1536, b"LABELONE", PHYSICAL_VOLUME, TO_ACTIVATE),
    // The number that both versions begin with, and that of the versions.
    with_advice(0, b"\xFC\x4E\x2B\xA9\x01\0\0\0", RAID_MEMBER, TO_ASSEMBLE),
    with_advice(
        4096,
        b"\xFC\x4E\x2B\xA9\x01\0\0\0",
        RAID_MEMBER,
        TO_ASSEMBLE,
    ),
    with_advice(257, b"ustar", "an archive (tar)", TO_BUILD),
    other(0, b"XFSB", "an XFS file system"),
    other(0, b"hsqs", "a squashfs file system"),
    other(3, b"NTFS    ", "an NTFS file system"),
    other(3, b"EXFAT   ", "an exFAT file system"),
    other(54, b"FAT16   ", "a FAT file system"),
    other(82, b"FAT32   ", "a FAT file system"),
    other(1024, b"\xE2\xE1\xF5\xE0", "an EROFS file system"),
    other(1024, b"\x10\x20\xF5\xF2", "an F2FS file system"),
    other(4086, b"SWAPSPACE2", "swap space"),
    other(0x8001, b"CD001", "a CD's file system (ISO 9660)"),
    other(0x1_0040, b"_BHRfS_M", "a btrfs file system"),
];

/// What bytes are, which `read` gives from an offset on, and what helps. `None` if it is unknown.
pub fn describe(read: impl Fn(u64, &mut [u8]) -> io::Result<()>) -> Option<String> {
    let is_it = |format: &&Format| {
        let mut bytes = vec![0; format.signature.len()];
        read(format.offset, &mut bytes).is_ok() && bytes == format.signature
    };
    let found = FORMATS.iter().find(is_it)?;
    Some(match found.advice {
        "" => found.name.to_owned(),
        advice => format!("{}: {advice}", found.name),
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::{FORMATS, describe};

    #[test]
    fn each_is_recognised_and_what_is_unknown_or_short_is_not() {
        let described = |bytes: &[u8]| {
            describe(|offset, into| {
                let start = usize::try_from(offset).expect("small");
                let part = bytes.get(start..start + into.len());
                into.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            })
        };
        for format in FORMATS {
            let mut bytes = vec![0; 1 << 17];
            let start = usize::try_from(format.offset).expect("small");
            bytes[start..][..format.signature.len()].copy_from_slice(format.signature);
            let text = described(&bytes).expect(format.name);
            assert!(text.starts_with(format.name), "{text}");
        }
        assert_eq!(described(&[0; 1 << 17]), None);
        assert_eq!(described(&[]), None);
    }
}
