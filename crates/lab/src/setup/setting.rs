//! Settings of the scaling mechanisms, as the user lists them.

use anyhow::Result;
use pext4_fs::options::{SWITCHES, Scaling};

/// A setting of the scaling mechanisms and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The name as the user gave it.
    pub name: String,
    /// The values of all switches.
    pub scaling: Scaling,
}

impl Setting {
    /// The values for `-o scaling=` of a mount. A name may not contain its changes, as in an
    /// ablation.
    #[must_use]
    pub fn words(&self) -> String {
        self.scaling.to_string().replace(',', ":")
    }
}

/// Parses a list of settings: `base,seeds,full` are three, `full,-try-lock` is one. A word that
/// names a setting begins a new one; any other word changes the one before it.
///
/// # Errors
///
/// If a word is not understood; the message lists the valid ones.
pub fn settings(text: &str) -> Result<Vec<Setting>> {
    let mut groups: Vec<String> = Vec::new();
    for word in text
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
    {
        match groups.last_mut() {
            Some(last) if Scaling::named(word).is_none() => {
                last.push(',');
                last.push_str(word);
            }
            _ => groups.push(word.to_owned()),
        }
    }
    if groups.is_empty() {
        groups.push("full".to_owned());
    }
    let parsed = groups.into_iter().map(|name| {
        let scaling = Scaling::parse(&name)?;
        Ok(Setting { name, scaling })
    });
    parsed.collect()
}

/// `full`, and `full` without each mechanism in turn. A mechanism whose value in `full` equals that
/// in `base` is left out: there is nothing to switch off.
///
/// # Errors
///
/// None for settings that exist.
pub fn ablation() -> Result<Vec<Setting>> {
    let mut all = settings("full")?;
    for switch in &SWITCHES {
        let name = format!("-{}", switch.name);
        let scaling = Scaling::parse(&format!("full,{name}"))?;
        if scaling != Scaling::FULL {
            all.push(Setting { name, scaling });
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::{Scaling, ablation, settings};

    fn names(text: &str) -> Vec<String> {
        settings(text)
            .unwrap()
            .into_iter()
            .map(|setting| setting.name)
            .collect()
    }

    #[test]
    fn a_named_word_begins_a_setting_and_others_change_it() {
        assert_eq!(names("base,seeds,full"), ["base", "seeds", "full"]);
        assert_eq!(names("full,-try-lock"), ["full,-try-lock"]);
        assert_eq!(
            names("base, full,-try-lock,seeds"),
            ["base", "full,-try-lock", "seeds"]
        );
        assert_eq!(names(""), ["full"]);
        let without = &settings("full,-try-lock").unwrap()[0];
        assert_eq!(without.scaling.busy_groups, Scaling::BASE.busy_groups);
    }

    #[test]
    fn what_is_unknown_lists_what_there_is() {
        let told = settings("full,-fast-lock").unwrap_err().to_string();
        assert!(
            told.contains("try-lock") && told.contains("seeds"),
            "{told}"
        );
    }

    #[test]
    fn an_ablation_takes_every_mechanism_away_once() {
        let all = ablation().unwrap();
        assert_eq!(all[0].scaling, Scaling::FULL);
        assert!(all.len() > 8);
        for setting in &all[1..] {
            assert_ne!(setting.scaling, Scaling::FULL, "{}", setting.name);
        }
    }

    #[test]
    fn a_mount_runs_with_what_the_library_runs_with() {
        let mut all = ablation().unwrap();
        all.extend(settings("base,seeds,full,base,+try-lock").unwrap());
        for setting in all {
            let words = setting.words();
            assert!(
                words.starts_with(|first: char| first.is_alphabetic()),
                "{words}"
            );
            assert_eq!(Scaling::parse(&words).unwrap(), setting.scaling, "{words}");
            assert!(!words.contains(','), "-o divides there: {words}");
        }
    }
}
