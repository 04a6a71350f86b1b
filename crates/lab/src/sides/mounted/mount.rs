//! A mount of a new image, and the server behind it.
//!
//! Ending a mount in order waits until its server has written the image back. Dropping a mount
//! means that the run has failed or was interrupted and the image is not needed: the server is
//! killed, and the remaining mount is removed.
//!
//! A hanging server blocks every thread that calls into its mount: no signal reaches a thread that
//! waits for an answer, and the lab's own main thread may be one of them. Therefore a separate
//! thread checks for an interruption and kills the server; then every call into the mount fails.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::leftovers;
use crate::run::Interrupt;
use crate::sides::check::tool;
use crate::sides::table;

/// Limit for a server to answer, and to write its image back.
pub const SERVER_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Interval at which the thread checks for an interruption; long, since it runs during
/// measurements.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// A mount, removed when dropped. Its server and the mount and unmount commands get process groups
/// of their own: the terminal's Ctrl-C is for the lab, which ends them in order.
pub struct Mount {
    directory: PathBuf,
    server: Server,
    /// Interrupts every wait.
    interrupt: Interrupt,
}

impl Mount {
    /// Mounts by a command that ends when it has mounted.
    pub fn with_command(
        command: &mut Command,
        directory: PathBuf,
        interrupt: Interrupt,
    ) -> Result<Self> {
        let told = command.process_group(0).output();
        let told = told.context("cannot run mount")?;
        if !told.status.success() {
            let words = String::from_utf8_lossy(&told.stderr);
            bail!("{}", words.lines().next().unwrap_or("mount failed"));
        }
        Ok(Self {
            directory,
            server: Server::default(),
            interrupt,
        })
    }

    /// Starts a server in the foreground and waits until it has mounted the directory.
    pub fn with_server(
        command: &mut Command,
        directory: PathBuf,
        interrupt: Interrupt,
    ) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut words = tempfile::tempfile()?;
        let server = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(words.try_clone()?)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {name}"))?;
        let mount = Self::served_by(server, directory, interrupt);
        let start = Instant::now();
        while !table::is_mounted(&mount.directory) {
            if let Some(status) = mount.ended()? {
                bail!("{}", failure_reason(&name, status, &mut words));
            }
            mount.interrupt.check()?;
            if start.elapsed() > SERVER_TIMEOUT {
                bail!("{name} does not mount");
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(mount)
    }

    fn served_by(server: Child, directory: PathBuf, interrupt: Interrupt) -> Self {
        Self {
            directory,
            server: Server::watched(server, interrupt.clone()),
            interrupt,
        }
    }

    /// The mount point.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Unmounts and waits until the server has written its image back.
    pub fn end(mut self) -> Result<()> {
        self.unmount()?;
        let start = Instant::now();
        while self.server.is_there() {
            self.interrupt.check()?;
            match self.ended()? {
                Some(status) if !status.success() => bail!("its server ended with {status}"),
                Some(_) => {}
                None if start.elapsed() > SERVER_TIMEOUT => bail!("its server does not end"),
                None => std::thread::sleep(POLL_INTERVAL),
            }
        }
        Ok(())
    }

    /// The exit status of the server, if it has ended by itself. A server that an interruption
    /// killed has no status of its own: the interruption is the error.
    fn ended(&self) -> Result<Option<ExitStatus>> {
        let status = self.server.ended()?;
        if status.is_some() {
            // Asked after the status: an interruption is noted before it kills.
            self.interrupt.check()?;
        }
        Ok(status)
    }

    fn unmount(&mut self) -> Result<()> {
        if !table::is_mounted(&self.directory) {
            return Ok(());
        }
        let with_rights = self.told(&mut tool("umount"))?;
        if with_rights.status.success() {
            return Ok(());
        }
        let without = self.told(tool("fusermount3").arg("-u"));
        if !without.is_ok_and(|told| told.status.success()) {
            bail!("{}", String::from_utf8_lossy(&with_rights.stderr).trim());
        }
        Ok(())
    }

    /// Runs a command that unmounts, and returns its output.
    fn told(&mut self, command: &mut Command) -> Result<Output> {
        let mut child = command
            .arg(&self.directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let start = Instant::now();
        while child.try_wait()?.is_none() {
            // The command may wait for the server to write, but no longer than the server lives.
            if self.interrupt.check().is_err() || start.elapsed() > SERVER_TIMEOUT {
                self.server.kill();
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(child.wait_with_output()?)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.server.kill();
        if let Err(error) = self.unmount() {
            leftovers::note_why(
                format_args!("the mount {}", self.directory.display()),
                error,
            );
        }
    }
}

/// The server's process; `None` for the kernel's own mounts and after the process was waited for.
/// The lock is held while a signal is sent, so that the process number cannot be reused by then.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<Option<Child>>>);

impl Server {
    /// A server that is killed when the run is interrupted.
    fn watched(child: Child, interrupt: Interrupt) -> Self {
        let server = Self(Arc::new(Mutex::new(Some(child))));
        let watched = server.clone();
        std::thread::spawn(move || {
            while watched.is_there() {
                if interrupt.check().is_err() {
                    watched.lock().as_ref().into_iter().for_each(signal_end);
                    return;
                }
                std::thread::sleep(WATCH_INTERVAL);
            }
        });
        server
    }

    fn lock(&self) -> MutexGuard<'_, Option<Child>> {
        // The process remains valid even if a thread panicked with the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_there(&self) -> bool {
        self.lock().is_some()
    }

    /// The exit status, if the process has ended.
    fn ended(&self) -> Result<Option<ExitStatus>> {
        let mut server = self.lock();
        let status = match &mut *server {
            Some(child) => child.try_wait()?,
            None => None,
        };
        if status.is_some() {
            *server = None;
        }
        Ok(status)
    }

    /// Kills the process and everything that it started.
    fn kill(&self) {
        if let Some(mut child) = self.lock().take() {
            signal_end(&child);
            // It was killed; the status does not matter.
            let _ = child.wait();
        }
    }
}

fn signal_end(server: &Child) {
    // It may have ended by itself.
    let _ = kill_process_group(Pid::from_child(server), Signal::KILL);
}

/// The server's last output, or likely reasons if there is none.
fn failure_reason(name: &str, status: ExitStatus, words: &mut File) -> String {
    let mut said = String::new();
    // Output that cannot be read counts as none.
    let _ = words
        .rewind()
        .and_then(|()| words.read_to_string(&mut said));
    match said.lines().rfind(|line| !line.trim().is_empty()) {
        Some(line) => format!("{name} ended with {status}: {line}"),
        None => format!("{name} ended with {status}; is FUSE permitted here?"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use pext4_testkit::effort::within;
    use rustix::process::{Pid, test_kill_process};

    use super::{Duration, Interrupt, Mount, POLL_INTERVAL};

    /// A server that neither mounts nor ends, like one that hangs.
    fn stuck() -> Command {
        let mut command = Command::new("sleep");
        // If a test fails, nobody who reads the test's output may wait for this process.
        let nothing = std::process::Stdio::null;
        command.stdin(nothing()).stdout(nothing()).stderr(nothing());
        command.arg("600").process_group(0);
        command
    }

    #[test]
    fn whoever_wants_to_stop_waits_for_no_server() {
        let folder = tempfile::tempdir().unwrap();
        let directory = || folder.path().to_owned();
        let interrupt = Interrupt::default();
        interrupt.ask();
        let started = Mount::with_server(&mut stuck(), directory(), interrupt.clone());
        let told = started.err().expect("it does not mount").to_string();
        assert!(told.contains("interrupted"), "{told}");
        let server = stuck().spawn().unwrap();
        let process = Pid::from_child(&server);
        let mount = Mount::served_by(server, directory(), interrupt);
        let told = mount.end().expect_err("it does not end").to_string();
        assert!(told.contains("interrupted"), "{told}");
        assert!(test_kill_process(process).is_err(), "its server lives on");
    }

    /// A dropped mount kills its server even without an interruption.
    #[test]
    fn a_mount_that_is_dropped_ends_its_server() {
        let folder = tempfile::tempdir().unwrap();
        let server = stuck().spawn().unwrap();
        let process = Pid::from_child(&server);
        let directory = folder.path().to_owned();
        drop(Mount::served_by(server, directory, Interrupt::default()));
        assert!(test_kill_process(process).is_err(), "its server lives on");
    }

    /// The thread that could end the mount may itself wait for an answer of its server. Whoever
    /// notices the end is told of the interruption, not of the signal that followed from it.
    #[test]
    fn a_server_is_killed_also_where_nobody_comes_to_end_it() {
        let folder = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::default();
        let server = stuck().spawn().unwrap();
        let mount = Mount::served_by(server, folder.path().to_owned(), interrupt.clone());
        interrupt.ask();
        within(Duration::from_secs(60), "the server lives on", move || {
            let told = loop {
                match mount.ended() {
                    Ok(None) => std::thread::sleep(POLL_INTERVAL),
                    Ok(Some(status)) => panic!("its server ended with {status}"),
                    Err(error) => break error.to_string(),
                }
            };
            assert!(told.contains("interrupted"), "{told}");
        });
    }
}
