//! Whether the calling thread gives way to every other one.
//!
//! A thread of the scheduler's idle class (`SCHED_IDLE`, sched(7)) runs when nobody else wants its
//! core. A core where only such a thread runs counts as free: whoever wakes up may be put there, and
//! takes over at once.
//!
//! Leaving the class again needs `CAP_SYS_NICE`, so a thread without it is not let in.

use std::io;

use rustix::thread::{CapabilitySet, capabilities};

/// Makes the calling thread give way to all others, or be one of them again.
///
/// # Errors
///
/// The thread could not come back (`PermissionDenied`), or what the system says. Nothing has changed
/// then.
pub fn defer_to_others(defers: bool) -> io::Result<()> {
    if defers && !may_come_back()? {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    set_policy(if defers {
        libc::SCHED_IDLE
    } else {
        libc::SCHED_OTHER
    })
}

fn may_come_back() -> io::Result<bool> {
    Ok(capabilities(None)?
        .effective
        .contains(CapabilitySet::SYS_NICE))
}

/// The system call itself, since the C library's function of that name does nothing with musl.
#[allow(unsafe_code)]
fn set_policy(policy: libc::c_int) -> io::Result<()> {
    const THIS_THREAD: libc::pid_t = 0;
    // The kernel's `struct sched_param`: one number, which is zero for these policies.
    let priority: libc::c_int = 0;
    // SAFETY: the kernel reads one number through the pointer, which outlives the call, and writes
    // nothing.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            THIS_THREAD,
            policy,
            &raw const priority,
        )
    };
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io, thread};

    use super::defer_to_others;

    /// The policy in `/proc`, the 41st field: 5 is the idle class.
    fn policy() -> u32 {
        let stat = fs::read_to_string("/proc/thread-self/stat").expect("Linux has it");
        let (_, fields) = stat.rsplit_once(')').expect("the command's name ends");
        let policy = fields.split_whitespace().nth(38).expect("it has 52 fields");
        policy.parse().expect("a number")
    }

    #[test]
    fn a_thread_that_may_come_back_gives_way_and_comes_back() {
        thread::spawn(|| match defer_to_others(true) {
            Ok(()) => {
                assert_eq!(policy(), 5);
                defer_to_others(false).expect("it was allowed before");
                assert_eq!(policy(), 0);
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
                assert_eq!(policy(), 0);
            }
        })
        .join()
        .expect("no panic");
    }
}
