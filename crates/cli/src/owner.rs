//! Owners in the form of `chown`: numbers, names in the image's `/etc/passwd` and `/etc/group`, or
//! `root`.

use anyhow::{Context, Error, Result, bail};
use pext4_edit::EditSession;
use pext4_fs::Refusal;
use pext4_ondisk::owner::{GroupText, OwnerText, Party, check_id};

use crate::failure::Misuse;

/// The forms of an owner, for help texts.
pub const FORMS: &str = "USER, USER:GROUP, :GROUP, or USER: with the user's own group";

/// The help on the owner of something in an image that has lists of names.
pub fn help_in_image() -> String {
    format!("{FORMS}; as numbers or as names in the image's /etc/passwd and /etc/group")
}

/// The help on the owner of something in a new image.
pub fn help_in_new_image() -> String {
    format!("{FORMS}; as numbers or root")
}

/// The maximum size in bytes of these files: the image may be hostile and claim any size.
const MAX_LIST_SIZE: u64 = 16 << 20;

/// `USER`, `USER:GROUP`, `:GROUP` or `USER:` (its own group), as numbers.
///
/// # Errors
///
/// The text has another form; a name that `/etc/passwd` or `/etc/group` of the image does not
/// have; an id that is nobody's.
pub fn parse(text: &str, session: &EditSession) -> Result<(Option<u32>, Option<u32>)> {
    let owner = OwnerText::parse(text).map_err(Misuse)?;
    let checked = |id| {
        let checked = check_id(id).map_err(|problem| Misuse(format!("`{text}`: {problem}")));
        Ok::<_, Error>(checked?)
    };
    let uid = match owner.user {
        None => None,
        Some(Party::Id(number)) => Some(number),
        Some(Party::Name(name)) => Some(checked(find(session, "/etc/passwd", name)?.0)?),
    };
    let gid = match owner.group {
        GroupText::Unchanged => None,
        GroupText::OfUser(name) => match find(session, "/etc/passwd", name)?.1 {
            Some(gid) => Some(gid),
            None => bail!("/etc/passwd in the image states no group for `{name}`"),
        },
        GroupText::Stated(Party::Id(number)) => Some(number),
        GroupText::Stated(Party::Name(name)) => Some(find(session, "/etc/group", name)?.0),
    };
    Ok((uid, gid.map(checked).transpose()?))
}

/// The third and the fourth field of a name's line. `root` is 0 also where no line says so, as for
/// `build`.
fn find(session: &EditSession, file: &str, name: &str) -> Result<(u32, Option<u32>)> {
    let content = read(session, file)?;
    let is_missing = content.is_none();
    let content = content.unwrap_or_default();
    let content = String::from_utf8_lossy(&content);
    let found = content.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        let number = fields.nth(1)?.parse().ok()?;
        Some((number, fields.next().and_then(|gid| gid.parse().ok())))
    });
    match found {
        Some(found) => Ok(found),
        None if name == "root" => Ok((0, Some(0))),
        None if is_missing => {
            bail!("the image has no {file} with the number of `{name}`; write it")
        }
        None => bail!("{file} in the image does not have `{name}`; write the number"),
    }
}

/// Reads a list of names; `None` if the file does not exist.
fn read(session: &EditSession, file: &str) -> Result<Option<Vec<u8>>> {
    let paths = session.volume().paths();
    let shown = || format!("{file} in the image");
    let size = match paths.attributes(file) {
        Err(error) if error.is(Refusal::NotFound) => return Ok(None),
        found => found.with_context(shown)?.size,
    };
    if size > MAX_LIST_SIZE {
        bail!(
            "{file} in the image has {size} bytes, and names are looked up in no more than {MAX_LIST_SIZE}; \
             write the number"
        );
    }
    paths.read(file).map(Some).with_context(shown)
}
