"""Layering: who may include whom, and who may call the linear ops. tools/code_rules.py checks it.

The source is divided into rooms in layers. A room is a folder of src/ with its public headers (include/blipft/), its
contract. A file includes only from its own room and from rooms below that its room's line in the table names. Rooms that
it reaches through headers must be named too. So each room can be read, tested and replaced alone. Vendor headers are
included in one room each, so that all other rooms build without that vendor; public headers include none.
"""
import os
import re

# From the top. A room may include those that its line names: "comm" its public headers, "comm/" also those of src/comm.
# Rooms of one floor never see each other.
#   room, its public headers, what it may include
TABLE = [
    # From the command line to a run, a plan or an export.
    [("main", "", "train generate/ show/ tune export/ plan/ config/ evaluate/ checkpoint/ agreement/ liveness/ engine weights/ trace strategies "
                  "models loading/ datasets text store optimizers formats comm memory io/ unit ops base/")],
    # A training run.
    [("train", "trainer",
      "generate/ tune/ plan/ config/ evaluate/ checkpoint/ agreement/ liveness/ engine/ weights/ trace/ strategies models loading/ datasets "
      "pictures text store optimizers formats comm memory io/ unit ops/ base/")],
    # --generate, --evaluate, and generation at validations.
    [("generate", "",
      "plan/ config/ evaluate/ checkpoint/ agreement/ liveness/ engine/ weights/ trace/ strategies models/ loading/ datasets/ pictures/ "
      "text/ store optimizers formats comm memory io/ unit ops/ base/")],
    # --show: the samples of a run as its loader makes them.
    [("show", "",
      "config/ agreement liveness/ engine/ weights trace strategies models loading/ datasets pictures text store optimizers formats comm memory io unit ops "
      "base/")],
    # Timings on the machine before a run.
    [("tune", "",
      "plan/ config checkpoint agreement liveness engine/ weights/ trace strategies models loading datasets pictures text store "
      "optimizers formats comm memory io unit ops/ base/"),
     # --export.
     ("export", "",
      "config checkpoint/ agreement/ liveness/ engine/ weights/ trace strategies models loading datasets pictures text store "
      "optimizers formats comm memory io/ unit ops/ base/")],
    [("plan", "",
      "config checkpoint/ agreement/ liveness engine/ weights/ trace/ strategies models loading/ datasets pictures text store "
      "optimizers formats comm memory io/ unit ops/ base/")],
    # The run file. Config is composed of the settings of the rooms below, which never see it.
    [("config", "config config_rules",
      "agreement/ liveness engine/ weights trace strategies models loading datasets pictures text store optimizers formats comm memory io/ "
      "unit ops base/")],
    # Scores of texts: pure functions of texts and references.
    [("evaluate", "evaluate", "text/ io/ unit ops base/")],
    # These rooms write no trace, but the engine below them does.
    [("checkpoint", "",
      "agreement/ liveness/ engine/ weights/ trace strategies models loading datasets pictures text store optimizers formats comm memory "
      "io/ unit ops/ base/")],
    # Equality of inputs on all ranks; the folders and files of runs: owners, locks, what may be removed.
    [("agreement", "run_settings",
      "liveness/ engine/ weights/ trace/ strategies models loading datasets pictures text store optimizers formats comm memory io/ unit "
      "ops/ base/")],
    # Which ranks are alive, and stop requests.
    [("liveness", "", "comm io unit ops/ base/")],
    [("engine", "engine_settings",
      "weights/ trace/ strategies models/ loading/ datasets/ pictures text store optimizers formats comm memory io/ unit ops/ base/")],
    [("weights", "weight_settings", "strategies models pictures store optimizers formats comm memory io/ unit ops/ base")],
    # Observes units and their collectives, which models and strategies report; knows no run file.
    [("trace", "trace", "strategies models store optimizers formats comm memory io/ unit ops/ base")],
    # Knows no model, run file or backend.
    [("strategies", "strategy", "store optimizers formats comm memory unit ops base")],
    # Knows no comm, strategy, optimizer or backend; loading knows no model.
    [("models", "model family fp8_products", "pictures/ memory io/ unit ops base"),
     ("loading", "loading prompts", "datasets/ pictures/ text/ io/ unit ops/ base")],
    [("datasets", "datasets", "pictures/ text/ io/ unit ops base")],
    [("text", "text", "io/ unit ops base"),
     ("pictures", "pictures", "io/ unit ops base")],
    [("store", "store", "optimizers formats memory unit ops base")],
    [("optimizers", "optimizer optimizer_names", "formats unit ops base")],
    [("formats", "format", "ops base")],
    # NCCL and peer memory need CUDA's streams and checks of errors.
    [("comm", "comm activity control_channel", "cuda/ ops/ base")],
    [("memory", "arena host_activations", "ops/ base/")],
    # Tensors in files have dtypes and shapes too.
    [("io", "checkpoint", "ops base/")],
    [("cuda", "", "ops/ base/"),
     ("cpu", "", "ops/ base/")],
    # Units and batches consist of tensors.
    [("unit", "unit batch", "ops base")],
    [("ops", "device monitor tensor ops dropout linear_ops decode_ops patch_ops head_norm relative_bias philox", "base")],
    [("base", "choices error key_locations rank_operation tokenizer_rules shipped_files version", "")],
]

# Files outside of the rooms' folders.
LOOSE_FILES = {"src/main.cpp": "main",
               "src/no_cuda.cpp": "comm"}  # replaces src/cuda and NCCL in builds without CUDA

# The largest number of files in a folder of these rooms, so that a reader finds the way at once.
MOST_FILES = 20
SMALL_ROOMS = ("train generate show tune export plan evaluate checkpoint agreement liveness engine weights loading trace models memory store "
               "formats base").split()

# Vendor headers: a pattern, the files that may include them, and their description in messages.
VENDORS = [
    (r"(cuda|cublas|cudnn|cupti|cufft|curand|cusparse|cusolver|nvml|nvtx|nvToolsExt|nvrtc|device_launch|"
     r"cooperative_groups|driver_types|vector_types|mma\.h|sm_|cub/|thrust/|cute/|cutlass/)",
     r"src/(cuda/|comm/(nccl|peer_)[^/]*$)", "src/cuda/, src/comm/nccl.cpp and src/comm/peer_*"),
    (r"nccl", r"src/comm/nccl\.cpp$", "src/comm/nccl.cpp"),
    (r"(mpi|mpi-ext)\.h$", r"src/comm/", "src/comm/"),
    (r"(hdf5|hdf5_hl|H5[A-Za-z]*)\.h$", r"src/(io|trace)/", "src/io/ and src/trace/"),
    (r"yaml-cpp/", r"src/config/[a-z_]*\.cpp$", "src/config/*.cpp"),
    (r"(sentencepiece_[a-z_]*|pcre2|utf8proc)\.h$", r"src/text/", "src/text/"),
    (r"(jpeglib\.h|png\.h|webp/)", r"src/pictures/", "src/pictures/"),
    (r"(cblas|openblas.*|nlohmann/.*)(\.h|\.hpp)$", r"src/", "src/"),
]

# The texts of Config, by what they are. Every other key is a number, a switch, or an enum (blipft/choices.h).
TEXT_KEYS = {
    "path": "model.path adapter.path data.path data.val_path data.pictures checkpoint.path output.path generate.path",
    # names of parameter groups, modules, keys of records, optimizers and metrics
    "name": "model.freeze model.quantize_groups adapter.targets train.matmul_exclude data.keys train.optim evaluate.metrics",
    "text of the user": "data.chat_date data.prompt_template evaluate.ignore_before generate.prompt generate.stop",
}
SECTIONS = "model adapter data train parallel checkpoint generate evaluate trace output".split()
# Sections of Config, which the rooms declare, and the section of their other parts.
SECTION = re.compile(r"^struct (\w+)(?: : [\w, ]+)? \{(.*?)^\};", re.M | re.S)
PARTS = {"RecordSettings": "data", "TextKeys": "data", "OptimizerSettings": "train", "LearningRateSettings": "train",
         "StepsSection": "train"}
TEXT_MEMBER = re.compile(r"^  std::(?:string|vector<std::string>|map<[^;]*>) (\w+)", re.M)
SETTING_COMPARED = re.compile(r'\b(' + "|".join([*SECTIONS, "steps"]) + r')_?(?:\(\))?(?:\.|->)(\w+)(?:\.text)?\s*[!=]=\s*"')

# Code with hidden effects: a pattern, the files that may contain it, and the reason against it.
TRICKS = [
    (r"(pre)?init_array|(gnu::|__)constructor\b|\(\(constructor", r"$^", "runs before main(); call it from main()"),
    (r"\b(execl[pe]?|execvp?e?|execvpe|execveat|fexecve|posix_spawnp?)\(", r"$^",
     "executes a program; document what its user is to set"),
    (r"[\"'](opal|ompi|orte|mca|PMPI|pmix)_\w+[\"']", r"$^",
     "a symbol inside of an MPI library; use functions of MPI and documented parameters"),
    (r"bit_cast<\s*(const )?(std::)?u?(int|float|double)|memcpy\(&\w+, &\w+,",
     r"src/(ops|formats|cuda)/|src/pictures/image_orientation\.cpp$|src/datasets/imagefolder\.cpp$",
     "reads a number's bits as another type; only code of number formats may"),
]

COMMENT = re.compile(r"//.*")
# Only files of FAMILIES name model families. FAMILY_WORDS hold names of chat formats, some of which are the same words.
FAMILIES = "src/models/"
FAMILY_WORDS = {"src/config/config_schema.cpp", "src/text/chat_formats.cpp"}
MODEL_TYPE = re.compile(r'\.model_type = "([^"]+)"|decoder_spec\("([^"]+)"')

INCLUDE = re.compile(r'\s*#\s*include\s*[<"]([^>"]+)[>"]')
LINEAR_OP = re.compile(r"[.>]linear_(forward|backward_input|backward_weight)\(")


class House:
    """The parsed table."""

    def __init__(self):
        self.rooms, self.header_rooms, self.may, self.private = [], {}, {}, {}
        for floor in reversed(TABLE):
            below = list(self.rooms)
            for room, headers, may in floor:
                named = [name.rstrip("/") for name in may.split()]
                wrong = [name for name in named if name not in below]
                if wrong:
                    raise SystemExit(f"layering: the table's line of {room} names {', '.join(wrong)}, not below it")
                self.may[room] = {room, *named}
                self.private[room] = {room, *(name[:-1] for name in may.split() if name.endswith("/"))}
                for header in headers.split():
                    if header in self.header_rooms:
                        raise SystemExit(f"layering: the table has {header}.h twice")
                    self.header_rooms[header] = room
                self.rooms.append(room)

    def room_of(self, path):
        """Returns the room of a file "src/..." or "include/...", or None."""
        if path in LOOSE_FILES:
            return LOOSE_FILES[path]
        parts = path.split("/")
        if parts[0] == "include":
            return self.header_rooms.get(parts[-1].removesuffix(".h"))
        return parts[1] if len(parts) > 2 and parts[1] in self.rooms else None


class Layering:
    def __init__(self, house):
        self.house = house
        self.files = {}                    # path -> [(line number, text, included file)], with paths for files of blipft
        self.breaches = []                 # (path, line number, text, why)
        for top in ("include", "src"):
            for folder, _, names in os.walk(top):
                for name in names:
                    if name.endswith((".h", ".cpp", ".cu", ".cuh")):
                        self.files[f"{folder}/{name}"] = []
        for path in self.files:
            self.read(path)

    def read(self, path):
        with open(path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                include = INCLUDE.match(line)
                if include:
                    self.files[path].append((number, line.strip(), self.target_of(path, include[1])))
                elif (path.startswith("src/models/") and LINEAR_OP.search(line)
                      and not re.match(r"src/models/blocks/linear_[a-z_]*\.cpp$", path)):
                    self.breaches.append((path, number, line.strip(), "models multiply through LinearLayer; only "
                                          "src/models/blocks/linear_*.cpp may call it"))

    def target_of(self, path, name):
        """"src/...", "include/...", or the name itself where it is no file of ours."""
        for place in (os.path.normpath(f"{os.path.dirname(path)}/{name}"), f"src/{name}", f"include/{name}"):
            if os.path.normpath(place) in self.files:
                return os.path.normpath(place)
        # A file of blipft that does not exist yet.
        if name.startswith("blipft/"):
            return f"include/{name}"
        return f"src/{name}" if "/" in name and name.split("/")[0] in self.house.rooms else name

    @staticmethod
    def is_ours(target):
        return target.startswith(("src/", "include/"))

    def why_not(self, path, target):
        """Returns why `path` may not include `target`, or "" if it may."""
        room = self.house.room_of(path)
        if not self.is_ours(target):
            for names, allowed, where in VENDORS:
                if re.match(names, target) and not re.match(allowed, path):
                    return f"only {where} may include it"
            if path.startswith("include/") and re.search(r"[./]", target):
                return "a public header includes only blipft/ and the standard library"
            return ""
        if path.startswith("include/") and not target.startswith("include/"):
            return "a public header includes only blipft/ and the standard library"
        other = self.house.room_of(target)
        if room is None or other is None:
            return "" if room is None else f"{target} is in no room of the table"
        if other not in self.house.may[room]:
            below = self.house.rooms.index(other) < self.house.rooms.index(room)
            return f"{room}/ may not include from {other}/" + ("" if below else ", which is not below it")
        if target.startswith("src/") and other not in self.house.private[room]:
            return f"{room}/ may include public headers of {other}/ alone"
        return ""

    def reached(self, path, target):
        """Returns the headers on the way from `target` to the first that the room of `path` may not include; [] if there is none.

        Ways through an include that is a breach itself, or through the room's own headers, are reported there.
        """
        room = self.house.room_of(path)
        ways, seen = [[target]], {target}
        while ways:
            way = ways.pop(0)
            other = self.house.room_of(way[-1])
            if other not in self.house.may[room]:
                return way
            if other == room:
                continue
            for _, _, further in self.files.get(way[-1], []):
                if self.is_ours(further) and further not in seen and not self.why_not(way[-1], further):
                    seen.add(further)
                    ways.append([*way, further])
        return []

    def check_includes(self):
        for path, includes in self.files.items():
            room = self.house.room_of(path)
            if room is None:
                self.breaches.append((path, 1, "", "is in no room of the table in tools/layering.py"))
                continue
            for number, text, target in includes:
                why = self.why_not(path, target)
                if not why and self.is_ours(target):
                    way = self.reached(path, target)
                    if way:
                        why = (f"{room}/ reaches {self.house.room_of(way[-1])}/, which its line does not name: "
                               + " -> ".join(way))
                if why:
                    self.breaches.append((path, number, text, why))

    def check_cycles(self):
        done, way = set(), []

        def visit(path):
            way.append(path)
            for number, text, target in self.files[path]:
                if target in way:
                    round_trip = [*way[way.index(target):], target]
                    self.breaches.append((path, number, text, "a cycle: " + " -> ".join(round_trip)))
                elif target in self.files and target not in done:
                    visit(target)
            done.add(way.pop())

        for path in sorted(self.files):
            if path not in done:
                visit(path)

    def check_sizes(self):
        folders = [os.path.dirname(path) for path in self.files]
        for folder in sorted(set(folders)):
            count = folders.count(folder)
            if count > MOST_FILES and folder.startswith(tuple(f"src/{room}" for room in SMALL_ROOMS)):
                self.breaches.append((folder, count, "", f"files are more than the {MOST_FILES} of a room"))

    def check_lines(self):
        """Only src/config/ compares settings with words, no path is shortened without looking at links, and no line is a trick."""
        for path in self.files:
            with open(path, encoding="utf-8") as lines:
                for number, text in enumerate(lines, 1):
                    if "lexically_normal" in text:
                        self.breaches.append((path, number, text.strip(), "x/.. is not nothing if x is a link; "
                                              "io::absolute_path() of io/paths.h resolves it as the system does"))
                    code = COMMENT.sub("", text)
                    for looks, allowed, why in TRICKS:
                        if re.search(looks, code) and not re.match(allowed, path):
                            self.breaches.append((path, number, text.strip(), why))
                    if SETTING_COMPARED.search(text) and not path.startswith("src/config/"):
                        self.breaches.append((path, number, text.strip(),
                                              "compares a setting with a word; use its enum"))

    def check_families(self):
        """Only src/models/ names a family. A name is the stem of a model_type ("gemma" of "gemma3_text"), alone or followed by a
        digit or a dash ("gemma2", "blip-2"), or a class of transformers that begins with the stem and is no tokenizer.
        """
        stems = set()
        for path in self.files:
            if path.startswith(FAMILIES):
                with open(path, encoding="utf-8") as file:
                    for names in MODEL_TYPE.findall(file.read()):
                        stems.add(re.match(r"t5|[a-z]+", "".join(names))[0])
        if not stems:
            return
        name = re.compile(r'"((?:' + "|".join(sorted(stems)) + r')(?:[-_.0-9][-\w.]*)?|(?:'
                          + "|".join(sorted(re.escape(stem.capitalize()) for stem in stems)) + r')\w*(?<!Tokenizer))"')
        for path in self.files:
            if path.startswith(FAMILIES) or path in FAMILY_WORDS:
                continue
            with open(path, encoding="utf-8") as lines:
                for number, text in enumerate(lines, 1):
                    if name.search(re.sub(r"//.*", "", text)):
                        self.breaches.append((path, number, text.strip(), "names a model family; put what differs between families "
                                              "into FamilySpec of blipft/family.h"))

    def check_texts(self):
        """Config has strings only for the keys of TEXT_KEYS, and for all of these."""
        known, missing = set(" ".join(TEXT_KEYS.values()).split()), {}
        for path in sorted(self.files):
            if not path.startswith("include/"):
                continue
            with open(path, encoding="utf-8") as file:
                text = file.read()
            for section in SECTION.finditer(text):
                name = PARTS.get(section[1], section[1].removesuffix("Section").lower())
                if name not in SECTIONS:
                    continue
                for key in sorted(known):
                    if key.startswith(name + "."):
                        missing.setdefault(key, (path, text.count("\n", 0, section.start()) + 1))
                for member in TEXT_MEMBER.finditer(section[2]):
                    key = f"{name}.{member[1]}"
                    missing[key] = None
                    if key not in known:
                        number = text.count("\n", 0, section.start(2) + member.start()) + 1
                        self.breaches.append((path, number, member[0].strip(), "a text that is no path, name or text of the "
                                              "user; make it an enum (blipft/choices.h), or name it in TEXT_KEYS"))
        for key, place in missing.items():
            if place:
                self.breaches.append((*place, key, "TEXT_KEYS names it, and there is no such text"))

    def check(self):
        self.check_includes()
        self.check_cycles()
        self.check_sizes()
        self.check_lines()
        self.check_texts()
        self.check_families()
        return [f"{path}:{number}: {text}  -- {why}" for path, number, text, why in sorted(self.breaches)]


def breaches():
    return Layering(House()).check()
