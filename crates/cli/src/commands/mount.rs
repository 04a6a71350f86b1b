//! `pext4 mount`: mounts an image on a directory.
//!
//! In the foreground the command serves until the directory is unmounted. Without `-f` it starts
//! itself again as a server, in a session of its own, and waits for one line: "ready" once the
//! mount answers. Before that the server prints errors on the shared terminal, and the command
//! passes on its exit status; afterwards the server closes the terminal.

use std::env;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, Error, Result, bail};
use clap::Args;
use pext4_block::{Access, Device, FileDevice};
use pext4_fs::{MountOptions, Volume};
use pext4_fuse::mount::Source;
use pext4_fuse::{CaughtSignals, ErrorLog, ImageRange, OpenersDelay, Options, Server, mount};
use pext4_sync::meter;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::mkfs;
use crate::failure::{Misuse, Reported, check_cache_size, check_meter};
use crate::output::print_error;
use crate::{device, log, partitions, program, size};

/// The line by which the server reports that the mount answers.
const READY: &str = "ready";
/// The hidden flag by which the command starts itself as a server.
const SERVE: &str = "--serve-in-background";

/// Mount an image on a directory
#[derive(Args, Debug)]
pub struct Arguments {
    /// The image or block device
    image: PathBuf,
    /// The directory
    directory: PathBuf,
    /// Options: ro, allow_other, commit=SECONDS, errors=remount-ro, discard, noatime, offset=BYTES,
    /// ...
    ///
    /// All that have an effect: ro, rw, noload, norecovery, commit=SECONDS,
    /// errors=continue|remount-ro|panic, discard, nodiscard, resuid=UID, resgid=GID, sync, async,
    /// dirsync, offset=BYTES, sizelimit=BYTES, allow_other, default_permissions, suid, nosuid, dev,
    /// nodev, exec, noexec, symfollow, nosymfollow, atime, noatime, relatime, norelatime,
    /// strictatime, nostrictatime, diratime, nodiratime, grpid, nogrpid, bsdgroups, sysvgroups,
    /// strict_open, nostrict_open, io_uring, no_io_uring, no_mbcache, nombcache,
    /// mb_optimize_scan=0|1, scaling=SETTING[:SWITCH=VALUE...]. Options of ext4 that hold anyway
    /// and those for other readers of fstab are accepted; docs/FUSE.md names them.
    #[arg(short = 'o', value_name = "OPTION,...")]
    options: Vec<String>,
    /// Make the image with this size if there is none
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    create: Option<u64>,
    /// Memory for metadata
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "256M")]
    cache_size: u64,
    /// Count what locks cost, for `pext4 stats`; only in a build with `--features meter`
    #[arg(long)]
    meter: bool,
    /// Stay in the foreground
    #[arg(short = 'f', long)]
    foreground: bool,
    #[arg(long = "serve-in-background", hide = true)]
    serve_in_background: bool,
    /// The mount namespace in which image and directory are
    #[arg(long, hide = true, value_name = "FILE")]
    namespace: Option<PathBuf>,
}

impl Arguments {
    /// A mount in the background with these options, and defaults for everything else.
    pub fn of(
        image: PathBuf,
        directory: PathBuf,
        options: Vec<String>,
        namespace: Option<PathBuf>,
    ) -> Self {
        Self {
            image,
            directory,
            options,
            create: None,
            cache_size: MountOptions::default().cache_size,
            meter: false,
            foreground: false,
            serve_in_background: false,
            namespace,
        }
    }

    /// The image or block device.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// The options, one by one.
    pub fn option_words(&self) -> impl Iterator<Item = &str> {
        self.options.iter().flat_map(|list| list.split(','))
    }

    /// The command line by which this program serves the same mount.
    fn for_server(&self) -> Vec<OsString> {
        let mut words = vec!["mount".into(), SERVE.into()];
        // After `-o` alone the next word would be parsed as the list.
        for list in self.options.iter().filter(|list| !list.is_empty()) {
            words.push(format!("-o{list}").into());
        }
        for (name, size) in [
            ("create", self.create),
            ("cache-size", Some(self.cache_size)),
        ] {
            words.extend(size.map(|size| format!("--{name}={size}").into()));
        }
        if self.meter {
            words.push("--meter".into());
        }
        if let Some(namespace) = &self.namespace {
            words.extend(["--namespace".into(), namespace.into()]);
        }
        words.extend(["--".into(), (&self.image).into(), (&self.directory).into()]);
        words
    }
}

/// Runs the command.
///
/// # Errors
///
/// The image cannot be opened, or the mount fails.
pub fn run(arguments: &Arguments) -> Result<()> {
    let options = options(arguments)?;
    if arguments.serve_in_background {
        // This fails only if the process leads a session already, which is what is needed.
        let _ = rustix::process::setsid();
        enter_namespace(arguments.namespace.as_deref())?;
        serve(arguments, &options, leave_terminal)
    } else if arguments.foreground {
        let (image, directory) = (arguments.image.display(), arguments.directory.display());
        serve(arguments, &options, || {
            print_error(format_args!(
                "pext4: {image} is mounted on {directory}; Ctrl-C ends the mount"
            ));
            Ok(())
        })
    } else {
        let paths = [&arguments.image, &arguments.directory];
        let paths = paths.into_iter().chain(&arguments.namespace);
        close_in_server(paths.filter_map(|path| named_descriptor(path)));
        start_in_background(&arguments.for_server())
    }
}

/// As [`run`], without the mount.
///
/// # Errors
///
/// The options are invalid.
pub fn check(arguments: &Arguments) -> Result<()> {
    options(arguments).map(drop)
}

/// Enters a mount namespace, if there is one to enter. The process must have one thread.
///
/// # Errors
///
/// Those of the system.
pub fn enter_namespace(path: Option<&Path>) -> Result<()> {
    let Some(path) = path else {
        return Ok(());
    };
    let enter = || {
        let kind = Some(LinkNameSpaceType::Mount);
        move_into_link_name_space(File::open(path)?.as_fd(), kind).map_err(io::Error::from)
    };
    enter().with_context(|| format!("cannot enter the mount namespace {}", path.display()))
}

fn options(arguments: &Arguments) -> Result<Options> {
    let mut options = Options::default();
    for list in &arguments.options {
        options
            .apply(list)
            .map_err(|error| Misuse(format!("-o: {error}")))?;
    }
    if arguments.create.is_some() && options.image.offset != 0 {
        return Err(Misuse("--create makes an image without an offset".to_owned()).into());
    }
    check_cache_size(arguments.cache_size)?;
    check_meter(arguments.meter)?;
    options.volume.cache_size = arguments.cache_size;
    Ok(options)
}

/// Closes all descriptors except `kept` in the server. It runs for a long time, and a process that
/// waits for the end of a pipe or for a lock would wait for the server.
fn close_in_server(kept: impl Iterator<Item = i32>) {
    const FIRST: i32 = 3;
    close_fds::set_fds_cloexec_threadsafe(FIRST, &kept.collect::<Vec<_>>());
}

/// The descriptor that a path like `/dev/fd/3` names.
fn named_descriptor(path: &Path) -> Option<i32> {
    let folders = ["/dev/fd", "/proc/self/fd"];
    let name = folders
        .iter()
        .find_map(|folder| path.strip_prefix(folder).ok())?;
    name.components().next()?.as_os_str().to_str()?.parse().ok()
}

/// Starts the server and waits until its mount answers.
fn start_in_background(words: &[OsString]) -> Result<()> {
    let mut server = Command::new(program::path());
    let mut server = server
        .arg0("pext4")
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the server")?;
    let output = server.stdout.take().expect("its output is a pipe");
    let mut line = String::new();
    BufReader::new(output)
        .read_line(&mut line)
        .context("the server")?;
    if line.trim_end() == READY {
        return Ok(());
    }
    let status = server.wait().context("the server")?;
    match status.code().map(u8::try_from) {
        Some(Ok(code @ 1..)) => Err(Reported(code).into()),
        _ => bail!("the server ended before the mount answered ({status})"),
    }
}

/// Reports that the mount answers, and closes the terminal.
fn leave_terminal() -> Result<()> {
    let nothing = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    let mut output = io::stdout();
    writeln!(output, "{READY}")?;
    output.flush()?;
    log::switch_to_system_log();
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    Ok(())
}

/// Mounts, calls `ready`, and serves until the directory is unmounted and the image closed.
fn serve(
    arguments: &Arguments,
    options: &Options,
    ready: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let directory = mount::check(&arguments.directory).context("cannot mount")?;
    let image = existing_image(arguments)?;
    meter::switch(arguments.meter);
    let (volume, device) = open(&image, &directory, options)?;
    for note in volume.notes() {
        print_error(format_args!("pext4: {note}"));
    }
    let error_log = Arc::new(ErrorLog::new(log::message));
    let source = Source {
        file: image.clone(),
        offset: options.image.offset,
    };
    let signals = CaughtSignals::catch().context("cannot catch signals")?;
    let server = Server::mount(volume, &directory, &source, &options.kernel, error_log)
        .context("cannot mount")?;
    if options.kernel.io_uring && !server.is_over_io_uring() {
        print_error(format_args!(
            "pext4: requests come over /dev/fuse: the kernel does not offer FUSE through io_uring \
             (Linux 6.14; as root `echo Y > /sys/module/fuse/parameters/enable_uring`), or this \
             process may not use it"
        ));
    }
    // The working directory may be on a mount that is to be unmounted before this one.
    env::set_current_dir("/").context("/")?;
    let unmounter = server.unmounter();
    let prepared = signals.end_mount_on_signal(server.unmounter(), log::message, move || {
        // A thread that waits for the kernel, which waits for this server, cannot exit, and would
        // keep the mount alive. If this fails, that is so, and nothing else can be tried.
        let _ = unmounter.end_unserved();
        log::message("ended by a second signal; the next mount replays the journal");
        std::process::exit(1);
    });
    let prepared = prepared
        .context("cannot wait for signals")
        .and_then(|()| ready());
    // The command fails, and its user would not know of the mount.
    let unmounted = match prepared {
        Ok(()) => Ok(()),
        Err(_) => server.unmounter().end(),
    };
    let is_written = device
        .upgrade()
        .is_some_and(|device| !device.is_read_only());
    let delay = is_written.then(|| OpenersDelay::of_mount(server.unmounter(), device));
    let ended = server.wait_then(|| {
        let delayed = delay.map(|delay| delay.and_then(OpenersDelay::session_has_ended));
        if let Some(Err(error)) = delayed
            && error.kind() == ErrorKind::WouldBlock
        {
            log::message(&format!(
                "{}: another program has it open, and may read or write what is being changed",
                image.display()
            ));
        }
    });
    if let Err(error) = &ended
        && !arguments.foreground
    {
        log::message(&format!("{}: {error}", image.display()));
    }
    prepared?;
    unmounted.context("cannot unmount again")?;
    ended.with_context(|| image.display().to_string())
}

/// The image's path without symbolic links. Creates the image first if that was requested.
fn existing_image(arguments: &Arguments) -> Result<PathBuf> {
    let image = &arguments.image;
    let name = || image.display().to_string();
    if let Some(size) = arguments.create
        && !image.try_exists().with_context(name)?
    {
        let made = mkfs::create(image, size).with_context(|| format!("cannot make {}", name()))?;
        let journal = match made.journal_blocks {
            0 => ", too small for a journal",
            _ => "",
        };
        print_error(format_args!(
            "pext4: {} is new, {}{journal}",
            name(),
            size::show(size)
        ));
    }
    match image.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!(
                "{}: there is no such image; `pext4 mkfs` makes one, or `pext4 mount --create SIZE`",
                name()
            )
        }
        path => {
            let path = path.with_context(name)?;
            let facts = path.metadata().with_context(name)?;
            if facts.is_file() && facts.len() == 0 {
                bail!(
                    "{}: the file is empty; remove it, and --create SIZE makes an image",
                    name()
                );
            }
            Ok(path)
        }
    }
}

fn kind(error: &Error) -> Option<ErrorKind> {
    error.downcast_ref::<io::Error>().map(io::Error::kind)
}

/// Says so if it takes long to see whether another machine uses the image. An error is left to the
/// mount, which adds what helps.
fn announce_wait(device: &Arc<dyn Device>, image: &Path, options: &Options) {
    const LONG: Duration = Duration::from_secs(2);
    match Volume::claim_time(device, &options.volume) {
        Ok(Some(time)) if time > LONG => print_error(format_args!(
            "pext4: {}: its last user did not release it (mmp): waiting {} seconds to see whether \
             another machine uses it",
            image.display(),
            time.as_secs()
        )),
        _ => {}
    }
}

/// Opens the volume, which has the device.
fn open(image: &Path, directory: &Path, options: &Options) -> Result<(Volume, Weak<FileDevice>)> {
    let access = options.access();
    let ImageRange { offset, length } = options.image;
    let device = match (offset, length) {
        (0, None) => device::open(image, access),
        _ => device::open_range(image, offset, length, access),
    };
    let device = device.map_err(|error| match kind(&error) {
        Some(ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
            if access == Access::ReadWrite =>
        {
            Error::msg(format!("{error}; `-o ro` mounts it read-only"))
        }
        _ => error,
    })?;
    partitions::refuse_disk(&device, image)?;
    if access == Access::ReadOnly {
        device::tell_kernel_mount(image, offset);
    }
    let device = Arc::new(device);
    let named = Arc::downgrade(&device);
    let device: Arc<dyn Device> = device;
    announce_wait(&device, image, options);
    let volume = Volume::open(device, options.volume_on(directory))
        .with_context(|| image.display().to_string())?;
    Ok((volume, named))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{CommandFactory, Parser};
    use pext4_fuse::options::WITH_EFFECT;

    use super::Arguments;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        _arguments: Arguments,
    }

    #[test]
    fn the_help_names_every_option_that_has_an_effect() {
        let command = Line::command();
        let options = command
            .get_arguments()
            .find(|one| one.get_id() == "options");
        let help = options.and_then(|options| options.get_long_help());
        let help = help.expect("it is longer than a line").to_string();
        let (_, list) = help
            .split_once("All that have an effect: ")
            .expect("a list");
        let (list, _) = list.split_once(". ").expect("a sentence");
        let names: Vec<&str> = list
            .split(", ")
            .map(|option| option.split_inclusive('=').next().expect("a name"))
            .collect();
        let unique: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(unique, WITH_EFFECT.iter().copied().collect());
        assert_eq!(names.len(), unique.len());
    }
}
