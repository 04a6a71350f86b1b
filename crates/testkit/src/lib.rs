//! Operations, models, crash images and oracles for testing pext4.
