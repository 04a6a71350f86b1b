//! Devices that hold something already.

use pext4_block::{Device, RamDevice};
use pext4_image::Error;
use pext4_image::mkfs::{Design, Options, mkfs};

const SIZE: u64 = 16 << 20;

fn options() -> Options {
    Options {
        uuid: Some([7; 16]),
        hash_seed: Some([1, 2, 3, 4]),
        time: Some(1_700_000_000),
        ..Options::default()
    }
}

fn used() -> RamDevice {
    let device = RamDevice::new(SIZE);
    device
        .write_at(0, &vec![0xA5; SIZE as usize])
        .expect("memory");
    device
}

fn bytes(device: &RamDevice) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    device.read_at(0, &mut bytes).expect("memory");
    bytes
}

#[test]
fn a_used_device_gets_the_bytes_of_a_new_one() {
    let (new, again, by_steps) = (RamDevice::new(SIZE), used(), used());
    let design = Design::new(SIZE, &options()).expect("sound");
    design.write_zeroed(&new, &|| false).expect("memory");
    mkfs(&again, &options()).expect("sound");
    design.write(&by_steps).expect("memory");
    assert!(bytes(&again) == bytes(&new));
    assert!(bytes(&by_steps) == bytes(&new));
}

#[test]
fn clearing_can_be_stopped() {
    let device = used();
    let design = Design::new(SIZE, &options()).expect("sound");
    let stopped = design.write_unless(&device, &|| true);
    assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
    assert!(bytes(&device) == bytes(&used()));
}
