"""What Pillow makes of images that are resized: writes resize_cases.txt, which image_transform_test.cpp is held against.

    pip install pillow==11.0.0 && python tests/data/reference_resize.py > tests/data/resize_cases.txt

A line is: width height channels, the box (left top width height), the new width and height, then the pixels."""

from PIL import Image

CASES = [
    (23, 17, 3, (0, 0, 23, 17), 8, 6),
    (23, 17, 1, (0, 0, 23, 17), 31, 20),
    (64, 48, 1, (5, 3, 37, 41), 9, 9),
    (40, 30, 3, (0, 0, 40, 30), 7, 40),
    (16, 16, 1, (2, 4, 10, 8), 10, 8),
]


def pixel(x, y, c):
    return (x * 37 + y * 91 + c * 53 + x * y * 7) % 256


for width, height, channels, (left, top, box_width, box_height), new_width, new_height in CASES:
    pixels = bytes(pixel(x, y, c) for y in range(height) for x in range(width) for c in range(channels))
    image = Image.frombytes("L" if channels == 1 else "RGB", (width, height), pixels)
    box = (left, top, left + box_width, top + box_height)
    small = image.resize((new_width, new_height), Image.Resampling.BILINEAR, box=box)
    print(width, height, channels, left, top, box_width, box_height, new_width, new_height, *small.tobytes())
