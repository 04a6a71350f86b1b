//! Input streams of a change. Ctrl-C interrupts the work even while a stream has no bytes.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::AsFd;
use std::sync::Arc;

use pext4_edit::Progress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Size of the buffer in bytes.
const BUFFER: usize = 1 << 20;
/// How long a read waits for bytes before it checks whether the work was asked to stop.
const INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// A stream whose reads fail once the work was asked to stop.
struct Stoppable {
    file: File,
    progress: Arc<Progress>,
}

/// A reader of a file or a pipe for work that can be asked to stop.
pub fn stoppable(file: File, progress: Arc<Progress>) -> impl Read {
    BufReader::with_capacity(BUFFER, Stoppable { file, progress })
}

/// Standard input as a file, without the buffer of the standard library, whose bytes `poll` does
/// not see.
///
/// # Errors
/// If standard input is closed.
pub fn standard() -> io::Result<File> {
    Ok(io::stdin().as_fd().try_clone_to_owned()?.into())
}

impl Read for Stoppable {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while !self.progress.is_stopped() {
            let mut files = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut files, Some(&INTERVAL)) {
                Ok(0) | Err(Errno::INTR) => {}
                // The read reports the end of the stream or its error.
                _ => return self.file.read(into),
            }
        }
        Err(io::Error::other("interrupted"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::sync::Arc;

    use pext4_edit::Progress;

    use super::stoppable;

    #[test]
    fn a_stream_is_read_to_its_end_unless_the_work_is_to_stop() {
        let pipe = || {
            let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
            (File::from(reader), File::from(writer))
        };
        let progress = Arc::new(Progress::default());
        let (reader, mut writer) = pipe();
        writer.write_all(b"content").expect("there is room");
        drop(writer);
        let mut content = String::new();
        let mut stream = stoppable(reader, Arc::clone(&progress));
        stream.read_to_string(&mut content).expect("a pipe");
        assert_eq!(content, "content");
        // A pipe to which nothing is written.
        let (reader, _writer) = pipe();
        progress.stop();
        let error = stoppable(reader, progress)
            .read(&mut [0])
            .expect_err("it was asked to stop");
        assert_eq!(error.to_string(), "interrupted");
    }
}
