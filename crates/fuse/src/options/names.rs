//! The names of options that have no effect, of those that are refused, and of all that may be
//! meant by a misspelt one.

use super::OptionError;

/// Options that hold anyway, those for readers of `fstab`, and those of ext4 in Linux that choose
/// between ways of working which this server does not have.
const WITHOUT_EFFECT: &[&str] = &[
    "defaults",
    "acl",
    "user_xattr",
    // Data is written before the metadata that refers to it, which is more than `writeback` asks.
    "data=ordered",
    "data=writeback",
    // A failed write of data is reported, and stops the journal, whatever is asked.
    "data_err=abort",
    "data_err=ignore",
    // The device is always flushed.
    "barrier",
    "nobarrier",
    "silent",
    "loud",
    "debug",
    "warn_on_error",
    "nowarn_on_error",
    "lazytime",
    "nolazytime",
    "iversion",
    "noiversion",
    "i_version",
    "mand",
    "nomand",
    "auto",
    "noauto",
    "nofail",
    "user",
    "users",
    "nouser",
    "owner",
    "group",
    "_netdev",
    "loop",
    "bsddf",
    "orlov",
    "oldalloc",
    "bh",
    "nobh",
    // Linux accepts these three for old tables and ignores them.
    "reservation",
    "noreservation",
    "nocheck",
    "check=none",
    "mblk_io_submit",
    "nomblk_io_submit",
    "journal_checksum",
    "nojournal_checksum",
    // A commit always waits for its blocks, which is more than this asks.
    "journal_async_commit",
    "prefetch_block_bitmaps",
    "no_prefetch_block_bitmaps",
    "delalloc",
    "nodelalloc",
    "auto_da_alloc",
    "noauto_da_alloc",
    "dioread_lock",
    "dioread_nolock",
    "nodioread_nolock",
    "block_validity",
    "noblock_validity",
    "init_itable",
    "noinit_itable",
    "noquota",
    "usrjquota=",
    "grpjquota=",
    "max_dir_size_kb=0",
    "nouid32",
    // Hardware may encrypt; there are no keys here.
    "inlinecrypt",
    "dax=never",
    // As in Linux on a device without direct access: files with the flag are cached like others.
    "dax=inode",
    // The superblock that is used anyway.
    "sb=1",
];

/// How options without effect begin that have any value.
const FOR_OTHERS: &[&str] = &["x-", "X-", "comment="];

/// Options without effect that have a number, with the numbers that Linux accepts.
const NUMBERS: &[(&str, Number)] = &[
    ("auto_da_alloc", Number::Any),
    ("barrier", Number::Any),
    ("init_itable", Number::Any),
    ("inode_readahead_blks", Number::Power),
    ("journal_ioprio", Number::Priority),
    ("max_batch_time", Number::Any),
    ("min_batch_time", Number::Any),
    ("stripe", Number::Any),
];

#[derive(Clone, Copy)]
enum Number {
    Any,
    /// 0 to 7.
    Priority,
    /// 0, or a power of two up to 2^30.
    Power,
}

/// Options of `mount(8)` and of ext4 in Linux that are not obeyed, and why. Those that name no
/// value stand for themselves and for the option with any value.
const REFUSED: &[(&[&str], &str)] = &[
    (
        &["data=journal"],
        "data of files is not journaled; `data=ordered`, the default, writes it before the metadata \
         that refers to it",
    ),
    (
        &["max_dir_size_kb"],
        "directories may grow as far as the format permits",
    ),
    (
        &[
            "quota",
            "usrquota",
            "grpquota",
            "prjquota",
            "usrjquota",
            "grpjquota",
            "jqfmt",
        ],
        "where the image has the feature quota, usage is counted; limits are not enforced",
    ),
    (
        &[
            "context",
            "fscontext",
            "defcontext",
            "rootcontext",
            "seclabel",
        ],
        "labels of SELinux for a whole mount are not passed on to the kernel",
    ),
    (
        &["dax"],
        "FUSE gives no direct access to the device's memory",
    ),
    (
        &["minixdf"],
        "`df` counts no metadata as size, as with `bsddf`",
    ),
    (
        &["sb"],
        "a damaged superblock is replaced by its first copy without being asked, and no other copy \
         can be chosen",
    ),
    (
        &["journal_dev", "journal_path"],
        "no external journal is written; an image with one can be mounted read-only",
    ),
    (
        &["abort"],
        "a mount begins with a journal that works; `ro` refuses writes",
    ),
    (
        &["debug_want_extra_isize"],
        "new inodes get as many extra bytes as the superblock asks for",
    ),
    (
        &["X-mount.subdir"],
        "the whole file system is mounted; `mount --bind` shows a directory of it elsewhere",
    ),
    (
        &["X-mount.idmap"],
        "owners are shown as the image has them; FUSE permits no other view",
    ),
];

/// Options that have an effect; those with a value end with `=`.
pub const WITH_EFFECT: &[&str] = &[
    "ro",
    "rw",
    "noload",
    "norecovery",
    "commit=",
    "errors=",
    "discard",
    "nodiscard",
    "resuid=",
    "resgid=",
    "sync",
    "async",
    "dirsync",
    "offset=",
    "sizelimit=",
    "allow_other",
    "default_permissions",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "symfollow",
    "nosymfollow",
    "relatime",
    "strictatime",
    "noatime",
    "atime",
    "norelatime",
    "nostrictatime",
    "diratime",
    "nodiratime",
    "grpid",
    "bsdgroups",
    "nogrpid",
    "sysvgroups",
    "strict_open",
    "nostrict_open",
    "io_uring",
    "no_io_uring",
    "no_mbcache",
    "nombcache",
    "mb_optimize_scan=",
    "scaling=",
];

/// Accepts an option that has no effect.
///
/// # Errors
///
/// It is refused, its number is not valid, or there is no such option.
pub(super) fn take_without_effect(option: &str) -> Result<(), OptionError> {
    if WITHOUT_EFFECT.contains(&option) {
        return Ok(());
    }
    let text = || option.to_owned();
    if let Some(why) = refusal(option) {
        let option = text();
        return Err(OptionError::Refused { option, why });
    }
    if FOR_OTHERS.iter().any(|start| option.starts_with(start)) {
        return Ok(());
    }
    let number = option
        .split_once('=')
        .and_then(|(name, value)| check_number(name, value))
        .ok_or_else(|| OptionError::Unknown(text()))?;
    number.map_err(|wants| {
        let option = text();
        OptionError::Value { option, wants }
    })
}

/// Whether an option exists only with a value.
pub(super) fn has_value(name: &str) -> bool {
    let is_known = |known: &&str| known.strip_suffix('=') == Some(name);
    let is_number = NUMBERS.iter().any(|&(known, _)| known == name);
    WITH_EFFECT.iter().any(is_known) || is_number && !WITHOUT_EFFECT.contains(&name)
}

/// Checks the number of an option without effect; `None` if there is no such option, else what it
/// wants if the number is not valid.
fn check_number(name: &str, value: &str) -> Option<Result<(), &'static str>> {
    let (_, kind) = NUMBERS.iter().find(|(known, _)| *known == name)?;
    let (is_valid, wants): (fn(u32) -> bool, _) = match kind {
        Number::Any => (|_| true, "a number"),
        Number::Priority => (|number| number <= 7, "a number from 0 to 7"),
        Number::Power => (
            |number| number == 0 || number.is_power_of_two() && number <= 1 << 30,
            "0 or a power of two up to 1073741824",
        ),
    };
    let is_fine = parse_number(value).is_some_and(is_valid);
    Some(is_fine.then_some(()).ok_or(wants))
}

/// A number as Linux reads it: hexadecimal after `0x` or `0X`, octal after another `0`, else
/// decimal.
pub(super) fn parse_number(value: &str) -> Option<u32> {
    let value = value.strip_prefix('+').unwrap_or(value);
    let hexadecimal = value.strip_prefix("0x").or(value.strip_prefix("0X"));
    let octal = value.strip_prefix('0').filter(|rest| !rest.is_empty());
    let (digits, radix) = match (hexadecimal, octal) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) => (digits, 8),
        (None, None) => (value, 10),
    };
    let has_sign = digits.starts_with('+');
    u32::from_str_radix(digits, radix)
        .ok()
        .filter(|_| !has_sign)
}

/// Why an option is refused, if it is one of those.
fn refusal(option: &str) -> Option<&'static str> {
    let name = option.split_once('=').map_or(option, |(name, _)| name);
    let is_it = |known: &&str| *known == option || *known == name;
    let found = REFUSED.iter().find(|(names, _)| names.iter().any(is_it));
    found.map(|&(_, why)| why)
}

/// The known option whose name is nearest to that of a misspelt one, if one is near.
pub(super) fn nearest(option: &str) -> Option<&'static str> {
    let name = |option: &'static str| option.trim_end_matches('=');
    let given = option.split_once('=').map_or(option, |(name, _)| name);
    // A third of the name may be wrong; of a short name too much would be near.
    let limit = given.chars().count().min(9) / 3;
    if given.len() < 4 {
        return None;
    }
    let numbers = NUMBERS.iter().map(|&(name, _)| name);
    let known = WITH_EFFECT.iter().copied().map(name);
    let known = known.chain(numbers).chain(
        WITHOUT_EFFECT
            .iter()
            .copied()
            .filter(|name| !name.contains('=')),
    );
    let distances = known.map(|name| (distance(given, name), name));
    let (distance, name) = distances.min_by_key(|&(distance, _)| distance)?;
    (distance <= limit).then_some(name)
}

/// How many letters must be replaced, inserted, left out or exchanged with the next one to make one
/// text of the other.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<_>, Vec<_>) = (one.chars().collect(), other.chars().collect());
    // Rows of the table: the distance of the first letters of `one` to each beginning of `other`.
    let mut rows = vec![(0..=other.len()).collect::<Vec<_>>()];
    for (i, letter) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, against) in other.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(letter != against);
            let mut least = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && one[i - 1] == *against && *letter == other[j - 1] {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::{NUMBERS, OptionError, REFUSED, WITH_EFFECT, WITHOUT_EFFECT, distance, nearest};

    #[test]
    fn every_name_is_known() {
        let apply = |option: &str| Options::default().apply(option);
        for option in WITHOUT_EFFECT {
            assert_eq!(apply(option), Ok(()), "{option}");
        }
        let numbers = NUMBERS.iter().map(|&(name, _)| name);
        for option in WITH_EFFECT.iter().copied().chain(numbers) {
            let applied = apply(option);
            assert!(!matches!(applied, Err(OptionError::Unknown(_))), "{option}");
        }
        for option in REFUSED.iter().flat_map(|(names, _)| *names) {
            let applied = apply(option);
            assert!(
                matches!(applied, Err(OptionError::Refused { .. })),
                "{option}"
            );
        }
    }

    #[test]
    fn a_misspelt_name_is_near_to_the_right_one() {
        for (given, meant) in [
            ("noatim", Some("noatime")),
            ("defualts", Some("defaults")),
            ("comit=5", Some("commit")),
            ("alow_other", Some("allow_other")),
            ("bogus", None),
            ("uid=5", None),
            ("umask=022", None),
            ("", None),
        ] {
            assert_eq!(nearest(given), meant, "{given}");
        }
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abcd", "acbde"), 2);
    }
}
