//! Writes a file into an image, makes it durable, and lists what the image holds:
//!
//! ```text
//! cargo run -p pext4 --example hello -- IMAGE
//! ```

use std::io::Write;

use pext4::{MountOptions, Volume};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args().nth(1).ok_or("usage: hello IMAGE")?;
    let volume = Volume::open_image(image, MountOptions::default())?;
    let paths = volume.paths();

    let mut file = paths.create("/hello.txt")?;
    writeln!(file, "hello from user space")?;
    file.sync_all()?; // from here on it survives a power cut
    drop(file);

    for entry in paths.read_dir("/")? {
        let entry = entry?;
        println!("{} {}", entry.inode, String::from_utf8_lossy(&entry.name));
    }
    volume.close()?;
    Ok(())
}
