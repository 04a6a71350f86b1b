//! Other people's tests of mounted file systems, on mounts of pext4: pjdfstest (what POSIX says of
//! names, permissions and times) and fsx (random reads and writes of one file by every call, each
//! compared with what was written).
//!
//! Each format gets an image, which e2fsck checks at the end. Whatever happens, no mount is left.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{built, cargo, execute, is_installed, is_root, workspace};

/// The programs, each with what installs it.
const PROGRAMS: [(&str, &str); 2] = [
    ("pjdfstest", "cargo install pjdfstest"),
    ("fsx", "cargo install fsx"),
];

/// The formats, as mke2fs makes them. Their times are finer than the pauses of pjdfstest.
const FORMATS: [&[&str]; 5] = [
    &["-t", "ext4"],
    &["-t", "ext4", "-O", "inline_data,ea_inode,quota,project"],
    &["-t", "ext4", "-O", "bigalloc", "-C", "16384"],
    &["-t", "ext3", "-I", "256"],
    &["-t", "ext2", "-I", "256", "-b", "1024"],
];

/// All that pjdfstest can test on Linux, as the users whom every Debian has.
const PJDFSTEST_SETTINGS: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
[dummy_auth]
entries = [["nobody", "nogroup"], ["games", "games"]]
"#;

const FSX_SETTINGS: &str = "
flen = 1000000
[weights]
close_open = 1.0
invalidate = 1.0
mapread = 10.0
mapwrite = 10.0
read = 10.0
write = 10.0
truncate = 5.0
fsync = 1.0
fdatasync = 1.0
posix_fallocate = 3.0
punch_hole = 3.0
sendfile = 2.0
posix_fadvise = 1.0
copy_file_range = 3.0
";

/// Calls of one run of fsx.
const FSX_CALLS: &str = "8000";

/// Runs both on mounts of five formats, fsx with this many seeds.
pub fn run(seeds: u64) -> Result<()> {
    if !is_root() {
        bail!("pjdfstest changes users, so this wants root");
    }
    for (program, how) in PROGRAMS {
        if !is_installed(program) {
            bail!("`{program}` is missing: {how}");
        }
    }
    execute(&mut cargo(&["build", "--release", "-p", "pext4"]))?;
    let folder = workspace().join("target/suites");
    std::fs::create_dir_all(folder.join("mount"))?;
    std::fs::write(folder.join("pjdfstest.toml"), PJDFSTEST_SETTINGS)?;
    std::fs::write(folder.join("fsx.toml"), FSX_SETTINGS)?;
    for format in FORMATS {
        eprintln!("{}", format.join(" "));
        on_format(&folder, format, seeds).with_context(|| format.join(" "))?;
    }
    Ok(())
}

fn on_format(folder: &Path, format: &[&str], seeds: u64) -> Result<()> {
    let image = folder.join("image");
    let file = std::fs::File::create(&image)?;
    file.set_len(256 << 20)?;
    execute(
        Command::new("mke2fs")
            .args(["-q", "-F"])
            .args(format)
            .arg(&image),
    )?;
    let mount = Mount::new(&image, folder.join("mount"))?;
    let mut pjdfstest = Command::new("pjdfstest");
    pjdfstest.arg("-c").arg(folder.join("pjdfstest.toml"));
    execute(pjdfstest.arg("-p").arg(&mount.directory))?;
    for seed in 1..=seeds {
        let mut fsx = Command::new("fsx");
        fsx.args(["-q", "-N", FSX_CALLS, "-S", &seed.to_string()]);
        fsx.arg("-P")
            .arg(folder)
            .arg("-f")
            .arg(folder.join("fsx.toml"));
        execute(fsx.arg(mount.directory.join(format!("file-{seed}"))))?;
    }
    drop(mount);
    execute(Command::new("e2fsck").arg("-fn").arg(&image))
}

/// A mount by the program that was built, which other users may enter. Dropping it unmounts.
struct Mount {
    directory: PathBuf,
}

impl Mount {
    fn new(image: &Path, directory: PathBuf) -> Result<Self> {
        let mut mount = pext4("mount");
        mount.args(["-o", "allow_other"]).arg(image).arg(&directory);
        execute(&mut mount)?;
        Ok(Self { directory })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = execute(pext4("umount").arg(&self.directory)) {
            eprintln!("{error:#}");
        }
    }
}

fn pext4(command: &str) -> Command {
    let mut program = Command::new(built(workspace(), "pext4"));
    program.arg(command);
    program
}
