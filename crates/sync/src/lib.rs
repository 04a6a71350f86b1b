//! The only door to locks, atomics and threads in pext4.
