//! Progress of long work: shown on terminals while the work runs, and nowhere else.
//!
//! A fifo that the work reads or writes blocks it until the terminal has shown something, so the
//! tests do not depend on a clock.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::common::{Place, has, pext4, run, succeed};

/// More bytes than all buffers on the way hold.
const LARGE: usize = 8 << 20;

/// A word as the shell takes it.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.to_str().expect("text"))
}

/// A command of the shell on a terminal of its own, and what it shows there.
struct Terminal {
    child: Child,
    shown: ChildStdout,
    text: String,
}

impl Terminal {
    fn of(line: &str) -> Self {
        let line = format!("{} {line}", quoted(Path::new(env!("CARGO_BIN_EXE_pext4"))));
        // A command that shows nothing would block for ever, so this gives up after a minute.
        let mut child = Command::new("timeout")
            .args(["60", "script", "-q", "-e", "-c", &line, "/dev/null"])
            .env("TERM", "xterm")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it was tried before");
        Self {
            shown: child.stdout.take().expect("piped"),
            child,
            text: String::new(),
        }
    }

    /// Waits until this has been shown.
    fn wait_for(&mut self, words: &str) {
        let mut piece = [0; 4096];
        while !self.text.contains(words) {
            let length = self.shown.read(&mut piece).expect("a pipe");
            assert!(length > 0, "{words} was not shown: {}", self.text);
            self.text += &String::from_utf8_lossy(&piece[..length]);
        }
    }

    /// Waits until the command has succeeded. Returns everything that was shown.
    fn finish(mut self) -> String {
        let mut rest = Vec::new();
        self.shown.read_to_end(&mut rest).expect("a pipe");
        self.text += &String::from_utf8_lossy(&rest);
        let status = self.child.wait().expect("it is ours");
        assert!(status.success(), "{}", self.text);
        self.text
    }
}

fn fifo(place: &Place) -> PathBuf {
    let path = place.point.join("fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).expect("a fresh place");
    path
}

/// An archive of one large file.
fn archive() -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_size(LARGE as u64);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    let mut archive = tar::Builder::new(Vec::new());
    archive
        .append_data(&mut header, "large", &vec![7; LARGE][..])
        .expect("memory is enough");
    archive.into_inner().expect("memory is enough")
}

/// Gives a command half of an archive, and the rest when it has shown its progress.
fn feed(place: &Place, fifo: &Path, line: &str, words: &str) {
    let archive = archive();
    let mut terminal = Terminal::of(line);
    let mut input = File::options().write(true).open(fifo).expect("it is ours");
    if input.write_all(&archive[..LARGE / 2]).is_err() {
        panic!("it was not read: {}", terminal.finish());
    }
    terminal.wait_for(words);
    input.write_all(&archive[LARGE / 2..]).expect("it is read");
    drop(input);
    terminal.finish();
    let stat = succeed(pext4(["stat", "--json"]).arg(&place.image).arg("/large"));
    assert!(stat.contains(&format!("\"size\": {LARGE}")), "{stat}");
    place.check();
}

#[test]
fn building_and_editing_show_what_they_have_read() {
    if !has("script") || !has("timeout") {
        return;
    }
    let place = Place::empty();
    let fifo = fifo(&place);
    let (image, input) = (quoted(&place.image), quoted(&fifo));
    feed(&place, &fifo, &format!("build {image} {input}"), "reading ");
    succeed(pext4(["mkfs", "-q", "--force", "--size", "32M"]).arg(&place.image));
    let edit = format!("edit {image} --tar {input}");
    feed(&place, &fifo, &edit, "changing  1 file, ");
}

#[test]
fn exporting_shows_what_it_has_written() {
    if !has("script") || !has("timeout") {
        return;
    }
    let place = Place::empty();
    let fifo = fifo(&place);
    fs::write(place.point.join("large"), vec![7; LARGE]).expect("a fresh place");
    let mut build = pext4(["build", "-q", "--exclude=fifo"]);
    succeed(build.arg(&place.image).arg(&place.point));
    let line = format!("export {} > {}", quoted(&place.image), quoted(&fifo));
    let mut terminal = Terminal::of(&line);
    let mut output = File::open(&fifo).expect("it is ours");
    terminal.wait_for("exporting ");
    let mut archive = Vec::new();
    output.read_to_end(&mut archive).expect("a pipe");
    terminal.finish();
    assert!(archive.len() > LARGE);
}

#[test]
fn nothing_is_shown_in_a_pipe() {
    let place = Place::empty();
    let large = place.point.join("large");
    fs::write(&large, vec![7; LARGE]).expect("a fresh place");
    let image = &place.image;
    let build = run(pext4(["build", "--free", "64M"])
        .arg(image)
        .arg(&place.point));
    let put = run(pext4(["put"]).arg(image).arg(&large).arg("/again"));
    let check = run(pext4(["check"]).arg(image));
    let get = run(pext4(["get"]).arg(image).arg("/again").arg(&place.point));
    let export = run(pext4(["export"]).arg(image));
    let resize = run(pext4(["resize"]).arg(image).arg("+64M"));
    for output in [build, put, check, get, export, resize] {
        assert!(output.status.success(), "{output:?}");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(told, "");
    }
}
