//! The number of a device, and its form in the protocol.
//!
//! The protocol has 32 bits for it: the minor number's lower eight, twelve of the major number, and
//! twelve more of the minor number.

const MAJOR: u32 = 0xfff;
const MINOR: u32 = 0xf_ffff;
const LOW_MINOR: u32 = 0xff;

/// The number of a device. The protocol drops what exceeds twelve bits of the major and twenty of
/// the minor number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceNumber {
    /// Selects the driver.
    pub major: u32,
    /// Selects the driver's device.
    pub minor: u32,
}

impl DeviceNumber {
    pub(crate) fn from_wire(device: u32) -> Self {
        Self {
            major: device >> 8 & MAJOR,
            minor: device & LOW_MINOR | device >> 12 & MINOR & !LOW_MINOR,
        }
    }

    /// The number as it is in [`Attributes`](crate::Attributes).
    #[must_use]
    pub fn to_wire(self) -> u32 {
        let minor = self.minor & MINOR;
        minor & LOW_MINOR | (self.major & MAJOR) << 8 | (minor & !LOW_MINOR) << 12
    }
}

#[cfg(test)]
mod tests {
    use super::DeviceNumber;

    #[test]
    fn a_device_has_twelve_bits_of_major_and_twenty_of_minor() {
        for (wire, major, minor) in [(0x0801, 8, 1), (0xabc1_2345, 0x123, 0xa_bc45)] {
            let device = DeviceNumber { major, minor };
            assert_eq!(DeviceNumber::from_wire(wire), device);
            assert_eq!(device.to_wire(), wire);
        }
        for (major, minor) in [(0, 0), (259, 0), (0xfff, 0xf_ffff), (1, 0x1_0003)] {
            let device = DeviceNumber { major, minor };
            assert_eq!(DeviceNumber::from_wire(device.to_wire()), device);
        }
        let large = DeviceNumber {
            major: 0x1001,
            minor: 0x10_0002,
        };
        assert_eq!(large.to_wire(), 0x102);
    }
}
