//! All images of a layout: what its index leads to, and other indexes in it.
//!
//! Indexes lie in indexes and may be named over and over, by whoever wants to keep us busy: each is followed once for
//! every name that it goes by, and there is a bound on how many, how deep and how large they are. Manifests that are
//! about other manifests are left out.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::{Blob, Descriptor, ImageSelector, Index, Manifest, PlatformDescriptor, blob, parse};
use crate::build::error::{Error, Result};
use crate::build::progress::Progress;

/// Indexes within indexes.
const MAX_INDEX_DEPTH: u32 = 4;
/// Indexes that are followed, each once for every name that it goes by.
const MAX_INDEXES: usize = 1000;
/// Bytes of documents together.
const MAX_TOTAL_DOCUMENT_BYTES: u64 = 64 << 20;
/// Images among which one is chosen.
const MAX_IMAGES: usize = 10_000;
/// Bytes of an image's name, which all images in an index may have from it.
const MAX_NAME_BYTES: usize = 1024;

/// All images that an index leads to; where a platform is wanted, with theirs as far as they say it.
pub(super) fn all(
    layout: &Path,
    path: &Path,
    index: Index,
    wanted: ImageSelector<'_>,
    progress: &Progress,
) -> Result<Vec<Descriptor>> {
    let mut collection = Collection::new(layout, progress);
    collection.add(path, index, MAX_INDEX_DEPTH, None)?;
    if wanted.platform.is_some() {
        collection.read_missing_platforms(path, wanted)?;
    }
    Ok(collection.found)
}

struct Collection<'a> {
    layout: &'a Path,
    progress: &'a Progress,
    found: Vec<Descriptor>,
    /// Indexes that were followed, by digest and the name that their images have from them.
    followed: HashSet<(String, Option<String>)>,
    /// Bytes of documents that may still be read.
    left: u64,
}

impl<'a> Collection<'a> {
    fn new(layout: &'a Path, progress: &'a Progress) -> Self {
        Self {
            layout,
            progress,
            found: Vec::new(),
            followed: HashSet::new(),
            left: MAX_TOTAL_DOCUMENT_BYTES,
        }
    }

    /// Takes over what an index names.
    fn add(&mut self, path: &Path, index: Index, depth: u32, name: Option<&str>) -> Result<()> {
        for mut descriptor in index.manifests {
            self.progress.check()?;
            // An index's name is that of all images in it.
            let own = descriptor.annotations.name.as_deref().or(name);
            if own.is_some_and(|name| name.len() > MAX_NAME_BYTES) {
                let problem = format!("the name of an image has more than {MAX_NAME_BYTES} bytes");
                return Err(Error::unsound(path, problem));
            }
            descriptor.annotations.name = own.map(str::to_owned);
            let is_index = descriptor.media_type.contains("index")
                || descriptor.media_type.contains("manifest.list");
            let platform = descriptor.platform.as_ref();
            if is_index {
                self.follow(path, &descriptor, depth)?;
            } else if platform.is_none_or(|platform| platform.os != "unknown") {
                if self.found.len() == MAX_IMAGES {
                    let problem = format!("it leads to more than {MAX_IMAGES} images");
                    return Err(Error::unsound(path, problem));
                }
                self.found.push(descriptor);
            }
        }
        Ok(())
    }

    /// Takes over what an index in an index names, once for each name that it goes by.
    fn follow(&mut self, path: &Path, descriptor: &Descriptor, depth: u32) -> Result<()> {
        if depth == 0 {
            return Err(Error::unsound(path, "indexes lie too deep in indexes"));
        }
        let name = descriptor.annotations.name.as_deref();
        let key = (descriptor.digest.clone(), name.map(str::to_owned));
        if !self.followed.insert(key) {
            return Ok(());
        }
        if self.followed.len() > MAX_INDEXES {
            let problem = format!("it leads to more than {MAX_INDEXES} indexes");
            return Err(Error::unsound(path, problem));
        }
        let (blob, text) = self.document(path, descriptor)?;
        let inner = parse(&blob.path, &text)?;
        self.add(&blob.path, inner, depth - 1, name)
    }

    /// A document that is named, verified.
    fn document(&mut self, path: &Path, descriptor: &Descriptor) -> Result<(Blob, Vec<u8>)> {
        let Some(left) = self.left.checked_sub(descriptor.size) else {
            let most = MAX_TOTAL_DOCUMENT_BYTES >> 20;
            let problem = format!(
                "it leads to more than {most} MiB of documents: keep fewer images in a layout"
            );
            return Err(Error::unsound(path, problem));
        };
        self.left = left;
        let blob = blob(self.layout, path, descriptor)?;
        let text = blob.read_document()?;
        Ok((blob, text))
    }

    /// Has images of which the index does not say for what platform they are say it themselves.
    fn read_missing_platforms(&mut self, path: &Path, wanted: ImageSelector<'_>) -> Result<()> {
        let mut known = HashMap::new();
        let mut found = std::mem::take(&mut self.found);
        for image in &mut found {
            if image.platform.is_some() || !wanted.names(image) {
                continue;
            }
            self.progress.check()?;
            image.platform = match known.get(&image.digest) {
                Some(platform) => Option::clone(platform),
                None => {
                    let platform = self.platform_of(path, image)?;
                    known.insert(image.digest.clone(), platform.clone());
                    platform
                }
            };
        }
        self.found = found;
        Ok(())
    }

    /// The platform that an image's configuration names. What is no image may have another kind of configuration.
    fn platform_of(
        &mut self,
        path: &Path,
        image: &Descriptor,
    ) -> Result<Option<PlatformDescriptor>> {
        let (manifest, text) = self.document(path, image)?;
        let Some(config) = parse::<Manifest>(&manifest.path, &text)?.config else {
            return Ok(None);
        };
        let (_, text) = self.document(&manifest.path, &config)?;
        let platform = serde_json::from_slice::<PlatformDescriptor>(&text).ok();
        Ok(platform.filter(|platform| !platform.os.is_empty()))
    }
}
