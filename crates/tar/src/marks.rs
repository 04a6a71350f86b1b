//! The marks by which a layer of a container image hides files of the layers below: OCI image
//! format specification, layer.md, "Whiteouts".
//!
//! An entry `.wh.NAME` hides `NAME` beside it, and `.wh..wh..opq` what is in its directory. Other
//! names that begin with `.wh..wh.` are reserved, and their entries mean nothing.

/// Prefix of the name of a whiteout, which hides a file of a lower layer.
const WHITEOUT_PREFIX: &[u8] = b".wh.";
/// Prefix of names that are reserved for the layer format.
const RESERVED_PREFIX: &[u8] = b".wh..wh.";
/// Name of the mark in an opaque directory, whose contents in lower layers are hidden.
const OPAQUE_MARK: &[u8] = b".wh..wh..opq";

/// What the name of an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark<'p> {
    /// The file of this name beside it is hidden.
    Whiteout(&'p [u8]),
    /// What is in its directory is hidden.
    Opaque,
    /// Nothing.
    Reserved,
    /// Nothing: it is in a directory with a reserved name.
    Below,
}

/// The mark that the entry at a path of a layer is; `None` for a file. The path consists of names
/// that are joined by slashes.
#[must_use]
pub fn mark(path: &[u8]) -> Option<Mark<'_>> {
    let mut names = path.rsplit(|&byte| byte == b'/');
    let name = names.next()?;
    if names.any(|name| name.starts_with(RESERVED_PREFIX)) {
        return Some(Mark::Below);
    }
    if name == OPAQUE_MARK {
        return Some(Mark::Opaque);
    }
    if name.starts_with(RESERVED_PREFIX) {
        return Some(Mark::Reserved);
    }
    Some(match name.strip_prefix(WHITEOUT_PREFIX)? {
        b"" | b"." | b".." => Mark::Reserved,
        hidden => Mark::Whiteout(hidden),
    })
}

#[cfg(test)]
mod tests {
    use super::{Mark, mark};

    #[test]
    fn marks_are_told_by_their_names() {
        for (path, is) in [
            (&b""[..], None),
            (b"a/b", None),
            (b"a.wh.b", None),
            (b".wh.d/file", None),
            (b".wh.b", Some(Mark::Whiteout(b"b"))),
            (b"a/.wh..b", Some(Mark::Whiteout(b".b"))),
            (b"a/.wh..wh..opq", Some(Mark::Opaque)),
            (b"a/.wh..wh.plnk", Some(Mark::Reserved)),
            (b".wh.", Some(Mark::Reserved)),
            (b"a/.wh...", Some(Mark::Reserved)),
            (b"a/.wh..wh.plnk/.wh.b", Some(Mark::Below)),
        ] {
            assert_eq!(mark(path), is, "{}", path.escape_ascii());
        }
    }
}
