//! Where a server says what its callers cannot be told.
//!
//! A system call learns an errno; which block of the image was corrupt, or that the device failed,
//! goes here. Each text is said once, and only so many different ones, so that a broken image does
//! not fill the log.

use std::collections::HashSet;

use pext4_sync::Mutex;
use pext4_sync::order::Class;

/// How many different texts are said before silence.
const MOST: usize = 100;

/// Says each complaint once.
pub struct Complaints {
    said: Mutex<HashSet<String>>,
    say: Box<dyn Fn(&str) + Send + Sync>,
}

impl Complaints {
    /// Complaints that go to `say`.
    pub fn new(say: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self {
            said: Mutex::new(Class::Leaf, HashSet::new()),
            say: Box::new(say),
        }
    }

    /// Says `text`, unless it was said before or there were too many.
    pub fn say(&self, text: &str) {
        let count = {
            let mut said = self.said.lock();
            if said.len() >= MOST || !said.insert(text.to_owned()) {
                return;
            }
            said.len()
        };
        (self.say)(text);
        if count == MOST {
            (self.say)("further errors are not reported");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Complaints, MOST};
    use std::sync::{Arc, Mutex};

    #[test]
    fn says_each_text_once_and_ends_after_many() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ear = Arc::clone(&heard);
        let complaints = Complaints::new(move |text| ear.lock().unwrap().push(text.to_owned()));
        complaints.say("corrupt inode 12");
        complaints.say("corrupt inode 12");
        assert_eq!(heard.lock().unwrap().as_slice(), ["corrupt inode 12"]);
        for number in 0..2 * MOST {
            complaints.say(&format!("corrupt block {number}"));
        }
        let heard = heard.lock().unwrap();
        assert_eq!(heard.len(), MOST + 1);
        assert_eq!(heard[MOST], "further errors are not reported");
    }
}
