"""The command line of tools/golden.py."""
import argparse
import sys

from . import archive

HELP = """Golden data: results of other programs, for the tests. A set is one archive, test/golden/SET.safetensors.

    tools/golden.py list                          the sets and the parts of some
    tools/golden.py make llama_gqa t5_v11         computes sets anew
    tools/golden.py make tokenizer/bert           a part of a set
    tools/golden.py unpack images FOLDER          the files of a set
    tools/golden.py pack FOLDER images            a set of the files in a folder

The modules in tools/blipft_golden/ describe the sets and their requirements.
"""


def main():
    parser = argparse.ArgumentParser(description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    make = commands.add_parser("make")
    make.add_argument("sets", nargs="+")
    make.add_argument("--shared", default="../shared", help="whose data/ the sets tokenizer and text read (default: ../shared)")
    make.add_argument("--photos", help="of images: an ImageFolder of photos")
    make.add_argument("--vqa-eval", help="of metrics: vqaEval.py")
    make.add_argument("--lavis", help="of metrics: vqa_eval.py of LAVIS")
    make.add_argument("--squad", help="of metrics: squad_metrics.py")
    make.add_argument("--bitsandbytes", action="store_true", help="of quantize: compares with that library, too")
    unpack = commands.add_parser("unpack")
    unpack.add_argument("set")
    unpack.add_argument("folder")
    pack = commands.add_parser("pack")
    pack.add_argument("folder")
    pack.add_argument("set")
    options = parser.parse_args()
    if options.command == "pack":
        archive.pack(options.folder, archive.GOLDEN / f"{options.set}.safetensors")
    elif options.command == "unpack":
        archive.unpack(archive.GOLDEN / f"{options.set}.safetensors", options.folder)
    elif options.command == "list":
        from .registry import PARTS
        for path in sorted(archive.GOLDEN.iterdir()):
            name = path.name.removesuffix(".safetensors")
            print(" ".join([name, *(f"{name}/{part}" for part in PARTS.get(name, ()))]))
    else:
        from .registry import PARTS, make, tiny_models
        known = {*PARTS, *(f"{name}/{part}" for name, parts in PARTS.items() for part in parts)}
        known = known if known.issuperset(options.sets) else known | set(tiny_models())
        for name in options.sets:
            if name not in known:
                sys.exit(f"golden.py: no set {name}; there are {', '.join(sorted(known))}")
            make(name, options)
