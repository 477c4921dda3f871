#!/usr/bin/env python3
"""Makes test/golden/images: small odd pictures, the RGB pixels that PIL gives for them, PIL's bicubic resizes of a few,
and checksums of the photos that transformers' BlipImageProcessor prepares.

    tools/make_image_golden.py --photos ../shared/data/captions --output test/golden/images

Needs PIL and numpy; transformers (with torch) for the photos. Everything drawn here comes from a fixed seed.

    index.json     decode: file, width, height (pixels in <file>.rgb, u8 [height, width, 3])
                   resize: file, width, height, expected (a .rgb file)
                   broken: files that must be refused
                   photos: file, crc32 of u8 [224, 224, 3], and pixel values (float) at a few places
"""
import argparse
import io
import json
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
from PIL import Image


def drawing(width, height, seed):
    """Smooth colours with edges and a little noise: what a codec's chroma handling shows on. u8 [height, width, 3]."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    phase = random.uniform(0, 6.28, size=(3, 2))
    planes = [127 + 90 * np.sin(x * (0.15 + 0.1 * c) + phase[c, 0]) + 60 * np.cos(y * (0.2 + 0.07 * c) + phase[c, 1])
              for c in range(3)]
    picture = np.stack(planes, axis=-1) + random.normal(0, 6, size=(height, width, 3))
    picture[height // 4:height // 2, width // 3:width // 2] = random.integers(0, 256, 3)
    return np.clip(picture, 0, 255).astype(np.uint8)


def jpeg(image, **options):
    out = io.BytesIO()
    image.save(out, "JPEG", **options)
    return out.getvalue()


def without_marker(data, marker):
    """Removes the first segment with this marker byte."""
    at = data.index(bytes([0xFF, marker]))
    length = struct.unpack(">H", data[at + 2:at + 4])[0]
    return data[:at] + data[at + 2 + length:]


def with_adobe_transform(data, transform):
    at = data.index(b"Adobe")
    return data[:at + 11] + bytes([transform]) + data[at + 12:]


def png_chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_bytes(width, height, depth, color, rows, extra=b"", interlace=0):
    """A PNG from packed rows (each without its filter byte)."""
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlace)
    body = b"".join(b"\0" + bytes(row) for row in rows)
    return (b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + extra +
            png_chunk(b"IDAT", zlib.compress(body, 9)) + png_chunk(b"IEND", b""))


def packed(values, depth):
    """values [height, width] of `depth` bits to rows of bytes, most significant bits first."""
    bits = np.unpackbits(values.astype(np.uint8)[..., None], axis=-1)[..., 8 - depth:]
    return np.packbits(bits.reshape(values.shape[0], -1), axis=-1)


def adam7(values, depth):
    """The packed rows of the seven passes of an interlaced picture, values [height, width] or [height, width, c]."""
    rows = []
    passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    for x0, y0, dx, dy in passes:
        part = values[y0::dy, x0::dx]
        if part.size == 0:
            continue
        rows += list(packed(part, depth)) if depth < 8 else list(part.reshape(part.shape[0], -1))
    return rows


def jpeg_files():
    rgb = Image.fromarray(drawing(23, 17, 1))
    cmyk = Image.fromarray(np.concatenate([drawing(21, 15, 2), drawing(21, 15, 3)[..., :1]], axis=-1), "CMYK")
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: rotate by 90 degrees; must be ignored
    files = {
        "baseline_420.jpg": jpeg(rgb, quality=80, subsampling="4:2:0"),
        "baseline_422.jpg": jpeg(rgb, quality=80, subsampling="4:2:2"),
        "baseline_444.jpg": jpeg(rgb, quality=95, subsampling="4:4:4"),
        "progressive.jpg": jpeg(rgb, quality=75, progressive=True),
        "progressive_gray.jpg": jpeg(rgb.convert("L"), quality=75, progressive=True),
        "gray.jpg": jpeg(rgb.convert("L"), quality=75),
        "stored_as_rgb.jpg": jpeg(rgb, quality=90, keep_rgb=True),
        "restart_markers.jpg": jpeg(rgb, quality=60, restart_marker_blocks=1),
        "orientation.jpg": jpeg(rgb, quality=70, exif=exif),
        "one_pixel.jpg": jpeg(rgb.resize((1, 1)), quality=90),
        "one_column.jpg": jpeg(rgb.resize((1, 19)), quality=90),
        "cmyk_adobe.jpg": jpeg(cmyk, quality=90),
        "cmyk_progressive.jpg": jpeg(cmyk, quality=90, progressive=True),
    }
    # The same coefficients, said to be YCCK; and with no Adobe marker at all.
    files["ycck_adobe.jpg"] = with_adobe_transform(files["cmyk_adobe.jpg"], 2)
    files["cmyk_plain.jpg"] = without_marker(files["cmyk_adobe.jpg"], 0xEE)
    # Stray bytes before a marker: libjpeg warns, PIL accepts.
    quantization = files["baseline_444.jpg"].index(b"\xff\xdb")
    plain = files["baseline_444.jpg"]
    files["stray_bytes.jpg"] = plain[:quantization] + b"\0\1\2" + plain[quantization:]
    return files


def png_files():
    random = np.random.default_rng(5)
    rgb = drawing(19, 13, 4)
    height, width = rgb.shape[:2]
    alpha = random.integers(0, 256, (height, width, 1), dtype=np.uint8)
    wide = random.integers(0, 65536, (height, width, 4)).astype(">u2")
    small16 = random.integers(0, 600, (height, width)).astype(">u2")
    palette = random.integers(0, 256, (16, 3), dtype=np.uint8)
    indices = random.integers(0, 16, (height, width), dtype=np.uint8)
    plte = png_chunk(b"PLTE", palette.tobytes())
    files = {}

    def add(name, depth, color, rows, extra=b"", interlace=0):
        files[name] = png_bytes(width, height, depth, color, rows, extra, interlace)

    def flat(values):
        return [row.tobytes() for row in values]

    add("rgb.png", 8, 2, flat(rgb))
    add("rgb_trns.png", 8, 2, flat(rgb), png_chunk(b"tRNS", struct.pack(">HHH", *map(int, rgb[3, 3]))))
    add("rgba.png", 8, 6, flat(np.concatenate([rgb, alpha], -1)))
    add("gray.png", 8, 0, flat(rgb[..., 0]), png_chunk(b"gAMA", struct.pack(">I", 100000)))
    add("gray_trns.png", 8, 0, flat(rgb[..., 0]), png_chunk(b"tRNS", struct.pack(">H", int(rgb[2, 2, 0]))))
    add("gray_alpha.png", 8, 4, flat(np.concatenate([rgb[..., :1], alpha], -1)))
    for depth in (1, 2, 4):
        add(f"gray_{depth}bit.png", depth, 0, flat(packed(rgb[..., 0] >> (8 - depth), depth)))
        part = png_chunk(b"PLTE", palette[:1 << depth].tobytes())
        add(f"palette_{depth}bit.png", depth, 3, flat(packed(indices % (1 << depth), depth)), part)
    add("palette.png", 8, 3, flat(indices), plte)
    add("palette_trns.png", 8, 3, flat(indices), plte + png_chunk(b"tRNS", bytes(range(0, 160, 10))))
    add("gray_16bit.png", 16, 0, flat(wide[..., 0]))
    add("gray_16bit_small.png", 16, 0, flat(small16))
    add("gray_alpha_16bit.png", 16, 4, flat(wide[..., :2]))
    add("rgb_16bit.png", 16, 2, flat(wide[..., :3]))
    add("rgba_16bit.png", 16, 6, flat(wide))
    add("interlaced_rgb.png", 8, 2, adam7(rgb, 8), interlace=1)
    add("interlaced_palette_2bit.png", 2, 3, adam7(indices % 4, 2), png_chunk(b"PLTE", palette[:4].tobytes()), 1)
    add("interlaced_gray_1bit.png", 1, 0, adam7(rgb[..., 0] >> 7, 1), interlace=1)
    return files


def broken_files(good):
    """Files that must be refused, made of good ones."""
    baseline, progressive, png = good["baseline_444.jpg"], good["progressive.jpg"], good["rgb.png"]
    scan = baseline.index(b"\xff\xda")
    crc = bytearray(png)
    crc[png.index(b"IDAT") + 20] ^= 0x40
    return {
        "cut_half.jpg": baseline[:scan + (len(baseline) - scan) // 2],
        "cut_end_marker.jpg": baseline[:-2],
        "cut_header.jpg": baseline[:scan // 2],
        "cut_progressive.jpg": progressive[:len(progressive) * 2 // 3],
        "cut_half.png": png[:len(png) // 2],
        "cut_header.png": png[:20],
        "flipped_bit.png": bytes(crc),
        "text.jpg": b"<html>404 not found</html>",
        "empty.jpg": b"",
    }


def resize_cases():
    """(file, width, height): up, down, one axis only, one-pixel sides, equal size, and both orders of the passes."""
    return [("baseline_420.jpg", 40, 40), ("baseline_420.jpg", 9, 5), ("baseline_420.jpg", 23, 40),
            ("baseline_420.jpg", 7, 17), ("baseline_420.jpg", 23, 17), ("baseline_420.jpg", 1, 1),
            ("baseline_420.jpg", 20, 5),
            ("baseline_420.jpg", 17, 5), ("baseline_420.jpg", 18, 5), ("baseline_420.jpg", 30, 8),
            ("one_pixel.jpg", 12, 9), ("one_column.jpg", 6, 6), ("rgb_16bit.png", 64, 3), ("rgba_16bit.png", 5, 48)]


def photo_records(directory, count):
    from transformers import BlipImageProcessor
    processor = BlipImageProcessor(size={"height": 224, "width": 224})
    mean, std = np.array(processor.image_mean), np.array(processor.image_std)
    names = [json.loads(line)["file_name"] for line in open(directory / "metadata.jsonl", encoding="utf-8")]
    records = []
    for number, name in enumerate(names):
        values = processor(Image.open(directory / name).convert("RGB"), return_tensors="np")["pixel_values"][0]
        pixels = (values.transpose(1, 2, 0) * std + mean) * 255  # [224, 224, 3]
        assert np.abs(pixels - np.rint(pixels)).max() < 1e-2
        record = {"file": name, "crc32": zlib.crc32(np.rint(pixels).astype(np.uint8).tobytes())}
        if number < count:
            places = np.random.default_rng(number).integers(0, 224, (12, 2)).tolist()
            record["values"] = [[y, x, c, round(float(values[c, y, x]), 6)] for y, x in places for c in range(3)]
        records.append(record)
    return records


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="ImageFolder with photos; none: keep the old records")
    parser.add_argument("--output", type=Path, default=Path("test/golden/images"))
    arguments = parser.parse_args()
    out = arguments.output
    out.mkdir(parents=True, exist_ok=True)
    index_file = out / "index.json"
    index = {"decode": [], "resize": [], "broken": [],
             "photos": json.loads(index_file.read_text())["photos"] if index_file.exists() else []}

    good = {**jpeg_files(), **png_files()}
    for name, data in good.items():
        (out / name).write_bytes(data)
        picture = Image.open(io.BytesIO(data)).convert("RGB")
        (out / f"{name}.rgb").write_bytes(picture.tobytes())
        index["decode"].append({"file": name, "width": picture.width, "height": picture.height})
    for name, width, height in resize_cases():
        picture = Image.open(out / name).convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
        expected = f"{name}.{width}x{height}.rgb"
        (out / expected).write_bytes(picture.tobytes())
        index["resize"].append({"file": name, "width": width, "height": height, "expected": expected})
    for name, data in broken_files(good).items():
        (out / name).write_bytes(data)
        try:
            Image.open(io.BytesIO(data)).convert("RGB")
            print(f"note: PIL reads {name}", file=sys.stderr)
        except Exception as error:  # PIL raises several types here
            print(f"{name}: PIL says {error}")
        index["broken"].append(name)
    if arguments.photos:
        index["photos"] = photo_records(arguments.photos, 4)
    lines = ",\n".join(f'"{key}": [\n' + ",\n".join(map(json.dumps, items)) + "\n]" for key, items in index.items())
    index_file.write_text("{\n" + lines + "\n}\n")
    size = sum(f.stat().st_size for f in out.iterdir())
    print(f"{out}: {len(list(out.iterdir()))} files, {size} bytes")


if __name__ == "__main__":
    main()
