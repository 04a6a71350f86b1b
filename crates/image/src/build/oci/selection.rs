//! Selects one image among all that a layout has, by name and platform.

use std::collections::BTreeSet;
use std::path::Path;

use rustix::io::Errno;

use super::Descriptor;
use super::platform::Platform;
use crate::build::error::{Error, Result};

/// Selects an image of a layout.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::build) struct ImageSelector<'a> {
    pub platform: Option<&'a Platform>,
    pub tag: Option<&'a str>,
}

impl ImageSelector<'_> {
    /// Whether an image has the selected name.
    pub(super) fn names(&self, image: &Descriptor) -> bool {
        self.tag.is_none_or(|tag| image.annotations.have(tag))
    }

    /// Whether an image is for the selected platform.
    fn fits(&self, image: &Descriptor) -> bool {
        let Some(selector) = self.platform else {
            return true;
        };
        let platform = image.platform.as_ref();
        platform.is_some_and(|platform| platform.fits(selector))
    }

    /// Whether an image is for the selected platform, or does not say for which it is.
    pub(super) fn may_fit(&self, image: &Descriptor) -> bool {
        image.platform.is_none() || self.fits(image)
    }

    /// The image that is selected among `found`, the images of the index at `path`.
    ///
    /// # Errors
    ///
    /// None or several are selected. The message shows the names or platforms to choose from, or
    /// names the document that is missing if the selected image may be one of which that tells.
    pub(super) fn select(&self, path: &Path, found: Vec<Descriptor>) -> Result<Descriptor> {
        let unsound = |problem: String| Err(Error::unsound(path, problem));
        if found.is_empty() {
            return unsound("it names no image".to_owned());
        }
        let tagged: Vec<&Descriptor> = found.iter().filter(|image| self.names(image)).collect();
        if tagged.is_empty() {
            // Images of an index may have names of their own.
            check_complete(found.iter().filter(|image| image.is_index()))?;
            let names = tags(found.iter());
            return unsound(match names.is_empty() {
                true => "it has no image of that tag: none of its images has one".to_owned(),
                false => format!("it has no image of that tag, but:{}", listed(&names)),
            });
        }
        let fitting: Vec<&Descriptor> = tagged
            .iter()
            .copied()
            .filter(|image| self.fits(image))
            .collect();
        match fitting.as_slice() {
            // The same image may have several names.
            [first, rest @ ..] if rest.iter().all(|other| other.digest == first.digest) => {
                Ok((*first).clone())
            }
            [] => {
                check_complete(tagged.iter().copied())?;
                if tagged.len() == 1 && tagged[0].platform.is_none() {
                    // The only image, and its platform is unknown.
                    return Ok(tagged[0].clone());
                }
                let names = platforms(&tagged);
                unsound(match names.is_empty() {
                    true => "it does not say for which platforms its images are".to_owned(),
                    false => {
                        let names = listed(&names);
                        format!("it has no image for that platform, but for:{names}")
                    }
                })
            }
            _ => match choices(&fitting) {
                Some(options) => unsound(format!("it has several images; {options}")),
                None => {
                    check_complete(fitting)?;
                    unsound("it has several images, and nothing that tells them apart".to_owned())
                }
            },
        }
    }
}

/// Fails with the first document that is missing of these images.
fn check_complete<'d>(images: impl IntoIterator<Item = &'d Descriptor>) -> Result<()> {
    let missing = images.into_iter().find_map(|image| image.missing.as_ref());
    missing.map_or(Ok(()), |path| {
        Err(Error::source(path, "open it", Errno::NOENT))
    })
}

/// What chooses one of several images that fit. An option helps only if they differ in it.
fn choices(images: &[&Descriptor]) -> Option<String> {
    let options = [
        ("--tag", tags(images.iter().copied())),
        ("--platform", platforms(images)),
    ];
    let options: Vec<String> = options
        .iter()
        .filter(|(_, names)| names.len() > 1)
        .map(|(option, names)| format!("choose one with {option}:{}", listed(names)))
        .collect();
    (!options.is_empty()).then(|| options.join(", or "))
}

/// The distinct names of images.
fn tags<'a>(images: impl Iterator<Item = &'a Descriptor>) -> BTreeSet<String> {
    images
        .filter_map(|image| image.annotations.shown())
        .map(|name| name.escape_default().to_string())
        .collect()
}

/// The distinct platforms of images.
fn platforms(images: &[&Descriptor]) -> BTreeSet<String> {
    images
        .iter()
        .filter_map(|image| image.platform.as_ref())
        .map(ToString::to_string)
        .collect()
}

/// Each name with a space before it.
fn listed(names: &BTreeSet<String>) -> String {
    names.iter().map(|name| format!(" {name}")).collect()
}
