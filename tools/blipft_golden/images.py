"""Small odd pictures, the RGB pixels that a training script has of them (PIL's), PIL's
bicubic resizes of a few, and checksums of the photos that transformers' BlipImageProcessor prepares.

Needs PIL and numpy; transformers (with torch) for the photos of --photos, without which their old records are kept. If `datasets` and transformers (5.23 or later) are
installed, their own decoding and convert_to_rgb are checked to give these pixels. Everything drawn here comes from a
fixed seed.

    index.json     decode: file, exif_orientation, transparency, width, height, expected (a .rgb file: u8 [height,
                   width, 3]). The first record of a file is how it is read by default; others follow for the settings that
                   give it other pixels.
                   resize: file, width, height, expected (a .rgb file)
                   broken: files that must be refused
                   webp, broken_webp: likewise, of WebP, which a build may not read
                   photos: file, crc32 of u8 [224, 224, 3], and pixel values (float) at a few places
"""
import io
import json
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps


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
    files = {
        "baseline_420.jpg": jpeg(rgb, quality=80, subsampling="4:2:0"),
        "baseline_422.jpg": jpeg(rgb, quality=80, subsampling="4:2:2"),
        "baseline_444.jpg": jpeg(rgb, quality=95, subsampling="4:4:4"),
        "progressive.jpg": jpeg(rgb, quality=75, progressive=True),
        "progressive_gray.jpg": jpeg(rgb.convert("L"), quality=75, progressive=True),
        "gray.jpg": jpeg(rgb.convert("L"), quality=75),
        "stored_as_rgb.jpg": jpeg(rgb, quality=90, keep_rgb=True),
        "restart_markers.jpg": jpeg(rgb, quality=60, restart_marker_blocks=1),
        "one_pixel.jpg": jpeg(rgb.resize((1, 1)), quality=90),
        "one_column.jpg": jpeg(rgb.resize((1, 19)), quality=90),
        "cmyk_adobe.jpg": jpeg(cmyk, quality=90),
        "cmyk_progressive.jpg": jpeg(cmyk, quality=90, progressive=True),
    }
    # These coefficients marked as YCCK, and without an Adobe marker.
    files["ycck_adobe.jpg"] = with_adobe_transform(files["cmyk_adobe.jpg"], 2)
    files["cmyk_plain.jpg"] = without_marker(files["cmyk_adobe.jpg"], 0xEE)
    # Stray bytes before a marker: libjpeg warns, PIL accepts.
    quantization = files["baseline_444.jpg"].index(b"\xff\xdb")
    plain = files["baseline_444.jpg"]
    files["stray_bytes.jpg"] = plain[:quantization] + b"\0\1\2" + plain[quantization:]
    return files


def tiff(order, *entries, inline=b""):
    """A TIFF directory; `order` is "<" or ">", an entry (tag, type, count, bytes of its value field)."""
    body = struct.pack(order + "H", len(entries))
    for tag, kind, count, value in entries:
        body += struct.pack(order + "HHI", tag, kind, count) + value.ljust(4, b"\0")
    return {"<": b"II", ">": b"MM"}[order] + struct.pack(order + "HI", 42, 8) + body + bytes(4) + inline


def orientation_entry(order, value, kind=3, count=1):
    return 0x0112, kind, count, struct.pack(order + {3: "H", 4: "I", 8: "h"}[kind], value)


def with_app1(data, body):
    """A JPEG with this APP1 segment before its JFIF marker."""
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + data[2:]


def without_jfif(data):
    """PIL looks for a resolution in EXIF when JFIF gives none, and forgives broken EXIF only then."""
    return without_marker(data, 0xE0)


XMP = b"http://ns.adobe.com/xap/1.0/\0"


def oriented_files():
    """Every orientation in both byte orders, in all the places that PIL looks at, and metadata that is broken."""
    small = jpeg(Image.fromarray(drawing(7, 5, 11)), quality=90, subsampling="4:4:4")
    exif = b"Exif\0\0"
    files = {}
    for value in range(0, 10):
        order = "<>"[value % 2]
        files[f"orientation_{value}.jpg"] = with_app1(small, exif + tiff(order, orientation_entry(order, value)))
        if 1 < value < 9:
            order = "><"[value % 2]
            body = exif + tiff(order, orientation_entry(order, value))
            files[f"orientation_{value}_swapped.jpg"] = with_app1(small, body)
    six = orientation_entry("<", 6)
    text = (0x010F, 2, 8, struct.pack("<I", 38))  # a camera's name, behind the directory
    whole = tiff("<", text, six, inline=b"camera!\0")
    cut = tiff("<", text, six)
    for name, body in {
        "long": exif + tiff(">", orientation_entry(">", 6, kind=4)),
        "signed": exif + tiff("<", orientation_entry("<", 8, kind=8)),
        "as_byte": exif + tiff("<", (0x0112, 1, 1, b"\6")),           # bytes are no number
        "as_text": exif + tiff("<", (0x0112, 2, 2, b"6\0")),
        "as_rational": exif + tiff("<", (0x0112, 5, 1, struct.pack("<I", 26)), inline=struct.pack("<II", 12, 2)),
        "two_values": exif + tiff("<", (0x0112, 3, 2, struct.pack("<HH", 3, 6))),
        "no_values": exif + tiff("<", (0x0112, 3, 0, struct.pack("<HH", 3, 6))),
        "twice": exif + tiff("<", six, orientation_entry("<", 3)),
        "behind_text": exif + whole,
        "behind_cut_text": exif + cut,
        "behind_long_text": exif + tiff("<", (0x010F, 2, 1 << 20, struct.pack("<I", 38)), six),
        "behind_unknown_type": exif + tiff("<", (0x010F, 77, 1, bytes(4)), six),
        "doubled_start": exif + exif + tiff("<", six),
        "cut_directory": exif + tiff("<", text, six)[:30],
        "no_directory": exif + b"II*\0" + struct.pack("<I", 1000),
        "xmp": XMP + b'<x tiff:Orientation="6"/>',
        "xmp_element": XMP + b"<tiff:Orientation>8</tiff:Orientation>",
        "xmp_odd": XMP + b'<x tiff:Orientation="no" tiff:Orientation="3"/>',
    }.items():
        files[f"orientation_{name}.jpg"] = with_app1(small, body)
    for name, body in {"no_tiff": exif + b"not a TIFF directory", "short": exif + b"II*\0\b"}.items():
        files[f"orientation_{name}.jpg"] = with_app1(without_jfif(small), body)
    files["orientation_exif_before_xmp.jpg"] = with_app1(with_app1(small, exif + whole), XMP + b'tiff:Orientation="3"')
    files["orientation_split.jpg"] = with_app1(with_app1(small, exif + whole[20:]), exif + whole[:20])
    files["orientation_gray.jpg"] = with_app1(jpeg(Image.open(io.BytesIO(small)).convert("L")), exif + tiff("<", six))

    pixels = drawing(7, 5, 12)
    rows = [row.tobytes() for row in np.concatenate([pixels, pixels[..., :1]], -1)]
    hexadecimal = b"\nexif\n%8d\n" % len(whole) + whole.hex().encode() + b"\n"
    for name, extra in {
        "exif": png_chunk(b"eXIf", whole),
        "raw_profile": png_chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(hexadecimal)),
        "xmp": png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + b'<x tiff:Orientation="5"/>'),
    }.items():
        files[f"orientation_{name}.png"] = png_bytes(7, 5, 8, 6, rows, extra)  # half transparent too
    plain = png_bytes(7, 5, 8, 2, [row.tobytes() for row in pixels])
    files["orientation_late_exif.png"] = plain[:-12] + png_chunk(b"eXIf", whole) + plain[-12:]
    return files


def transparent_files():
    """Every alpha, and tRNS for every depth; PIL compares its low bytes with pixels of 8 bits."""
    random = np.random.default_rng(7)
    files = {}
    ramp = np.zeros((3, 256, 4), np.uint8)
    ramp[..., :3] = random.integers(0, 256, (3, 256, 3))
    ramp[..., 3] = np.arange(256)
    files["every_alpha.png"] = png_bytes(256, 3, 8, 6, [row.tobytes() for row in ramp])
    for depth in (1, 2, 4, 8):
        values = random.integers(0, 1 << depth, (4, 24), dtype=np.uint8)
        for key in sorted({0, 1, 2, (1 << depth) - 1, 85, 255, 256 + 17}):
            trns = png_chunk(b"tRNS", struct.pack(">H", key))
            files[f"gray_{depth}bit_trns_{key}.png"] = png_bytes(24, 4, depth, 0, list(packed(values, depth)), trns)
    wide = random.integers(0, 4, (4, 24)).astype(">u2") * 0x55
    wide[0] += 0x100
    wide[1, 0] = 0x1255
    for key in (0x55, 0x1255, 0x34ff):
        trns = png_chunk(b"tRNS", struct.pack(">H", key))
        files[f"gray_16bit_trns_{key:x}.png"] = png_bytes(24, 4, 16, 0, [row.tobytes() for row in wide], trns)
    colours = random.integers(0, 2, (4, 12, 3)).astype(">u2") * 0x1200 + 0x34
    for key in ((0x1234, 0x34, 0x34), (0x12, 0, 0x12), (0x3412, 0x3400, 0x3400)):
        trns = png_chunk(b"tRNS", struct.pack(">HHH", *key))
        name = "rgb_16bit_trns_" + "_".join(f"{value:x}" for value in key) + ".png"
        files[name] = png_bytes(12, 4, 16, 2, [row.tobytes() for row in colours], trns)
    indices = random.integers(0, 4, (4, 24), dtype=np.uint8)
    plte = png_chunk(b"PLTE", random.integers(0, 256, (3, 3), dtype=np.uint8).tobytes())
    for name, alphas in {"one": b"\xff\0\xff", "zeros": bytes(3), "short": b"\x40", "long": b"\x10\x20\x30\x40\x50",
                         "none": b""}.items():
        files[f"palette_2bit_trns_{name}.png"] = png_bytes(24, 4, 2, 3, list(packed(indices, 2)),
                                                           plte + png_chunk(b"tRNS", alphas))
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


def webp_files():
    """WebP of every kind: one list of its own, since a build may lack libwebp."""
    def webp(image, **options):
        out = io.BytesIO()
        image.save(out, "WEBP", **options)
        return out.getvalue()

    rgb = Image.fromarray(drawing(45, 31, 71))
    alpha = np.mgrid[0:31, 0:45][1] * 255 // 44
    rgba = Image.fromarray(np.dstack([drawing(45, 31, 72), alpha.astype(np.uint8)]))
    exif = Image.Exif()
    exif[0x0112] = 6
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf tiff:Orientation="3"/></x:xmpmeta>'
    frames = [Image.fromarray(drawing(20, 14, seed)) for seed in (73, 74)]
    return {"lossy.webp": webp(rgb, quality=70), "lossless.webp": webp(rgb, lossless=True),
            "lossy_alpha.webp": webp(rgba, quality=70), "lossless_alpha.webp": webp(rgba, lossless=True, exact=True),
            "oriented.webp": webp(rgb, lossless=True, exif=exif),
            "oriented_xmp.webp": webp(rgb, lossless=True, xmp=xmp),
            "animated.webp": webp(frames[0], lossless=True, save_all=True, append_images=frames[1:]),
            "one_pixel.webp": webp(rgb.crop((0, 0, 1, 1)), lossless=True)}


def broken_webp_files(good):
    lossy = good["lossy.webp"]
    return {"cut_half.webp": lossy[:len(lossy) // 2], "cut_header.webp": lossy[:18],
            "cut_animated.webp": good["animated.webp"][:len(good["animated.webp"]) // 3]}


def broken_files(good):
    """Files that must be refused, made of good ones."""
    baseline, progressive, png = good["baseline_444.jpg"], good["progressive.jpg"], good["rgb.png"]
    scan = baseline.index(b"\xff\xda")
    trns = good["rgb_trns.png"]
    trns_at = trns.index(b"tRNS")
    trns_crc = trns[:trns_at + 5] + bytes([trns[trns_at + 5] ^ 1]) + trns[trns_at + 6:]
    short = trns[:trns_at - 4] + png_chunk(b"tRNS", trns[trns_at + 4:trns_at + 8]) + trns[trns_at + 14:]
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
        "flipped_bit_trns.png": trns_crc,
        "short_trns.png": short,
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
        values = processor(decoded((directory / name).read_bytes(), True), return_tensors="np")["pixel_values"][0]
        pixels = (values.transpose(1, 2, 0) * std + mean) * 255  # [224, 224, 3]
        assert np.abs(pixels - np.rint(pixels)).max() < 1e-2
        record = {"file": name, "crc32": zlib.crc32(np.rint(pixels).astype(np.uint8).tobytes())}
        if number < count:
            places = np.random.default_rng(number).integers(0, 224, (12, 2)).tolist()
            record["values"] = [[y, x, c, round(float(values[c, y, x]), 6)] for y, x in places for c in range(3)]
        records.append(record)
    return records


def decoded(data, exif_orientation):
    """The picture of a file, turned as datasets.Image turns it."""
    picture = Image.open(io.BytesIO(data))
    picture.load()
    if not exif_orientation:
        return picture
    return ImageOps.exif_transpose(picture) if picture.getexif().get(0x0112) is not None else picture


def to_rgb(picture, transparency):
    """White: what transformers' convert_to_rgb does from 5.23 on; drop: what it did before."""
    if transparency == "drop" or not ("A" in picture.getbands() or picture.info.get("transparency") is not None):
        return picture.convert("RGB")
    white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")


def check_against_libraries(name, data, pixels):
    """Checks that the libraries which scripts use give these pixels; returns False if they are not installed."""
    try:
        import datasets
        from transformers import __version__ as version
        from transformers.image_transforms import convert_to_rgb
    except ImportError:
        return False
    if tuple(map(int, version.split(".")[:2])) < (5, 23):
        return False
    theirs = convert_to_rgb(datasets.Image().decode_example({"path": None, "bytes": data}), return_numpy=True)
    if theirs.tobytes() != pixels.tobytes() or theirs.shape[:2] != (pixels.height, pixels.width):
        sys.exit(f"{name}: datasets and transformers give other pixels")
    return True


def decode_records(out, name, data):
    """Writes the pixels of one file, and says which settings give which."""
    records, known = [], {}
    for exif_orientation in (True, False):
        for transparency in ("white", "drop"):
            picture = to_rgb(decoded(data, exif_orientation), transparency)
            found = picture.size, picture.tobytes()
            if not known:
                known[found] = f"{name}.rgb"
            elif found not in known:
                known[found] = f"{name}.{'turned' if exif_orientation else 'stored'}_{transparency}.rgb"
            elif known[found] == f"{name}.rgb":
                continue
            (out / known[found]).write_bytes(found[1])
            records.append({"file": name, "exif_orientation": exif_orientation, "transparency": transparency,
                            "width": picture.width, "height": picture.height, "expected": known[found]})
    return records


def make(folder, options):
    out = Path(folder)
    index_file = out / "index.json"
    index = {"decode": [], "webp": [], "resize": [], "broken": [], "broken_webp": [],
             "photos": json.loads(index_file.read_text())["photos"] if index_file.exists() else []}

    good = {**jpeg_files(), **oriented_files(), **png_files(), **transparent_files()}
    checked = 0
    for name, data in good.items():
        (out / name).write_bytes(data)
        index["decode"] += decode_records(out, name, data)
        checked += check_against_libraries(name, data, to_rgb(decoded(data, True), "white"))
    good_webp = webp_files()
    for name, data in good_webp.items():
        (out / name).write_bytes(data)
        index["webp"] += decode_records(out, name, data)
    for name, data in broken_webp_files(good_webp).items():
        (out / name).write_bytes(data)
        index["broken_webp"].append(name)
    print(f"{checked} of {len(good)} files as datasets and transformers read them")
    for name, width, height in resize_cases():
        picture = to_rgb(decoded((out / name).read_bytes(), True), "white")
        picture = picture.resize((width, height), Image.Resampling.BICUBIC)
        expected = f"{name}.{width}x{height}.rgb"
        (out / expected).write_bytes(picture.tobytes())
        index["resize"].append({"file": name, "width": width, "height": height, "expected": expected})
    for name, data in broken_files(good).items():
        (out / name).write_bytes(data)
        try:
            to_rgb(decoded(data, True), "white")
            print(f"note: PIL reads {name}", file=sys.stderr)
        except Exception as error:  # PIL raises several types here
            print(f"{name}: PIL says {error}")
        index["broken"].append(name)
    if options.photos:
        index["photos"] = photo_records(Path(options.photos), 4)
    lines = ",\n".join(f'"{key}": [\n' + ",\n".join(map(json.dumps, items)) + "\n]" for key, items in index.items())
    index_file.write_text("{\n" + lines + "\n}\n")
