//! Streams from which a change is read. Ctrl-C also interrupts a read that waits for data.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::AsFd;
use std::sync::Arc;

use pext4_block::Progress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// The size of the read buffer in bytes.
const BUFFER: usize = 1 << 20;
/// How long a read waits for data before it checks again whether to stop.
const INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// A stream whose reads fail once the work is stopped.
struct Stoppable {
    file: File,
    progress: Arc<Progress>,
}

/// Reads a file or a pipe for work that can be stopped.
pub fn stoppable(file: File, progress: Arc<Progress>) -> impl Read {
    BufReader::with_capacity(BUFFER, Stoppable { file, progress })
}

/// Standard input as a file, without the buffer of the standard library: `poll` would not see bytes
/// in that buffer.
///
/// # Errors
///
/// Standard input is closed.
pub fn standard() -> io::Result<File> {
    Ok(io::stdin().as_fd().try_clone_to_owned()?.into())
}

impl Read for Stoppable {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while !self.progress.is_stopped() {
            let mut files = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut files, Some(&INTERVAL)) {
                Ok(0) | Err(Errno::INTR) => {}
                // There is data, or the read reports the end of the stream or an error.
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

    use pext4_block::Progress;

    use super::stoppable;

    #[test]
    fn a_stream_is_read_to_its_end_and_no_further_once_it_is_to_stop() {
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
        // One that never says anything.
        let (reader, _writer) = pipe();
        progress.stop();
        let told = stoppable(reader, progress)
            .read(&mut [0])
            .expect_err("it is to stop");
        assert_eq!(told.to_string(), "interrupted");
    }
}
