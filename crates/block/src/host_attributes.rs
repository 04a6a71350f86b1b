//! The extended attributes of a file that replaces another one under its name.

use std::ffi::CStr;
use std::fs::File;

use rustix::fs::XattrFlags;

/// The maximum length of a value in Linux, and of all names of a file.
const MAX_BYTES: usize = 64 << 10;
/// The namespace of access lists, which belong to the permissions.
const LISTS: &[u8] = b"system.";

/// Gives a file the extended attributes of another one, without access lists, as far as this user
/// may. What cannot be read or set is left out: some are for root, others only for the system.
pub(crate) fn copy_attributes(from: &File, to: &File) {
    let mut names = vec![0; MAX_BYTES];
    let Ok(length) = rustix::fs::flistxattr(from, &mut names[..]) else {
        return;
    };
    let mut value = vec![0; MAX_BYTES];
    for name in names[..length].split_inclusive(|&byte| byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else {
            continue;
        };
        if name.to_bytes().starts_with(LISTS) {
            continue;
        }
        if let Ok(length) = rustix::fs::fgetxattr(from, name, &mut value[..]) {
            let _ = rustix::fs::fsetxattr(to, name, &value[..length], XattrFlags::empty());
        }
    }
}
