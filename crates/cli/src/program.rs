//! This program, which starts itself as a server or as a task of the lab.

use std::env;
use std::path::PathBuf;

/// The path by which this program is started again. It is the program's own, so that the process
/// has its name; if the file was replaced, that path does not work, but the kernel's link does.
pub fn path() -> PathBuf {
    let own = env::current_exe().ok().filter(|program| program.exists());
    own.unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}
