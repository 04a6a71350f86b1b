//! Collects all images of a layout from its index and nested indexes.
//!
//! Indexes may be nested, and a hostile layout may refer to the same index again and again. Each is
//! read once for every name that it has, and their number, depth and size are bounded. Manifests
//! about other manifests (attestations) are skipped; artifacts (signatures, lists of parts) as far
//! as an image would have to be told from them. A layout may lack documents of images that nobody
//! wants: an index that is missing counts as an image, and the platform of an image is not known if
//! what would tell it is missing.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use pext4_block::Progress;

use super::{
    Annotations, Blob, Descriptor, ImageSelector, Index, Manifest, PlatformDescriptor, blob, parse,
};
use crate::build::error::{Error, Result};

/// Maximum nesting of indexes.
const MAX_INDEX_DEPTH: u32 = 4;
/// Maximum number of nested indexes, counted once per name.
const MAX_INDEXES: usize = 1000;
/// Maximum total size of all documents in bytes.
const MAX_TOTAL_DOCUMENT_BYTES: u64 = 64 << 20;
/// Maximum number of images in a layout.
const MAX_IMAGES: usize = 10_000;
/// Maximum length of an image's name in bytes. An index copies its name to all its images.
const MAX_NAME_BYTES: usize = 1024;

/// All images of an index. If a platform is selected, their platforms are read as far as they are
/// known.
pub(super) fn all(
    layout: &Path,
    path: &Path,
    index: Index,
    selector: ImageSelector<'_>,
    progress: &Progress,
) -> Result<Vec<Descriptor>> {
    let mut collection = Collection::new(layout, progress);
    collection.add(path, index, MAX_INDEX_DEPTH, &Annotations::default())?;
    if selector.platform.is_some() {
        collection.read_missing_platforms(path, selector)?;
    }
    collection.drop_artifacts(path, selector)?;
    Ok(collection.found)
}

struct Collection<'a> {
    layout: &'a Path,
    progress: &'a Progress,
    found: Vec<Descriptor>,
    /// Nested indexes that were read, by digest and inherited names.
    followed: HashSet<(String, Annotations)>,
    /// How many more bytes of documents may be read.
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

    /// Adds the images of an index.
    fn add(&mut self, path: &Path, index: Index, depth: u32, names: &Annotations) -> Result<()> {
        for mut descriptor in index.manifests {
            self.progress.check()?;
            // Images inherit the names of their index.
            descriptor.annotations = descriptor.annotations.or(names);
            let mut own = descriptor.annotations.names();
            if own.any(|name| name.len() > MAX_NAME_BYTES) {
                let problem = format!("the name of an image has more than {MAX_NAME_BYTES} bytes");
                return Err(Error::unsound(path, problem));
            }
            drop(own);
            let platform = descriptor.platform.as_ref();
            if descriptor.is_index() {
                self.follow(path, descriptor, depth)?;
            } else if platform.is_none_or(|platform| platform.os != "unknown") {
                self.push(path, descriptor)?;
            }
        }
        Ok(())
    }

    fn push(&mut self, path: &Path, image: Descriptor) -> Result<()> {
        if self.found.len() == MAX_IMAGES {
            let problem = format!("it leads to more than {MAX_IMAGES} images");
            return Err(Error::unsound(path, problem));
        }
        self.found.push(image);
        Ok(())
    }

    /// Adds the images of a nested index, once for each of its names.
    fn follow(&mut self, path: &Path, mut descriptor: Descriptor, depth: u32) -> Result<()> {
        if depth == 0 {
            return Err(Error::unsound(path, "indexes lie too deep in indexes"));
        }
        let key = (descriptor.digest.clone(), descriptor.annotations.clone());
        if !self.followed.insert(key) {
            return Ok(());
        }
        if self.followed.len() > MAX_INDEXES {
            let problem = format!("it leads to more than {MAX_INDEXES} indexes");
            return Err(Error::unsound(path, problem));
        }
        let stated = blob(self.layout, path, &descriptor)?;
        if stated.is_missing() {
            descriptor.missing = Some(stated.path);
            return self.push(path, descriptor);
        }
        let (blob, text) = self.document(path, &descriptor)?;
        let inner = parse(&blob.path, &text)?;
        self.add(&blob.path, inner, depth - 1, &descriptor.annotations)
    }

    /// Reads and verifies a document.
    fn document(&mut self, path: &Path, descriptor: &Descriptor) -> Result<(Blob, Vec<u8>)> {
        let Some(left) = self.left.checked_sub(descriptor.size) else {
            let max_mib = MAX_TOTAL_DOCUMENT_BYTES >> 20;
            let problem = format!(
                "it leads to more than {max_mib} MiB of documents: keep fewer images in a layout"
            );
            return Err(Error::unsound(path, problem));
        };
        self.left = left;
        let blob = blob(self.layout, path, descriptor)?;
        let text = blob.read_document()?;
        Ok((blob, text))
    }

    /// Reads the platforms of images for which the index contains none.
    fn read_missing_platforms(&mut self, path: &Path, selector: ImageSelector<'_>) -> Result<()> {
        let mut known = HashMap::new();
        let mut found = std::mem::take(&mut self.found);
        for image in &mut found {
            if image.platform.is_some() || !selector.names(image) {
                continue;
            }
            self.progress.check()?;
            let told = match known.get(&image.digest) {
                Some(told) => Told::clone(told),
                None => {
                    let told = self.platform_of(path, image)?;
                    known.insert(image.digest.clone(), told.clone());
                    told
                }
            };
            match told {
                Told::Platform(platform) => image.platform = Some(platform),
                Told::Nothing => {}
                Told::Missing(document) => image.missing = Some(document),
            }
        }
        self.found = found;
        Ok(())
    }

    /// If several manifests without a platform are selected, removes those of artifacts, unless all
    /// are artifacts.
    fn drop_artifacts(&mut self, path: &Path, selector: ImageSelector<'_>) -> Result<()> {
        let is_candidate = |image: &Descriptor| selector.names(image) && selector.may_fit(image);
        let candidates = self.found.iter().filter(|image| is_candidate(image));
        let candidates: Vec<Descriptor> = candidates.cloned().collect();
        let digests: HashSet<&String> = candidates.iter().map(|image| &image.digest).collect();
        if digests.len() < 2 {
            return Ok(());
        }
        let mut artifacts = HashSet::new();
        let mut images = 0;
        for image in &candidates {
            self.progress.check()?;
            if artifacts.contains(&image.digest) {
                continue;
            }
            match self.is_artifact(path, image) {
                true => drop(artifacts.insert(image.digest.clone())),
                false => images += 1,
            }
        }
        if images > 0 {
            self.found
                .retain(|image| !artifacts.contains(&image.digest));
        }
        Ok(())
    }

    /// Whether a manifest is that of an artifact. One that cannot be read counts as an image: the
    /// error belongs to whoever selects it.
    fn is_artifact(&mut self, path: &Path, image: &Descriptor) -> bool {
        if !image.artifact_type.is_empty() {
            return true;
        }
        if image.platform.is_some() {
            return false;
        }
        let Ok((manifest, text)) = self.document(path, image) else {
            return false;
        };
        parse::<Manifest>(&manifest.path, &text).is_ok_and(|manifest| manifest.is_artifact())
    }

    /// The platform in an image's configuration. A manifest that is not an image may have another
    /// kind of configuration.
    fn platform_of(&mut self, path: &Path, image: &Descriptor) -> Result<Told> {
        let manifest = blob(self.layout, path, image)?;
        if manifest.is_missing() {
            return Ok(Told::Missing(manifest.path));
        }
        let (manifest, text) = self.document(path, image)?;
        let Some(config) = parse::<Manifest>(&manifest.path, &text)?.config else {
            return Ok(Told::Nothing);
        };
        let stated = blob(self.layout, &manifest.path, &config)?;
        if stated.is_missing() {
            return Ok(Told::Missing(stated.path));
        }
        let (_, text) = self.document(&manifest.path, &config)?;
        let platform = serde_json::from_slice::<PlatformDescriptor>(&text).ok();
        let platform = platform.filter(|platform| !platform.os.is_empty());
        Ok(platform.map_or(Told::Nothing, Told::Platform))
    }
}

/// What the documents of an image tell about its platform.
#[derive(Clone)]
enum Told {
    Platform(PlatformDescriptor),
    Nothing,
    /// This document is missing.
    Missing(PathBuf),
}
