//! Reads a script.

use std::io::{self, Read};

/// The maximum length of a script in bytes. All of it is kept in memory.
const MAX_BYTES: u64 = 64 << 20;

/// Reads a script to its end.
///
/// # Errors
///
/// Those of the file; it is longer than any script, as `/dev/zero` is.
pub fn read(file: impl Read) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        let problem = format!("a script has at most {} MiB", MAX_BYTES >> 20);
        return Err(io::Error::other(problem));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn a_script_without_an_end_is_not_read_for_ever() {
        assert_eq!(read(&b"rm /a\n"[..]).expect("memory"), b"rm /a\n");
        let told = read(std::io::repeat(0)).expect_err("it has no end");
        assert!(told.to_string().contains("at most 64 MiB"), "{told}");
    }
}
