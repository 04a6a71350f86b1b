//! Every decoder of on-disk structures.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pext4_testkit::fuzz::ondisk(data));
