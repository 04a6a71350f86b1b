//! The scheduling class of the calling thread.
//!
//! A thread of the scheduler's idle class (`SCHED_IDLE`, sched(7)) runs when no other thread wants
//! its core. The scheduler treats a core that runs only such a thread as free: it may place a
//! thread that wakes up there, which preempts the idle one at once.
//!
//! Leaving the class needs `CAP_SYS_NICE`, so a thread without it may not enter the class.

use std::io;

use rustix::thread::{CapabilitySet, capabilities};

/// Puts the calling thread into the idle class, or back into the normal one.
///
/// # Errors
///
/// `PermissionDenied` if the thread could not leave the idle class again, or the error of the
/// system. The class is unchanged then.
pub fn set_idle_class(is_idle: bool) -> io::Result<()> {
    if is_idle && !may_leave_idle_class()? {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    set_policy(if is_idle {
        libc::SCHED_IDLE
    } else {
        libc::SCHED_OTHER
    })
}

fn may_leave_idle_class() -> io::Result<bool> {
    Ok(capabilities(None)?
        .effective
        .contains(CapabilitySet::SYS_NICE))
}

/// Calls sched_setscheduler(2) directly, since musl's function of that name does nothing.
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

    use super::set_idle_class;

    /// The policy in `/proc`, the 41st field: 5 is the idle class.
    fn policy() -> u32 {
        let stat = fs::read_to_string("/proc/thread-self/stat").expect("Linux has it");
        let (_, fields) = stat.rsplit_once(')').expect("the command's name ends");
        let policy = fields.split_whitespace().nth(38).expect("it has 52 fields");
        policy.parse().expect("a number")
    }

    #[test]
    fn a_thread_that_may_leave_the_idle_class_enters_and_leaves_it() {
        thread::spawn(|| match set_idle_class(true) {
            Ok(()) => {
                assert_eq!(policy(), 5);
                set_idle_class(false).expect("it was allowed before");
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
