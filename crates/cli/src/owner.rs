//! Owners in the form of `chown`: numbers, or names in the image's `/etc/passwd` and `/etc/group`.

use anyhow::{Context, Result, bail};
use pext4_edit::EditSession;
use pext4_fs::Refusal;
use pext4_ondisk::owner::check_id;

use crate::failure::Misuse;

/// The maximum size in bytes of these files: the image may be hostile and claim any size.
const MAX_LIST_SIZE: u64 = 16 << 20;

/// `USER`, `USER:GROUP`, `:GROUP` or `USER:` (its own group), as numbers.
///
/// # Errors
///
/// A name that `/etc/passwd` or `/etc/group` of the image does not have; an id that is nobody's.
pub fn parse(text: &str, session: &EditSession) -> Result<(Option<u32>, Option<u32>)> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let mut own_group = None;
    let uid = match (user, number(user, text)?) {
        ("", _) => None,
        (_, Some(number)) => Some(number),
        (name, None) => {
            let (uid, gid) = find(session, "/etc/passwd", name)?;
            own_group = gid;
            Some(uid)
        }
    };
    let gid = match (group, number(group.unwrap_or_default(), text)?) {
        (None, _) => None,
        (Some(""), _) if uid.is_some() && own_group.is_none() => {
            bail!(
                "`{text}` does not say which group, and a number has none of its own; write USER:GROUP"
            )
        }
        (Some(""), _) => own_group,
        (_, Some(number)) => Some(number),
        (Some(name), None) => Some(find(session, "/etc/group", name)?.0),
    };
    if uid.is_none() && gid.is_none() {
        bail!("`{text}` names no owner; write USER, USER:GROUP or :GROUP");
    }
    for id in [uid, gid].into_iter().flatten() {
        check_id(id).map_err(|problem| Misuse(format!("`{text}`: {problem}")))?;
    }
    Ok((uid, gid))
}

/// The number that is the whole of `word`; `None` for a name.
fn number(word: &str, text: &str) -> Result<Option<u32>> {
    // As in coreutils, a sign says that it is not a name of digits.
    let digits = word.strip_prefix('+').unwrap_or(word);
    let is_name = digits.is_empty() || digits.bytes().any(|byte| !byte.is_ascii_digit());
    if is_name {
        return Ok(None);
    }
    let number = digits.parse();
    let too_large = |_| Misuse(format!("`{text}`: an id is at most 4294967294"));
    Ok(Some(number.map_err(too_large)?))
}

/// The third and the fourth field of a name's line.
fn find(session: &EditSession, file: &str, name: &str) -> Result<(u32, Option<u32>)> {
    let content = read(session, file)?;
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
        None => bail!("{file} in the image does not have `{name}`; write the number"),
    }
}

/// Reads a list of names. Empty if the file does not exist.
fn read(session: &EditSession, file: &str) -> Result<Vec<u8>> {
    let paths = session.volume().paths();
    let shown = || format!("{file} in the image");
    let size = match paths.metadata(file) {
        Err(error) if error.is(Refusal::NotFound) => return Ok(Vec::new()),
        found => found.with_context(shown)?.size,
    };
    if size > MAX_LIST_SIZE {
        bail!(
            "{file} in the image has {size} bytes, and names are looked up in no more than {MAX_LIST_SIZE}; \
             write the number"
        );
    }
    paths.read(file).with_context(shown)
}
