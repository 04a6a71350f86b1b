//! Ids of users and groups, as people and archives state them.

/// The id that is nobody's: chown(2) takes it for "no change", and no process can have it.
const NOBODY: u32 = u32::MAX;

/// The id, if a file can belong to it.
///
/// # Errors
///
/// It is the one that stands for no user and no group.
pub fn check_id(id: u32) -> Result<u32, String> {
    match id {
        NOBODY => Err(format!("{NOBODY} is the id of no user and no group")),
        id => Ok(id),
    }
}

#[cfg(test)]
mod tests {
    use super::check_id;

    #[test]
    fn all_ids_but_the_last_have_owners() {
        for id in [0, 1000, 65_534, u32::MAX - 1] {
            assert_eq!(check_id(id), Ok(id));
        }
        let told = check_id(u32::MAX).unwrap_err();
        assert!(told.starts_with("4294967295 is"), "{told}");
    }
}
