//! What can be a path of a volume.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What can be a path of a volume, or the target of a symbolic link: bytes, text, and the paths of
/// the host, whose bytes are taken as they are. References to these are too. Other crates cannot
/// implement it.
pub trait AsVolumePath: sealed::Sealed {
    /// The path's bytes.
    fn as_volume_path(&self) -> &[u8];
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! as_volume_path {
    ($($kind:ty => $bytes:expr;)*) => {
        $(
            impl sealed::Sealed for $kind {}

            impl AsVolumePath for $kind {
                fn as_volume_path(&self) -> &[u8] {
                    let bytes: fn(&Self) -> &[u8] = $bytes;
                    bytes(self)
                }
            }
        )*
    };
}

as_volume_path! {
    [u8] => |path| path;
    Vec<u8> => |path| path;
    str => |path| path.as_bytes();
    String => |path| path.as_bytes();
    OsStr => |path| path.as_bytes();
    OsString => |path| path.as_bytes();
    Path => |path| path.as_os_str().as_bytes();
    PathBuf => |path| path.as_os_str().as_bytes();
}

impl<const N: usize> sealed::Sealed for [u8; N] {}

impl<const N: usize> AsVolumePath for [u8; N] {
    fn as_volume_path(&self) -> &[u8] {
        self
    }
}

impl<P: AsVolumePath + ?Sized> sealed::Sealed for &P {}

impl<P: AsVolumePath + ?Sized> AsVolumePath for &P {
    fn as_volume_path(&self) -> &[u8] {
        (**self).as_volume_path()
    }
}

impl<P: AsVolumePath + ToOwned + ?Sized> sealed::Sealed for Cow<'_, P> {}

impl<P: AsVolumePath + ToOwned + ?Sized> AsVolumePath for Cow<'_, P> {
    fn as_volume_path(&self) -> &[u8] {
        (**self).as_volume_path()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bytes_text_and_paths_of_the_host_are_paths() {
        let bytes = [
            b"/a/b".as_volume_path(),
            b"/a/b"[..].as_volume_path(),
            b"/a/b".to_vec().as_volume_path(),
            "/a/b".as_volume_path(),
            (&"/a/b").as_volume_path(),
            "/a/b".to_owned().as_volume_path(),
            OsStr::new("/a/b").as_volume_path(),
            OsString::from("/a/b").as_volume_path(),
            Path::new("/a/b").as_volume_path(),
            PathBuf::from("/a/b").as_volume_path(),
            Cow::Borrowed("/a/b").as_volume_path(),
        ]
        .map(<[u8]>::to_vec);
        assert!(bytes.iter().all(|bytes| bytes == b"/a/b"));
        let name = OsStr::from_bytes(b"\xFF/");
        assert_eq!(Path::new(name).as_volume_path(), b"\xFF/");
    }
}
