"""Colour profiles made by hand, for tests of pictures. Not a test.

Used by tests/images/test_images_colours.py and test_images_page.py.
"""

import struct

D50 = (0.9642, 1.0, 0.8249)
P3 = ((0.5151, 0.2412, -0.0011), (0.2920, 0.6922, 0.0419), (0.1571, 0.0666, 0.7841))
SRGB = ((0.4360, 0.2225, 0.0139), (0.3851, 0.7169, 0.0971), (0.1431, 0.0606, 0.7141))
ADOBE = ((0.6097, 0.3111, 0.0195), (0.2053, 0.6257, 0.0609), (0.1492, 0.0632, 0.7446))


def _numbers(*values):
    return struct.pack(f">{len(values)}i", *(round(value * 65536) for value in values))


def profile(primaries, gamma, name):
    """A profile of ICC version 2: of three primaries (XYZ, adapted to D50) and a gamma; grey where they are None."""
    label = name.encode()
    curve = b"curv\0\0\0\0" + struct.pack(">IH", 1, round(gamma * 256))
    tags = {
        b"desc": b"desc\0\0\0\0" + struct.pack(">I", len(label) + 1) + label + bytes(79),
        b"wtpt": b"XYZ \0\0\0\0" + _numbers(*D50),
        b"cprt": b"text\0\0\0\0none\0",
    }
    if primaries is None:
        tags[b"kTRC"] = curve
    else:
        for letter, primary in zip(b"rgb", primaries, strict=True):
            tags[bytes([letter]) + b"XYZ"] = b"XYZ \0\0\0\0" + _numbers(*primary)
            tags[bytes([letter]) + b"TRC"] = curve
    table, body, start = struct.pack(">I", len(tags)), b"", 132 + 12 * len(tags)
    for tag, data in tags.items():
        table += tag + struct.pack(">II", start + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    size = 128 + len(table) + len(body)
    head = struct.pack(">I4xI4s4s4s", size, 0x02200000, b"mntr", b"GRAY" if primaries is None else b"RGB ", b"XYZ ")
    head += struct.pack(">6H", 2024, 1, 1, 0, 0, 0) + b"acsp" + bytes(28) + _numbers(*D50)
    return head.ljust(128, b"\0") + table + body
