//! Names of the marks in layers of container images: OCI image format specification, layer.md,
//! "Whiteouts".

/// Prefix of the name of a whiteout, which hides a file of a lower layer.
pub const WHITEOUT_PREFIX: &[u8] = b".wh.";
/// Prefix of names that are reserved for the layer format.
pub const RESERVED_PREFIX: &[u8] = b".wh..wh.";
/// Name of the mark in an opaque directory, whose contents in lower layers are hidden.
pub const OPAQUE_MARK: &[u8] = b".wh..wh..opq";
