//! File types, permissions and flags as text.

use pext4_fs::FileType;
use pext4_ondisk::inode::InodeFlags;

/// The name of a file type.
pub fn word(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::CharacterDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::Symlink => "symlink",
    }
}

fn letter(file_type: FileType) -> char {
    match file_type {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::Symlink => 'l',
    }
}

/// The ten characters of `ls -l`.
pub fn show(file_type: FileType, mode: u16) -> String {
    let mut text = String::from(letter(file_type));
    for (shift, special, lower, upper) in [
        (6, 0o4000, 's', 'S'),
        (3, 0o2000, 's', 'S'),
        (0, 0o1000, 't', 'T'),
    ] {
        let bits = mode >> shift;
        text.push(if bits & 4 == 0 { '-' } else { 'r' });
        text.push(if bits & 2 == 0 { '-' } else { 'w' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => lower,
            (true, false) => upper,
        });
    }
    text
}

/// Names of the flags that `lsattr` shows.
const FLAGS: [(InodeFlags, &str); 20] = [
    (InodeFlags::SECRM, "secure-deletion"),
    (InodeFlags::UNRM, "undelete"),
    (InodeFlags::COMPR, "compress"),
    (InodeFlags::SYNC, "sync"),
    (InodeFlags::IMMUTABLE, "immutable"),
    (InodeFlags::APPEND, "append-only"),
    (InodeFlags::NODUMP, "no-dump"),
    (InodeFlags::NOATIME, "no-atime"),
    (InodeFlags::ENCRYPT, "encrypted"),
    (InodeFlags::INDEX, "indexed"),
    (InodeFlags::JOURNAL_DATA, "journal-data"),
    (InodeFlags::NOTAIL, "no-tail"),
    (InodeFlags::DIRSYNC, "dir-sync"),
    (InodeFlags::TOPDIR, "top-of-hierarchy"),
    (InodeFlags::EXTENTS, "extents"),
    (InodeFlags::VERITY, "verity"),
    (InodeFlags::DAX, "dax"),
    (InodeFlags::INLINE_DATA, "inline-data"),
    (InodeFlags::PROJINHERIT, "project-inherit"),
    (InodeFlags::CASEFOLD, "casefold"),
];

/// The names of the flags that are set; unknown ones as one number.
pub fn flags(flags: u32) -> Vec<String> {
    let mut names: Vec<String> = FLAGS
        .iter()
        .filter(|(flag, _)| flags & flag.bits() != 0)
        .map(|(_, name)| (*name).to_owned())
        .collect();
    let rest = FLAGS
        .iter()
        .fold(flags, |rest, (flag, _)| rest & !flag.bits());
    if rest != 0 {
        names.push(format!("{rest:#x}"));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::{FileType, flags, show};

    #[test]
    fn modes_read_as_in_ls() {
        assert_eq!(show(FileType::Regular, 0o100_644), "-rw-r--r--");
        assert_eq!(show(FileType::Directory, 0o041_777), "drwxrwxrwt");
        assert_eq!(show(FileType::Regular, 0o104_755), "-rwsr-xr-x");
        assert_eq!(show(FileType::Regular, 0o106_644), "-rwSr-Sr--");
        assert_eq!(show(FileType::Directory, 0o041_770), "drwxrwx--T");
    }

    #[test]
    fn flags_have_names_and_unknown_ones_a_number() {
        assert_eq!(flags(0x0008_0010), ["immutable", "extents"]);
        assert_eq!(flags(0x0200_8000), ["no-tail", "dax"]);
        assert_eq!(flags(0x8000_0000), ["0x80000000"]);
        assert!(flags(0).is_empty());
    }
}
