//! Mounting through the helper `fusermount3`.
//!
//! The helper opens `/dev/fuse`, mounts, and sends the open device back over a socket whose number
//! is in an environment variable. Here the socket is the helper's standard input.

use std::ffi::OsString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use pext4_fs::AccessTimes;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::{MountError, SUBTYPE};
use crate::options::KernelOptions;

const HELPER: &str = "fusermount3";
/// Directories in which the helper is searched after those of `PATH`.
const USUAL_PLACES: [&str; 4] = ["/usr/bin", "/bin", "/usr/local/bin", "/sbin"];
/// The variable that names the socket, and the number it names.
const SOCKET_VARIABLE: (&str, &str) = ("_FUSE_COMMFD", "0");

/// The path of the helper.
pub(super) fn find() -> Result<PathBuf, MountError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(USUAL_PLACES.map(PathBuf::from));
    let mut candidates = places.map(|place| place.join(HELPER));
    candidates
        .find(|candidate| candidate.is_file())
        .ok_or(MountError::NoHelper)
}

/// Attaches the directory.
pub(super) fn attach(
    directory: &Path,
    source: &Path,
    options: &KernelOptions,
) -> Result<OwnedFd, MountError> {
    let system = |error| MountError::System(directory.to_owned(), error);
    let helper = find()?;
    let (ours, theirs) = UnixStream::pair().map_err(system)?;
    let child = Command::new(helper)
        .arg("-o")
        .arg(option_list(source, options))
        .arg("--")
        .arg(directory)
        .env(SOCKET_VARIABLE.0, SOCKET_VARIABLE.1)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(system)?;
    // The command was dropped, and with it our copy of the helper's end: when the helper ends,
    // reading the socket does too.
    let device = receive(&ours);
    let message = helper_error(child).map_err(system)?;
    match device {
        Ok(Some(device)) => Ok(device),
        Ok(None) => Err(MountError::Helper(message)),
        Err(error) => Err(system(error)),
    }
}

/// Detaches the directory; `lazily` also if it is in use.
pub(super) fn detach(directory: &Path, lazily: bool) -> Result<(), MountError> {
    let system = |error| MountError::System(directory.to_owned(), error);
    let mut command = Command::new(find()?);
    command.arg("-u");
    if lazily {
        command.arg("-z");
    }
    command.arg("--").arg(directory);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let output = command.output().map_err(system)?;
    let message = error_line(&output.stderr);
    if output.status.success() {
        Ok(())
    } else if message.contains("busy") {
        Err(MountError::Busy(directory.to_owned()))
    } else {
        Err(MountError::Helper(message))
    }
}

fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut data = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let device = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok(device)
}

fn helper_error(child: Child) -> io::Result<String> {
    Ok(error_line(&child.wait_with_output()?.stderr))
}

/// The helper's error output as one line, without its name.
fn error_line(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let line = text.trim().replace('\n', "; ");
    let line = line
        .split_once("fusermount3: ")
        .map_or(line.as_str(), |(_, reason)| reason);
    if line.is_empty() {
        "it gave no reason".to_owned()
    } else {
        line.to_owned()
    }
}

/// The helper adds `nosuid` and `nodev` for everyone but root.
fn option_list(source: &Path, options: &KernelOptions) -> OsString {
    let mut list = b"fsname=".to_vec();
    for &byte in source.as_os_str().as_bytes() {
        if matches!(byte, b',' | b'\\') {
            list.push(b'\\');
        }
        list.push(byte);
    }
    list.extend_from_slice(format!(",subtype={SUBTYPE},default_permissions").as_bytes());
    let words = [
        (options.read_only, ",ro"),
        (options.allow_other, ",allow_other"),
        (options.set_id, ",suid"),
        (options.devices, ",dev"),
        (!options.execute, ",noexec"),
        (!options.follow_links, ",nosymfollow"),
        (options.access_times == AccessTimes::Never, ",noatime"),
        (options.synchronous_directories, ",dirsync"),
        (options.synchronous, ",sync"),
    ];
    for (_, word) in words.into_iter().filter(|(given, _)| *given) {
        list.extend_from_slice(word.as_bytes());
    }
    OsString::from_vec(list)
}

#[cfg(test)]
mod tests {
    use super::{KernelOptions, Path, error_line, option_list};

    #[test]
    fn commas_in_a_path_do_not_end_the_option() {
        let options = KernelOptions {
            read_only: true,
            allow_other: true,
            ..Default::default()
        };
        assert_eq!(
            option_list(Path::new("/a,b\\c"), &options),
            r"fsname=/a\,b\\c,subtype=pext4,default_permissions,ro,allow_other"
        );
    }

    #[test]
    fn the_helpers_messages_become_one_line() {
        assert_eq!(
            error_line(b"fusermount3: mount failed\nsorry\n"),
            "mount failed; sorry"
        );
        assert_eq!(error_line(b"/usr/bin/fusermount3: no"), "no");
        assert_eq!(error_line(b""), "it gave no reason");
    }
}
