"""The one hash behind ranks, splits and fingerprints.

BLAKE2b: in the standard library, the same on every platform and in every run (unlike `hash()`),
uniform enough that a bucket count is a balance, and faster than MD5 (0.7 us for a path).
"""

from __future__ import annotations

import hashlib


def hash64(data: bytes, *, salt: bytes = b"") -> int:
    """A uniform 64-bit hash.

    Args:
        data: what to hash.
        salt: what makes this use of the hash independent of others, 64 bytes at the most.

    Returns:
        An integer in [0, 2**64).
    """
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, key=salt).digest(), "big")


def hash128(data: bytes) -> int:
    """A uniform 128-bit hash, long enough to tell any two inputs apart.

    Args:
        data: what to hash.

    Returns:
        An integer in [0, 2**128).
    """
    return int.from_bytes(hashlib.blake2b(data, digest_size=16).digest(), "big")
