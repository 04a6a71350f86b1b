//! Paths of files of an image, which share what they have in common.
//!
//! A tree may be deep, and millions of files may be at its lowest place. So each file has its own
//! name, and the path of its directory is there once, for all of them. Whole paths are made where
//! they are needed: for errors, mostly.

use std::rc::Rc;

/// The path of a file.
#[derive(Debug)]
pub(crate) struct ImagePath {
    /// The path of its directory; `None` for the top of a tree.
    directory: Option<Rc<Self>>,
    /// Its name; of a top, the whole path.
    name: Box<[u8]>,
}

impl ImagePath {
    /// The path of a tree's top.
    pub(crate) fn top(path: &[u8]) -> Rc<Self> {
        Rc::new(Self {
            directory: None,
            name: path.into(),
        })
    }

    /// The path of a name in a directory.
    pub(crate) fn of_child(directory: &Rc<Self>, name: &[u8]) -> Rc<Self> {
        Rc::new(Self {
            directory: Some(Rc::clone(directory)),
            name: name.into(),
        })
    }

    /// The whole path.
    pub(crate) fn whole(&self) -> Vec<u8> {
        let (top, names) = self.parts();
        let mut path = top.to_vec();
        for name in names {
            if path.last() != Some(&b'/') {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        path
    }

    /// The path relative to the top: empty for the top itself.
    pub(crate) fn below_top(&self) -> Vec<u8> {
        let (_, names) = self.parts();
        names.join(&b'/')
    }

    /// The path of the top, and the names from there on.
    fn parts(&self) -> (&[u8], Vec<&[u8]>) {
        let mut names = Vec::new();
        let mut at = self;
        while let Some(directory) = &at.directory {
            names.push(&*at.name);
            at = directory;
        }
        names.reverse();
        (&at.name, names)
    }
}

impl Drop for ImagePath {
    /// One after the other: each in the drop of the one below it would take as much of the stack as
    /// the tree is deep.
    fn drop(&mut self) {
        let mut next = self.directory.take();
        while let Some(mut directory) = next.and_then(Rc::into_inner) {
            next = directory.directory.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::ImagePath;

    #[test]
    fn paths_are_those_of_their_names() {
        for (top, whole) in [
            (&b"/"[..], "/a/b"),
            (b"/dir", "/dir/a/b"),
            (b"dir/", "dir/a/b"),
        ] {
            let top_path = ImagePath::top(top);
            assert_eq!(
                (top_path.whole(), top_path.below_top()),
                (top.to_vec(), vec![])
            );
            let below = ImagePath::of_child(&ImagePath::of_child(&top_path, b"a"), b"b");
            drop(top_path);
            assert_eq!(below.whole(), whole.as_bytes());
            assert_eq!(below.below_top(), b"a/b");
        }
    }

    #[test]
    fn paths_share_their_directory_and_may_be_deep() {
        let mut at = ImagePath::top(b"/");
        for _ in 0..200_000 {
            at = ImagePath::of_child(&at, b"d");
        }
        let children = [b"1", b"2"].map(|name| ImagePath::of_child(&at, name));
        assert_eq!(Rc::strong_count(&at), 3);
        assert_eq!(children[1].whole().len(), 2 * 200_001);
    }
}
