//! What an entry says, checked for a reader that stores it in a file system: its path below some
//! directory, the target of its link, and its extended attributes with its access control lists.
//! A problem is a text that follows the entry's name in a message.

use std::fmt;

use pext4_ondisk::acl::{self, Acl, Problem};
use pext4_ondisk::directory::{FileType, name_problem};
use pext4_ondisk::shown::Shown;
use pext4_ondisk::xattr;

use super::marks::{Mark, mark};
use super::{Entry, Kind};

/// Maximum length of an entry's name in bytes: four times what Linux accepts in one call.
const MAX_NAME_BYTES: usize = 4 * MAX_TARGET_BYTES;
/// Maximum length in bytes of a symbolic link target that Linux follows.
const MAX_TARGET_BYTES: usize = 4095;

/// The path of an entry: valid names, joined by slashes; empty for the root. In a layer of a
/// container image leading slashes are allowed, since some tools write them: there `/` is the root.
/// The name of a whiteout there is longer than what it hides, and only the latter has to be valid.
///
/// # Errors
///
/// A name that leads elsewhere or that ext4 cannot hold; the root as anything but a directory.
pub fn path(entry: &Entry, is_layer: bool) -> Result<Vec<u8>, String> {
    let path = relative_path(&entry.name, is_layer)?;
    let (folders, last) = match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&b""[..], &path[..]),
    };
    let stored = match mark(last) {
        Some(Mark::Whiteout(hidden)) if is_layer => hidden,
        _ => last,
    };
    check_names(folders)?;
    check_names(stored)?;
    if path.is_empty() && entry.kind != Kind::Directory {
        return Err("it takes the place of the root, which is a directory".to_owned());
    }
    Ok(path)
}

/// The path of the file to which a hard link leads, as that of an entry.
///
/// # Errors
///
/// As [`path`]; also an empty target, and in a layer one below a directory with a reserved name,
/// where AUFS kept files with several names: such entries mean nothing.
pub fn hard_link(entry: &Entry, is_layer: bool) -> Result<Vec<u8>, String> {
    check_not_empty(&entry.link)?;
    let path = relative_path(&entry.link, is_layer).and_then(|path| {
        check_names(&path)?;
        match is_layer && mark(&path) == Some(Mark::Below) {
            true => {
                Err("of files with reserved names, as AUFS kept them, none is stored".to_owned())
            }
            false => Ok(path),
        }
    });
    path.map_err(|problem| {
        let shown = Shown(&entry.link[..entry.link.len().min(MAX_TARGET_BYTES)]);
        format!("it is a link to {shown}: {problem}")
    })
}

/// The target of a symbolic link, which may lead anywhere.
///
/// # Errors
///
/// A target that is empty, longer than what Linux follows, or contains a NUL byte.
pub fn symlink_target(entry: &Entry) -> Result<&[u8], String> {
    let target = &entry.link;
    check_not_empty(target)?;
    if target.len() > MAX_TARGET_BYTES {
        return Err(format!(
            "it is a link to a path of {} bytes, Linux follows up to {MAX_TARGET_BYTES}",
            target.len()
        ));
    }
    if target.contains(&0) {
        return Err("it is a link to a path that holds a NUL byte".to_owned());
    }
    Ok(target)
}

fn check_not_empty(target: &[u8]) -> Result<(), String> {
    match target {
        b"" => Err("it is a link that leads nowhere".to_owned()),
        _ => Ok(()),
    }
}

/// The names of a path below the root, joined by slashes.
fn relative_path(name: &[u8], is_layer: bool) -> Result<Vec<u8>, String> {
    if name.len() > MAX_NAME_BYTES {
        let length = name.len();
        return Err(format!(
            "its name has {length} bytes, up to {MAX_NAME_BYTES} are taken"
        ));
    }
    if name.starts_with(b"/") && !is_layer {
        return Err("it has an absolute name; make the archive without them".to_owned());
    }
    let mut path = Vec::with_capacity(name.len());
    for part in name.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err("its name leads out of a directory with `..`".to_owned()),
            part => {
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(part);
            }
        }
    }
    Ok(path)
}

/// Checks that ext4 can hold the names of a path, which may have none.
fn check_names(path: &[u8]) -> Result<(), String> {
    let mut names = path
        .split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty());
    names.find_map(name_problem).map_or(Ok(()), Err)
}

/// The extended attributes of an entry.
#[derive(Debug, Default)]
pub struct Attributes {
    /// Full names and values in the stored form.
    pub all: Vec<(Vec<u8>, Vec<u8>)>,
    /// The permissions (0777) that follow from the access list, if the entry has it as text. Not
    /// all archivers store them in the header.
    pub permissions: Option<u16>,
}

/// An attribute that cannot be stored.
#[derive(Debug)]
pub struct AttributeProblem {
    /// Its full name.
    pub name: Vec<u8>,
    problem: String,
}

impl AttributeProblem {
    /// What to say of the option that leaves the attribute out.
    #[must_use]
    pub fn way_out(&self) -> String {
        if acl::is_list(&self.name) {
            return "--exclude-xattr 'system.posix_acl_*' leaves lists out".to_owned();
        }
        // No argument contains a NUL byte.
        let mut parts = self.name.split(|&byte| byte == 0);
        let start = Shown(parts.next().unwrap_or_default());
        let rest = if parts.next().is_some() { "*" } else { "" };
        format!("--exclude-xattr '{start}{rest}' leaves it out")
    }
}

impl fmt::Display for AttributeProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.problem)
    }
}

/// The attributes of an entry, except those that the caller leaves out, which may be invalid. If an
/// access control list is present in both forms, the text has precedence, unless it has names
/// without numbers (as that of GNU tar, which writes the other form beside it with `--xattrs`).
///
/// # Errors
///
/// The first attribute whose name ext4 cannot hold, whose value makes no sense, or that its kind of
/// file cannot have; more than `max_bytes` of names and values.
pub fn attributes(
    entry: &Entry,
    max_bytes: usize,
    is_left_out: impl Fn(&[u8]) -> bool,
) -> Result<Attributes, AttributeProblem> {
    let mut found = Attributes::default();
    for (name, value) in entry.attributes.attributes() {
        if is_left_out(&name) {
            continue;
        }
        let problem = |problem| AttributeProblem {
            name: name.clone(),
            problem,
        };
        let value = value
            .map_err(|cause| problem(format!("its attribute {}: {cause}", Shown(&name))))
            .and_then(|value| stored(entry.kind, &name, value).map_err(problem))?;
        found.all.push((name, value));
    }
    for (name, text) in [
        (acl::ACCESS, &entry.access_list),
        (acl::DEFAULT, &entry.default_list),
    ] {
        if is_left_out(name) {
            continue;
        }
        let parsed = acl::text::parse(text);
        let has_numbers = found.all.iter().any(|(other, _)| other == name);
        if has_numbers && matches!(parsed, Err(Problem::Named(_))) {
            continue;
        }
        let list = placed(entry.kind, name, parsed).map_err(|problem| AttributeProblem {
            name: name.to_vec(),
            problem,
        })?;
        let Some(list) = list else { continue };
        if name == acl::ACCESS {
            found.permissions = Some(list.mode_bits());
        }
        found.all.retain(|(other, _)| other != name);
        found.all.push((name.to_vec(), list.to_disk()));
    }
    let sizes = found.all.iter();
    check_total_size(sizes.map(|(name, value)| (name, value.len())), max_bytes)?;
    Ok(found)
}

/// Checks names and the sizes of their values, which together may have `max_bytes`. A caller that
/// keeps attributes until it stores them checks them first: a header for all entries gives them to
/// any number of files.
///
/// # Errors
///
/// The first attribute for which there is no room.
pub fn check_total_size<N: AsRef<[u8]>>(
    attributes: impl IntoIterator<Item = (N, usize)>,
    max_bytes: usize,
) -> Result<(), AttributeProblem> {
    let mut left = max_bytes;
    for (name, size) in attributes {
        let name = name.as_ref();
        left = left
            .checked_sub(name.len())
            .and_then(|left| left.checked_sub(size))
            .ok_or_else(|| AttributeProblem {
                name: name.to_vec(),
                problem: format!(
                    "its attribute {} of {size} bytes finds no room: all attributes of a file \
                     have {max_bytes} bytes at most here",
                    Shown(name)
                ),
            })?;
    }
    Ok(())
}

/// The number of an attribute's prefix and the rest of its name, as ext4 stores them.
///
/// # Errors
///
/// A name that ext4 cannot hold, that no program could read, or that ext4 uses internally: it would
/// interpret `system.data` as file content.
pub fn split_attribute_name(name: &[u8]) -> Result<(u8, &[u8]), String> {
    let shown = Shown(name);
    if name.contains(&0) {
        // Linux and e2fsck would take what follows the NUL for nothing, or for corruption.
        return Err(format!(
            "the name of its attribute {shown} holds a NUL byte"
        ));
    }
    if name.len() > xattr::MAX_FULL_NAME {
        return Err(format!(
            "its attribute {shown} has a name of {} bytes, Linux knows names up to {}",
            name.len(),
            xattr::MAX_FULL_NAME
        ));
    }
    xattr::split_name(name)
        .filter(|&(index, _)| xattr::is_visible(index))
        .ok_or_else(|| format!("its attribute {shown} has a kind of name that ext4 cannot hold"))
}

/// The stored form of an attribute's value.
fn stored(kind: Kind, name: &[u8], value: Vec<u8>) -> Result<Vec<u8>, String> {
    let (index, _) = split_attribute_name(name)?;
    if !xattr::is_placed(kind.file_type(), index) {
        return Err(format!(
            "it has the attribute {}: in Linux only files and directories have those of users",
            Shown(name)
        ));
    }
    if !acl::is_list(name) {
        return Ok(value);
    }
    acl::call_to_stored(&value)
        .map_err(|_| format!("its attribute {} is no access control list", Shown(name)))
}

/// A list of an entry, if its kind of file can have one; `None` if there is none.
fn placed(
    kind: Kind,
    name: &[u8],
    parsed: Result<Option<Acl>, Problem>,
) -> Result<Option<Acl>, String> {
    let list = parsed.map_err(|problem| problem.to_string())?;
    let problem = list
        .is_some()
        .then(|| acl::misplaced(kind.file_type(), name))
        .flatten();
    match problem {
        Some(problem) => Err(problem.to_owned()),
        None => Ok(list),
    }
}

impl Kind {
    /// The kind of file that an entry makes, or for a hard link probably refers to.
    #[must_use]
    pub fn file_type(self) -> FileType {
        match self {
            Self::File | Self::HardLink => FileType::Regular,
            Self::Symlink => FileType::Symlink,
            Self::CharacterDevice => FileType::CharacterDevice,
            Self::BlockDevice => FileType::BlockDevice,
            Self::Directory => FileType::Directory,
            Self::Fifo => FileType::Fifo,
        }
    }
}

#[cfg(test)]
mod tests {
    use pext4_ondisk::acl;
    use pext4_ondisk::time::Time;
    use pext4_ondisk::xattr::pax;

    use super::super::{Entry, Kind};
    use super::{attributes, hard_link, path, symlink_target};

    const MINIMAL: &[u8] = b"user::rwx,group::r-x,other::---";

    fn entry(kind: Kind, name: &[u8], link: &[u8]) -> Entry {
        Entry {
            name: name.to_vec(),
            kind,
            link: link.to_vec(),
            permissions: 0o644,
            uid: 0,
            gid: 0,
            modified: Time::default(),
            accessed: None,
            device: (0, 0),
            size: 0,
            stored: 0,
            segments: None,
            attributes: pax::Records::default(),
            access_list: Vec::new(),
            default_list: Vec::new(),
        }
    }

    #[test]
    fn paths_stay_inside() {
        let path = |name: &[u8], is_layer| path(&entry(Kind::Directory, name, b""), is_layer);
        for (name, sound) in [
            (&b"a"[..], &b"a"[..]),
            (b"./a//b/./c/", b"a/b/c"),
            (b"./", b""),
            (b".", b""),
        ] {
            assert_eq!(path(name, false).as_deref(), Ok(sound));
        }
        assert_eq!(path(b"//etc/motd", true).as_deref(), Ok(&b"etc/motd"[..]));
        assert_eq!(path(b"/", true).as_deref(), Ok(&b""[..]));
        let long = [b'n'; 256];
        for name in [&b"/etc"[..], b"../x", b"a/../../x", b"a/..", b"a\0b", &long] {
            assert!(path(name, false).is_err(), "{name:?}");
        }
        assert!(path(b"/../x", true).is_err());
    }

    #[test]
    fn only_what_a_whiteout_hides_has_to_be_a_name() {
        let path = |name: &[u8], is_layer| path(&entry(Kind::File, name, b""), is_layer);
        let whiteout = [b"a/.wh.", &[b'n'; 255][..]].concat();
        assert_eq!(path(&whiteout, true).as_ref(), Ok(&whiteout));
        for (name, is_layer) in [
            (whiteout.clone(), false),
            ([&whiteout[..], b"n"].concat(), true),
            ([&whiteout[..], b"/below"].concat(), true),
            ([b".wh..wh.", &[b'n'; 248][..]].concat(), true),
            (b".wh.a\0b".to_vec(), true),
        ] {
            assert!(path(&name, is_layer).is_err(), "{}", name.escape_ascii());
        }
        let link = hard_link(&entry(Kind::HardLink, b"x", &whiteout), true);
        assert!(link.is_err(), "a whiteout is no file");
    }

    #[test]
    fn the_root_is_a_directory() {
        for name in [&b""[..], b".", b"./"] {
            assert!(path(&entry(Kind::File, name, b""), false).is_err());
            assert!(path(&entry(Kind::HardLink, name, b"x"), false).is_err());
        }
    }

    #[test]
    fn targets_of_links_are_checked() {
        let hard = |link: &[u8]| hard_link(&entry(Kind::HardLink, b"x", link), false);
        assert_eq!(hard(b"./a//b").as_deref(), Ok(&b"a/b"[..]));
        for (link, says) in [
            (&b""[..], "nowhere"),
            (b"/etc/passwd", "/etc/passwd: it has an absolute name"),
            (b"../x", "../x: its name leads out"),
        ] {
            let told = hard(link).unwrap_err();
            assert!(told.contains(says), "{told}");
        }
        let aside = entry(Kind::HardLink, b"x", b".wh..wh.plnk/12.34");
        assert!(hard_link(&aside, false).is_ok());
        let told = hard_link(&aside, true).unwrap_err();
        assert!(
            told.contains(".wh..wh.plnk/12.34: of files with reserved names"),
            "{told}"
        );
        let soft = |link: &[u8]| {
            let entry = entry(Kind::Symlink, b"x", link);
            symlink_target(&entry).map(<[u8]>::to_vec)
        };
        assert_eq!(soft(b"/../x").as_deref(), Ok(&b"/../x"[..]));
        for (link, says) in [
            (&b""[..], "nowhere"),
            (b"a\0b", "NUL byte"),
            (&[b'x'; 4096], "4096 bytes"),
        ] {
            let told = soft(link).unwrap_err();
            assert!(told.contains(says), "{told}");
        }
    }

    #[test]
    fn a_list_as_text_takes_precedence_and_gives_the_permissions() {
        let mut entry = entry(Kind::File, b"x", b"");
        let other = acl::text::parse(b"user::r--,group::r--,other::r--").unwrap();
        let decoded = acl::decode(&other.unwrap().to_disk()).unwrap();
        let key = [b"SCHILY.xattr.", acl::ACCESS].concat();
        entry.attributes.set(&key, &acl::encode_call(&decoded));
        entry.access_list = MINIMAL.to_vec();
        let found = attributes(&entry, 100, |_| false).unwrap();
        assert_eq!(found.permissions, Some(0o750));
        let text = acl::text::parse(MINIMAL).unwrap().unwrap();
        assert_eq!(found.all, [(acl::ACCESS.to_vec(), text.to_disk())]);
        assert!(attributes(&entry, 0, |_| true).unwrap().all.is_empty());
    }

    #[test]
    fn lists_where_linux_has_none_are_refused() {
        for (kind, access, default) in [
            (Kind::Directory, true, true),
            (Kind::File, true, false),
            (Kind::Fifo, true, false),
            (Kind::Symlink, false, false),
        ] {
            let mut with_access = entry(kind, b"x", b"");
            with_access.access_list = MINIMAL.to_vec();
            assert_eq!(attributes(&with_access, 100, |_| false).is_ok(), access);
            let mut with_default = entry(kind, b"x", b"");
            with_default.default_list = MINIMAL.to_vec();
            assert_eq!(attributes(&with_default, 100, |_| false).is_ok(), default);
        }
    }

    #[test]
    fn a_problem_names_the_attribute() {
        for (key, value, name) in [
            (&b"SCHILY.xattr.user.a\0b"[..], &b"x"[..], &b"user.a\0b"[..]),
            (b"LIBARCHIVE.xattr.user.a", b"d*g", b"user.a"),
            (b"SCHILY.xattr.system.posix_acl_access", b"x", acl::ACCESS),
            (b"SCHILY.xattr.user.", b"x", b"user."),
            (b"SCHILY.xattr.foo", b"x", b"foo"),
            (b"SCHILY.xattr.system.data", b"x", b"system.data"),
        ] {
            let mut entry = entry(Kind::File, b"x", b"");
            entry.attributes.set(key, value);
            assert_eq!(attributes(&entry, 100, |_| false).unwrap_err().name, name);
        }
    }

    #[test]
    fn names_have_as_many_bytes_as_linux_takes() {
        for (length, is_taken) in [(250, true), (251, false)] {
            let mut entry = entry(Kind::File, b"x", b"");
            let key = [b"SCHILY.xattr.user.", &vec![b'n'; length][..]].concat();
            entry.attributes.set(&key, b"x");
            let found = attributes(&entry, 1000, |_| false);
            assert_eq!(found.is_ok(), is_taken, "{length}: {found:?}");
        }
    }

    #[test]
    fn users_attributes_are_on_files_and_directories_only() {
        for (kind, is_taken) in [
            (Kind::File, true),
            (Kind::Directory, true),
            (Kind::Symlink, false),
            (Kind::Fifo, false),
            (Kind::BlockDevice, false),
        ] {
            let mut user = entry(kind, b"x", b"target");
            user.attributes.set(b"SCHILY.xattr.user.a", b"x");
            let found = attributes(&user, 100, |_| false);
            assert_eq!(found.is_ok(), is_taken, "{kind:?}");
            let mut label = entry(kind, b"x", b"target");
            label.attributes.set(b"SCHILY.xattr.security.a", b"x");
            assert!(attributes(&label, 100, |_| false).is_ok(), "{kind:?}");
        }
    }

    #[test]
    fn attributes_that_find_no_room_are_refused_at_once() {
        let mut entry = entry(Kind::File, b"x", b"");
        for key in [&b"SCHILY.xattr.user.a"[..], b"SCHILY.xattr.user.b"] {
            entry.attributes.set(key, &[7; 4000]);
        }
        assert_eq!(attributes(&entry, 8012, |_| false).unwrap().all.len(), 2);
        let told = attributes(&entry, 8011, |_| false).unwrap_err();
        assert!(told.to_string().contains("user.b of 4000 bytes"), "{told}");
        assert!(told.way_out().contains("--exclude-xattr 'user.b'"));
        assert!(attributes(&entry, 4006, |name| name == b"user.a").is_ok());
    }
}
