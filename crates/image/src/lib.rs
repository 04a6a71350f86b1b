//! Making and examining ext4 images without mounting them.
