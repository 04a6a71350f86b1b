//! `pext4 umount`: unmounts, and returns when the image is closed and clean.
//!
//! The unmount releases the directory at once, and the server then writes the rest of its journal
//! home. The server holds the lock of its image until it is done, so the command waits for the
//! lock, or until another process has it. If another file has the image's name by now, or none, the
//! command waits until the server has let go of the file that it had, where the system shows that.
//!
//! What stays mounted elsewhere is not waited for: on another directory, or in another namespace.
//! The directory is free then, but the image is not, so the command fails.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use pext4_block::holders::holders;
use pext4_block::{Access, LockProbe};
use pext4_fuse::mount::{self, Mount, ServerProcess, Source, UnmountMode};
use pext4_sync::{thread, time};

use crate::output::print_error;
use crate::superblock;

/// How often to try the lock.
const INTERVAL: Duration = Duration::from_millis(10);
/// The times after which the command prints what it waits for, and after which it gives up. After
/// the first it also asks whether the mount has stayed in another namespace, which mostly ends
/// before.
const SILENT: Duration = Duration::from_secs(3);
const MAX_WAIT: Duration = Duration::from_secs(600);
/// The same after an unmount by force, which is for servers that may never answer again.
const MAX_WAIT_BY_FORCE: Duration = Duration::from_secs(10);

/// Unmount a directory and wait until its image is closed
#[derive(Args)]
pub struct Arguments {
    /// The directory, or the image
    directory: PathBuf,
}

/// Runs the command.
///
/// # Errors
///
/// The path is no mount of pext4, or is in use; the image is in use or not clean afterwards.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mount = find(&arguments.directory)?;
    let detach = |directory: &Path| mount::unmount(directory).with_context(|| why_not(mount.user));
    match end(&mount, UnmountMode::default(), detach)? {
        Some(elsewhere) => bail!("{elsewhere}"),
        None => Ok(()),
    }
}

/// The context of a mount that cannot be unmounted. `fusermount3` says of that of another user that
/// it finds none.
fn why_not(user: Option<u32>) -> String {
    let own = rustix::process::geteuid();
    match user {
        Some(user) if !own.is_root() && user != own.as_raw() => {
            format!("cannot unmount: user {user} has mounted it, and only that user and root can")
        }
        _ => "cannot unmount".to_owned(),
    }
}

/// Ends a mount: has its directory unmounted by `detach`, in this mode, and waits until the image
/// is closed. A lazy unmount is not waited for: it ends when the last user of the directory has
/// gone. Nor is one of a directory that is bound to another place as well, or mounted in another
/// namespace: then a sentence is returned that names the image and says where it is in use.
///
/// # Errors
///
/// Those of `detach`; the image is not clean afterwards.
pub fn end(
    mount: &Mount,
    mode: UnmountMode,
    detach: impl FnOnce(&Path) -> Result<()>,
) -> Result<Option<String>> {
    let Source {
        file: image,
        offset,
    } = Source::of(mount);
    let servers = holders(&image);
    let serving = match mode.lazily || mode.by_force {
        true => None,
        false => ServerProcess::of(mount, &servers),
    };
    let has_moved = serving.filter(|serving| !serving.has(&image));
    // A loop device that was set up for the mount alone is empty, or another file's, once nobody
    // has it open.
    let _device = opened_device(&image);
    detach(&mount.directory)?;
    if mode.lazily {
        return Ok(None);
    }
    let mounts = mount::mounts().context("/proc/self/mountinfo")?;
    if let Some(other) = mount::same_elsewhere(mount, &mounts) {
        let there = format!("on {}", other.directory.display());
        return Ok(Some(still_in_use(&image, &there)));
    }
    let wait = Wait {
        mount,
        image: &image,
        limit: match mode.by_force {
            true => MAX_WAIT_BY_FORCE,
            false => MAX_WAIT,
        },
    };
    let waited = match has_moved {
        Some(serving) => wait.until(|| Ok(serving.has_ended().then_some(None)))?,
        None => wait.for_lock(offset, &servers)?,
    };
    let locked = match waited {
        Waited::Done(locked) => locked,
        Waited::InNamespaceOf(process) => {
            let there = format!("in another namespace, that of process {process}");
            return Ok(Some(still_in_use(&image, &there)));
        }
    };
    // While this process holds the lock, no other can change the image.
    if !mount.read_only
        && locked.is_some()
        && let Some(next) = superblock::unfinished(&superblock::read(&image, offset)?)
    {
        bail!("{}: it is unmounted, but {next}", image.display());
    }
    Ok(None)
}

fn still_in_use(image: &Path, there: &str) -> String {
    let image = image.display();
    format!("{image}: it is unmounted here, but still in use: it is mounted {there} too")
}

/// A block device, open; `None` for a file, whose server takes a lease of it only if nobody else
/// has it open, and for what this process may not open.
fn opened_device(image: &Path) -> Option<File> {
    if !image.metadata().ok()?.file_type().is_block_device() {
        return None;
    }
    File::open(image).ok()
}

/// The mount of pext4 on a directory, or of an image.
///
/// # Errors
///
/// There is none, or the path cannot be resolved.
pub fn find(path: &Path) -> Result<Mount> {
    let name = || path.display().to_string();
    let path = match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(error).with_context(name);
        }
        // The path of a mount whose server died cannot be resolved, but it is in the mount table.
        Err(_) => std::path::absolute(path).with_context(name)?,
        Ok(path) => path,
    };
    let found = choose(&mount::mounts().context("/proc/self/mountinfo")?, &path);
    found.with_context(|| format!("{}: no image is mounted here by pext4", name()))
}

/// The latest mount on the path if it is one of pext4, else the latest mount of pext4 whose image
/// the path is.
fn choose(mounts: &[Mount], path: &Path) -> Option<Mount> {
    let on_path = mounts.iter().rfind(|mount| mount.directory == path);
    if let Some(top) = on_path {
        return mount::is_ours(top).then(|| top.clone());
    }
    // What covers the image's mount belongs to somebody else.
    let is_it = |&place: &usize| {
        let mount = &mounts[place];
        let is_of_image = mount::is_ours(mount) && Source::of(mount).file == path;
        is_of_image && !mount::is_covered(mounts, place)
    };
    (0..mounts.len())
        .rfind(is_it)
        .map(|place| mounts[place].clone())
}

/// The wait for the end of a server.
struct Wait<'m> {
    mount: &'m Mount,
    image: &'m Path,
    /// After this time it is given up.
    limit: Duration,
}

/// Why nothing more is waited for.
enum Waited<T> {
    Done(T),
    /// The mount has stayed in another namespace, which this process has, so its server goes on.
    InNamespaceOf(u32),
}

impl Wait<'_> {
    /// Waits until the server has released its lock, and returns the locked file, or `None` if
    /// other processes have the lock by then. A read-only server shares the lock with other
    /// readers, so an exclusive lock proves that the server has ended; other readers are not waited
    /// for, but the server is: a mount that was made read-only later may have much to write.
    /// `servers` are the processes that had the image before it was unmounted.
    fn for_lock(&self, offset: u64, servers: &[u32]) -> Result<Waited<Option<LockProbe>>> {
        let is_shared = self.mount.read_only;
        let access = if is_shared {
            Access::ReadWrite
        } else {
            Access::ReadOnly
        };
        let mut opened = None;
        let start = time::now();
        self.until(|| {
            let probe = match opened.take() {
                Some(probe) => Some(probe),
                None => open_unless_leased(self.image, offset, access)?,
            };
            match probe {
                Some(probe) if probe.try_lock()? => return Ok(Some(Some(probe))),
                probe => opened = probe,
            }
            let is_late = time::now().saturating_sub(start) > SILENT;
            let holding = holders(self.image);
            let gives_up = is_late && is_shared && may_have_ended(servers, &holding);
            Ok((gives_up || are_others(servers, &holding)).then_some(None))
        })
    }

    /// Waits until `check` has a result.
    fn until<T>(&self, mut check: impl FnMut() -> Result<Option<T>>) -> Result<Waited<T>> {
        let image = self.image.display();
        let start = time::now();
        let mut has_reported = false;
        loop {
            if let Some(result) = check()? {
                return Ok(Waited::Done(result));
            }
            let waited = time::now().saturating_sub(start);
            if waited > self.limit {
                bail!("{image}: it is unmounted, but still not closed");
            }
            if waited > SILENT && !std::mem::replace(&mut has_reported, true) {
                if let Some(process) = mount::in_another_namespace(self.mount) {
                    return Ok(Waited::InNamespaceOf(process));
                }
                print_error(format_args!("pext4: waiting for {image} to be closed"));
            }
            thread::sleep(INTERVAL);
        }
    }
}

/// Opens an image, to try its lock; `None` while its server makes others wait because it closes the
/// image.
fn open_unless_leased(image: &Path, offset: u64, access: Access) -> Result<Option<LockProbe>> {
    match LockProbe::open(image, offset, access) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        opened => opened
            .map(Some)
            .context("it is unmounted, but cannot be seen to be closed"),
    }
}

/// Whether the server may have ended: one of those who had the image is gone, or none was seen.
fn may_have_ended(servers: &[u32], holding: &[u32]) -> bool {
    servers.is_empty() || servers.iter().any(|server| !holding.contains(server))
}

/// Whether others have the image now: some of the servers have gone, and somebody has come. The
/// servers of other file systems in the same file stay, so not all who hold it need be new. False
/// if a server could not be seen. If one of those other file systems is unmounted and mounted again
/// meanwhile, that is taken for this one.
fn are_others(servers: &[u32], now: &[u32]) -> bool {
    let is_gone = |server| !now.contains(server);
    let is_new = |process| !servers.contains(process);
    servers.iter().any(is_gone) && now.iter().any(is_new)
}

#[cfg(test)]
mod tests {
    use super::{Mount, Path, PathBuf, are_others, choose, may_have_ended};

    #[test]
    fn who_has_the_image_next_is_not_waited_for() {
        assert!(are_others(&[7], &[8]) && are_others(&[7, 9], &[8]));
        assert!(!are_others(&[7], &[7]) && !are_others(&[7], &[8, 7]));
        assert!(!are_others(&[7], &[]), "it was let go just now");
        assert!(!are_others(&[], &[8]), "it could not be seen before");
        // Process 9 serves another partition of the same file.
        assert!(are_others(&[7, 9], &[9, 8]));
        assert!(!are_others(&[7, 9], &[9]), "it was let go just now");
        assert!(!are_others(&[7, 9], &[7, 8, 9]), "8 has another partition");
    }

    #[test]
    fn a_reader_beside_the_server_is_not_waited_for() {
        assert!(may_have_ended(&[7], &[]) && may_have_ended(&[7, 9], &[9]));
        assert!(may_have_ended(&[], &[9]), "it could not be seen before");
        assert!(!may_have_ended(&[7], &[7]) && !may_have_ended(&[7], &[7, 8]));
    }

    fn mount(directory: &str, file_system_type: &str, source: &str) -> Mount {
        Mount {
            device: (0, 1),
            directory: PathBuf::from(directory),
            file_system_type: file_system_type.to_owned(),
            source: PathBuf::from(source),
            read_only: false,
            user: None,
        }
    }

    #[test]
    fn a_directory_or_its_image_names_the_mount() {
        let table = vec![
            mount("/", "ext4", "/dev/root"),
            mount("/a", "fuse.pext4", "/images/a"),
            mount("/b", "fuse.pext4", "/images/b"),
            mount("/c", "fuse.sshfs", "host:"),
        ];
        let chosen = |path| choose(&table, Path::new(path)).map(|mount| mount.directory);
        assert_eq!(chosen("/a"), Some(PathBuf::from("/a")));
        assert_eq!(chosen("/images/b"), Some(PathBuf::from("/b")));
        assert_eq!(chosen("/c"), None, "somebody else's mount is left alone");
        assert_eq!(chosen("/"), None);
        assert_eq!(chosen("/d"), None);
    }

    #[test]
    fn what_is_mounted_over_ours_is_left_alone() {
        let table = vec![
            mount("/a", "fuse.pext4", "/images/a"),
            mount("/a", "tmpfs", "none"),
        ];
        for path in ["/a", "/images/a"] {
            assert_eq!(choose(&table, Path::new(path)), None);
        }
    }
}
