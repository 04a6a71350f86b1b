//! `cargo xtask bench build`: builds images of the same trees with pext4 and with the other tools
//! that make them, one after another on this machine.
//!
//! Nothing is installed: mke2fs is searched for, the others are used if their paths are given, and
//! missing ones are named. Runs alternate between the contenders, so that a busy moment affects
//! all. A figure is the best of a contender's runs and covers the whole process. Memory is the
//! largest resident size, sampled during the first run; no other run is sampled, since sampling
//! takes a processor. e2fsck checks every first image of a contender; a complaint about an image of
//! pext4, or no image, is an error.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::{built, cargo, execute, workspace};

/// Interval between two samples of a process.
const LOOK: Duration = Duration::from_millis(1);

const HELP: &str = "\
cargo xtask bench build [OPTION]...
  --folder FOLDER    where trees and images are made (/dev/shm)
  --runs COUNT       how often everybody runs (3)
  --mkext4 PROGRAM   the example `mkfs` of the crate mkext4 0.0.3, built for release
  --tar2ext4 PROGRAM hcsshim's tar2ext4
  --only NAME        one workload: small, flat, large or million
  --json             for programs
";

/// The options of the benchmark.
struct Options {
    folder: PathBuf,
    runs: usize,
    mkext4: Option<PathBuf>,
    tar2ext4: Option<PathBuf>,
    only: Option<String>,
    json: bool,
}

/// Runs the benchmark with these command-line arguments.
pub fn run(words: &[&str]) -> Result<()> {
    let ["build", rest @ ..] = words else {
        bail!("{HELP}");
    };
    let options = parse(rest)?;
    let program = pext4()?;
    let scratch = options
        .folder
        .join(format!("pext4-bench-{}", std::process::id()));
    fs::create_dir_all(&scratch).with_context(|| scratch.display().to_string())?;
    let measured = measure_all(&options, &program, &scratch);
    fs::remove_dir_all(&scratch).with_context(|| scratch.display().to_string())?;
    let rows = measured?;
    if options.json {
        print!("{}", json(&rows));
    } else {
        print!("{}", table(&rows));
    }
    Ok(())
}

fn parse(words: &[&str]) -> Result<Options> {
    let mut options = Options {
        folder: PathBuf::from("/dev/shm"),
        runs: 3,
        mkext4: None,
        tar2ext4: None,
        only: None,
        json: false,
    };
    let mut words = words.iter();
    while let Some(&word) = words.next() {
        if word == "--json" {
            options.json = true;
            continue;
        }
        let Some(&value) = words.next() else {
            bail!("`{word}` wants a value, or is not known\n\n{HELP}");
        };
        match word {
            "--folder" => options.folder = value.into(),
            "--runs" => options.runs = value.parse().context("--runs")?,
            "--mkext4" => options.mkext4 = Some(value.into()),
            "--tar2ext4" => options.tar2ext4 = Some(value.into()),
            "--only" => options.only = Some(value.to_owned()),
            _ => bail!("unknown option `{word}`\n\n{HELP}"),
        }
    }
    Ok(options)
}

fn pext4() -> Result<PathBuf> {
    execute(&mut cargo(&[
        "build",
        "--quiet",
        "--release",
        "--package",
        "pext4",
    ]))?;
    Ok(built(workspace(), "pext4"))
}

/// A tree, and the size of the image that it needs.
struct Workload {
    name: &'static str,
    what: &'static str,
    bytes: u64,
    inodes: u64,
    make: fn(&Path) -> Result<()>,
}

const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "small",
        what: "80,000 files of 1 KiB in 800 directories",
        bytes: 1536 << 20,
        inodes: 90_000,
        make: |root| files(root, 800, 100, 1024),
    },
    Workload {
        name: "flat",
        what: "20,000 empty files in one directory",
        bytes: 512 << 20,
        inodes: 24_000,
        make: |root| files(root, 1, 20_000, 0),
    },
    Workload {
        name: "large",
        what: "4 GiB in 4,000 files",
        bytes: 5 << 30,
        inodes: 8_000,
        make: |root| files(root, 40, 100, (4 << 30) / 4000),
    },
    Workload {
        name: "million",
        what: "1,000,000 empty files in 1,000 directories",
        bytes: 2 << 30,
        inodes: 1_100_000,
        make: |root| files(root, 1000, 1000, 0),
    },
];

/// Creates directories of files; the bytes of a file do not repeat.
fn files(root: &Path, directories: u64, each: u64, size: usize) -> Result<()> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut content = vec![0; size];
    for chunk in content.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    for directory in 0..directories {
        let folder = root.join(format!("directory-{directory:04}"));
        fs::create_dir_all(&folder)?;
        for file in 0..each {
            let path = folder.join(format!("file-{file:06}"));
            fs::File::create(path)?.write_all(&content)?;
        }
    }
    Ok(())
}

/// Builds the command that makes an image; the arguments are the source and the image.
type Making = dyn Fn(&Path, &Path) -> Command;

/// A tool that makes images, and its command.
struct Contender {
    name: &'static str,
    role: Role,
    from_archive: bool,
    command: Box<Making>,
}

/// What a contender is here for.
#[derive(Clone, Copy)]
enum Role {
    /// It is pext4 itself.
    Ours,
    /// pext4 is compared with it.
    Reference {
        /// The share of this contender's time that pext4 may take.
        target_share: f64,
    },
}

impl Role {
    fn target_share(self) -> Option<f64> {
        match self {
            Self::Ours => None,
            Self::Reference { target_share } => Some(target_share),
        }
    }
}

impl Contender {
    fn is_ours(&self) -> bool {
        matches!(self.role, Role::Ours)
    }
}

/// The figures of one contender.
struct Row {
    workload: &'static str,
    what: &'static str,
    contender: &'static str,
    seconds: f64,
    memory: u64,
    /// pext4's time divided by this contender's.
    ratio: Option<f64>,
    /// The most that this may be.
    target_share: Option<f64>,
}

fn contenders(options: &Options, program: &Path, workload: &Workload) -> Vec<Contender> {
    let mut contenders = vec![pext4_build("pext4 build", program, false)];
    if workload.name == "million" {
        return contenders;
    }
    contenders.push(mke2fs(workload));
    if let Some(program) = &options.mkext4 {
        contenders.push(mkext4(program, workload));
    }
    if let Some(other) = &options.tar2ext4 {
        contenders.push(pext4_build("pext4 build, tar", program, true));
        contenders.push(tar2ext4(other));
    }
    contenders
}

fn pext4_build(name: &'static str, program: &Path, from_archive: bool) -> Contender {
    let program = program.to_owned();
    Contender {
        name,
        role: Role::Ours,
        from_archive,
        command: Box::new(move |source, image| {
            let mut command = Command::new(&program);
            // The others do not wait for the disk either, except mke2fs.
            command
                .args(["build", "--quiet", "--force", "--no-sync"])
                .arg(image)
                .arg(source);
            command
        }),
    }
}

fn mke2fs(workload: &Workload) -> Contender {
    let (bytes, inodes) = (workload.bytes, workload.inodes);
    Contender {
        name: "mke2fs -d",
        role: Role::Reference { target_share: 0.3 },
        from_archive: false,
        command: Box::new(move |source, image| {
            let mut command = Command::new("mke2fs");
            command
                .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-N"])
                .arg(inodes.to_string());
            command
                .arg("-d")
                .arg(source)
                .arg(image)
                .arg(format!("{}k", bytes >> 10));
            command
        }),
    }
}

fn mkext4(program: &Path, workload: &Workload) -> Contender {
    let (program, bytes) = (program.to_owned(), workload.bytes);
    Contender {
        name: "mkext4",
        role: Role::Reference { target_share: 0.6 },
        from_archive: false,
        command: Box::new(move |source, image| {
            let mut command = Command::new(&program);
            command.arg(source).arg(image).arg(bytes.to_string());
            command
        }),
    }
}

fn tar2ext4(program: &Path) -> Contender {
    let program = program.to_owned();
    Contender {
        name: "tar2ext4",
        role: Role::Reference { target_share: 0.3 },
        from_archive: true,
        command: Box::new(move |source, image| {
            let mut command = Command::new(&program);
            command.arg("-i").arg(source).arg("-o").arg(image);
            command
        }),
    }
}

fn measure_all(options: &Options, program: &Path, scratch: &Path) -> Result<Vec<Row>> {
    for (what, given) in [
        ("mkext4 (--mkext4 PROGRAM)", options.mkext4.is_some()),
        ("tar2ext4 (--tar2ext4 PROGRAM)", options.tar2ext4.is_some()),
    ] {
        if !given {
            eprintln!("left out: {what}");
        }
    }
    let mut rows = Vec::new();
    for workload in &WORKLOADS {
        if options
            .only
            .as_deref()
            .is_some_and(|only| only != workload.name)
        {
            continue;
        }
        rows.extend(measure(options, program, workload, scratch)?);
    }
    ensure!(!rows.is_empty(), "there is no such workload\n\n{HELP}");
    Ok(rows)
}

fn measure(
    options: &Options,
    program: &Path,
    workload: &Workload,
    scratch: &Path,
) -> Result<Vec<Row>> {
    let tree = scratch.join("tree");
    let archive = scratch.join("tree.tar");
    let image = scratch.join("image");
    eprintln!("{}: {}", workload.name, workload.what);
    (workload.make)(&tree).with_context(|| tree.display().to_string())?;
    let contenders = contenders(options, program, workload);
    if contenders.iter().any(|contender| contender.from_archive) {
        let mut tar = Command::new("tar");
        execute(
            tar.arg("-C")
                .arg(&tree)
                .args(["--sort=name", "-cf"])
                .arg(&archive)
                .arg("."),
        )?;
    }
    let mut best: Vec<Option<(f64, u64)>> = vec![None; contenders.len()];
    for run in 0..options.runs {
        for (contender, best) in contenders.iter().zip(&mut best) {
            let source = if contender.from_archive {
                &archive
            } else {
                &tree
            };
            let _ = fs::remove_file(&image);
            let figures = time(&mut (contender.command)(source, &image), run == 0);
            let (seconds, memory) = match figures {
                Ok(figures) => figures,
                Err(error) if contender.is_ours() => return Err(error),
                Err(error) => {
                    eprintln!("left out: {}: {error:#}", contender.name);
                    continue;
                }
            };
            if run == 0 {
                check(&image, contender)?;
            }
            let (least, most) = best.unwrap_or((f64::INFINITY, 0));
            *best = Some((least.min(seconds), most.max(memory)));
        }
    }
    fs::remove_dir_all(&tree)?;
    let _ = fs::remove_file(&archive);
    let _ = fs::remove_file(&image);
    Ok(rows(workload, &contenders, &best))
}

fn rows(workload: &Workload, contenders: &[Contender], best: &[Option<(f64, u64)>]) -> Vec<Row> {
    let own = |from_archive| {
        let place = contenders
            .iter()
            .position(|contender| contender.is_ours() && contender.from_archive == from_archive)?;
        best[place].map(|(seconds, _)| seconds)
    };
    contenders
        .iter()
        .zip(best)
        .filter_map(|(contender, best)| {
            let (seconds, memory) = (*best)?;
            let target_share = contender.role.target_share();
            let ratio = target_share
                .and(own(contender.from_archive))
                .map(|own| own / seconds);
            Some(Row {
                workload: workload.name,
                what: workload.what,
                contender: contender.name,
                seconds,
                memory,
                ratio,
                target_share,
            })
        })
        .collect()
}

/// Runs a command; returns its seconds and, if `looks`, the largest resident size that was sampled.
fn time(command: &mut Command, looks: bool) -> Result<(f64, u64)> {
    let start = Instant::now();
    let mut child = command
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("starting {command:?}"))?;
    let memory = if looks { watch(&child) } else { 0 };
    let status = child.wait()?;
    let seconds = start.elapsed().as_secs_f64();
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok((seconds, memory))
}

/// Samples a process until it has ended; returns the largest resident size.
fn watch(child: &Child) -> u64 {
    let path = format!("/proc/{}/status", child.id());
    let mut most = 0;
    loop {
        let status = fs::read_to_string(&path).unwrap_or_default();
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .and_then(|rest| rest.split_whitespace().next())
                .map(str::to_owned)
        };
        // A process that has ended keeps its entry until its parent waits for it.
        if status.is_empty() || field("State:").is_some_and(|state| state == "Z") {
            return most;
        }
        let memory = field("VmHWM:").and_then(|kilobytes| kilobytes.parse::<u64>().ok());
        most = most.max(memory.unwrap_or(0) << 10);
        std::thread::sleep(LOOK);
    }
}

/// Has e2fsck check an image. Complaints are shown, and are an error if pext4 made the image.
fn check(image: &Path, contender: &Contender) -> Result<()> {
    let Ok(output) = Command::new("e2fsck").arg("-fn").arg(image).output() else {
        eprintln!("e2fsck is not installed, so the images are not checked");
        return Ok(());
    };
    if output.status.success() {
        return Ok(());
    }
    let name = contender.name;
    eprintln!(
        "e2fsck on {name}'s image:\n{}",
        String::from_utf8_lossy(&output.stdout)
    );
    ensure!(
        !contender.is_ours(),
        "e2fsck complains about {name}'s image"
    );
    Ok(())
}

fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut workload = "";
    for row in rows {
        if row.workload != workload {
            workload = row.workload;
            text += &format!("\n{}\n", row.what);
            text += &format!(
                "  {:<18}{:>10}{:>12}{:>14}{:>8}\n",
                "", "seconds", "memory", "pext4's share", "target"
            );
        }
        let share = row
            .ratio
            .map_or(String::new(), |ratio| format!("{ratio:.2}"));
        let target = row
            .target_share
            .map_or(String::new(), |target| format!("{target:.1}"));
        text += &format!(
            "  {:<18}{:>10.3}{:>8} MiB{share:>14}{target:>8}\n",
            row.contender,
            row.seconds,
            row.memory >> 20,
        );
    }
    text
}

fn json(rows: &[Row]) -> String {
    let rows: Vec<String> = rows
        .iter()
        .map(|row| {
            let ratio = row.ratio.map_or("null".to_owned(), |ratio| format!("{ratio:.4}"));
            format!(
                "  {{\"workload\": \"{}\", \"contender\": \"{}\", \"seconds\": {:.4}, \"memory\": {}, \
                 \"ratio\": {ratio}}}",
                row.workload, row.contender, row.seconds, row.memory
            )
        })
        .collect();
    format!("[\n{}\n]\n", rows.join(",\n"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Row, check, json, parse, pext4_build, table, tar2ext4};

    fn row() -> Row {
        Row {
            workload: "flat",
            what: "empty files",
            contender: "mke2fs -d",
            seconds: 2.0,
            memory: 5 << 20,
            ratio: Some(0.25),
            target_share: Some(0.3),
        }
    }

    #[test]
    fn figures_are_shown_in_both_ways() {
        let text = table(&[row()]);
        assert!(
            text.contains("empty files") && text.contains("2.000"),
            "{text}"
        );
        assert!(text.contains("0.25") && text.contains("5 MiB"), "{text}");
        assert!(json(&[row()]).contains("\"ratio\": 0.2500"));
    }

    #[test]
    fn a_complaint_about_an_image_of_ours_is_an_error() {
        // e2fsck complains that it is not there.
        let (image, program) = (Path::new("/none"), Path::new("none"));
        assert!(check(image, &tar2ext4(program)).is_ok());
        let error = check(image, &pext4_build("pext4 build", program, false));
        let text = error.unwrap_err().to_string();
        assert!(text.contains("pext4 build's image"), "{text}");
    }

    #[test]
    fn options_are_read() {
        let options = parse(&["--runs", "5", "--json", "--only", "flat"]).unwrap();
        assert!(options.json && options.runs == 5);
        assert!(parse(&["--runs"]).is_err());
        assert!(parse(&["--colour", "red"]).is_err());
    }
}
