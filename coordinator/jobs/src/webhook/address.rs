//! Addresses that a webhook may reach without being allowed by name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address is one of the public internet: no private, loopback, link-local, shared, reserved or multicast
/// range (IANA's special-purpose registries), and none that hides an IPv4 address of those.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = matches!(
        (a, b, c),
        (0 | 10 | 127, ..)
            | (100, 64..=127, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 0, 0 | 2)
            | (192, 31, 196)
            | (192, 52, 193)
            | (192, 88, 99)
            | (192, 168, _)
            | (192, 175, 48)
            | (198, 18 | 19, _)
            | (198, 51, 100)
            | (203, 0, 113)
    );
    !is_special && a < 224
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    if let Some(inner) = address.to_ipv4_mapped() {
        return is_public_v4(inner);
    }
    let [a, b, c, ..] = address.segments();
    match (a, b) {
        // NAT64 and 6to4 carry an IPv4 address.
        (0x64, 0xff9b) => {
            let [.., high, low] = address.segments();
            c == 0 && is_public_v4(v4_of(high, low))
        }
        (0x2002, _) => is_public_v4(v4_of(b, c)),
        (0x2001, 0..=0x1ff | 0xdb8) | (0x3fff, 0..=0xfff) => false,
        // Only 2000::/3 is given out.
        _ => a & 0xe000 == 0x2000,
    }
}

fn v4_of(high: u16, low: u16) -> Ipv4Addr {
    let [a, b] = high.to_be_bytes();
    let [c, d] = low.to_be_bytes();
    Ipv4Addr::new(a, b, c, d)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_26_only_addresses_of_the_internet_are_public() {
        let of = |text: &str| is_public(text.parse().unwrap());
        for public in ["8.8.8.8", "1.1.1.1", "172.32.0.1", "2606:4700::1111", "2002:808:808::1", "64:ff9b::808:808"] {
            assert!(of(public), "{public}");
        }
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::1",
            "ff02::1",
            "2001:db8::1",
            "::127.0.0.1",
        ] {
            assert!(!of(private), "{private}");
        }
    }
}
