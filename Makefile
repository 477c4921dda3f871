# blipft's build.
#
#   make              ./blipft (with CUDA when nvcc is found; CUDA=0 or CUDA=1 force it)
#   make check        builds and passes every test
#   make check-smoke  the rules of the code, the quick tests and one short run: a minute behind the build
#   make check-gpu    those alone that need a GPU: what is compared on it, its graphs, its runs (CUDA=1)
#   make check-slurm  the tests on a Slurm cluster of two nodes, which it starts on this machine (as root, on Debian and
#                     Ubuntu, it also installs slurm and munge; SKIPPED where it cannot)
#   make demo         trains a small BLIP-2 on pictures it draws itself; MODEL=llama: a small LLaMA on instructions
#   make bench        times the configurations of the README's table on this machine's GPUs; ARGS="--quick" and others
#                     are tools/bench.py's options; ARGS=--ops times GPU operations
#   make op_bench     builds the bench of GPU operations: $(BUILD)/op_bench
#   make gemm_bench   builds the bench of the search for matrix product algorithms: $(BUILD)/gemm_bench
#   make fuzz         builds the fuzz targets of test/fuzz/ with clang (tools/fuzz.sh runs them): build/fuzz
#   make layering     checks who includes whom, definitions and lengths
#   make setup        installs what is missing (make demo and make check do it too)
#   make install      installs program, tools, recipes, job scripts and pages: PREFIX=/opt/blipft [DESTDIR=...]
#   make uninstall    removes what it installed there and nobody changed
#   make dist         writes a source package, blipft-VERSION.tar.gz, which builds without git
#   make clean
#
# Variables: MPICXX (the MPI's compiler; default mpicxx), CUDA=0|1, CUDA_HOME, CUDA_ARCH, HDF5_ROOT (a folder with include/ and lib/), BUILD (default build/cpu or
# build/cuda), OPT (default -O3), TEST_OPT (of the tests' own code; default -O0, which compiles in half the time, and -O1
# where tests compute).
# SAN=1 builds with the address and undefined behaviour sanitizers (build/san), SAN=thread with that of data races
# (build/tsan): make check SAN=1. Without CUDA.
# PCH=1 lets g++ read the standard library's headers once instead of in every file, which takes about a quarter off a first
# build, and hides includes that a file forgot. PCH=0 finds those: the default where ccache is, with SAN, and in .ci/run.
# CUDA_ARCH: the GPUs to build for, as compute capabilities: 90a (the default: H100, H200), 80 (A100), 100 (B200), or
# several, "80 90a". 90a has code for these GPUs alone; the others are taken by later GPUs too, through the driver.

SHELL := /bin/bash
comma := ,
.DEFAULT_GOAL := blipft
.DELETE_ON_ERROR:

NVCC_FOUND := $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))
SAN ?=
ifneq ($(SAN),)
ifeq ($(filter 1 thread,$(SAN)),)
$(error SAN: found "$(SAN)", expected 1 (address and undefined behaviour) or thread (data races))
endif
# A GPU's driver maps memory where the sanitizers keep theirs.
override CUDA := 0
BUILD ?= build/$(if $(filter thread,$(SAN)),tsan,san)
OPT ?= -O1
SAN_FLAGS := -fno-omit-frame-pointer \
  $(if $(filter thread,$(SAN)),-fsanitize=thread,-fsanitize=address$(comma)undefined -fno-sanitize-recover=all)
endif
CUDA ?= $(if $(NVCC_FOUND),1,0)
# A first build that takes CUDA because nvcc is there, on a machine without a GPU: right on the login node of a cluster, and a
# surprise on a laptop, since kernels take long to compile.
GPUS_HERE := $(wildcard /dev/nvidia[0-9]* /dev/dxg)
ifeq ($(origin CUDA) $(CUDA) $(GPUS_HERE),file 1 )
NO_GPU_NOTICE = $(if $(wildcard $(BUILD)/blipft),,no_gpu_notice)
endif
CUDA_HOME ?= $(if $(NVCC_FOUND),$(patsubst %/bin/nvcc,%,$(realpath $(NVCC_FOUND))),/usr/local/cuda)
CUDA_ARCH ?= 90a
BUILD ?= build/$(if $(filter 1,$(CUDA)),cuda,cpu)
OPT ?= -O3
CXX := $(shell command -v g++ || echo c++)
ifneq ($(shell command -v ccache 2>/dev/null),)
CCACHE ?= ccache
endif
IS_GCC := $(shell $(CXX) --version 2>/dev/null | grep -o 'Free Software Foundation')
PCH ?= $(if $(CCACHE)$(SAN),0,$(if $(IS_GCC),1,0))

VERSION := 0.9.0
# A source package has the commit in a file.
GIT_COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null || cat commit 2>/dev/null || echo unknown)

# What an MPI's compiler adds: Open MPI's says it to --showme, Cray's CC to --cray-print-opts, MPICH's and Intel's to -show.
MPICXX ?= mpicxx
mpi_compile = -DOMPI_SKIP_MPICXX $(patsubst -I%,-isystem %,$(filter -I% -D%,$(shell $1 --showme:compile 2>/dev/null || \
  { echo -DMPICH_SKIP_MPICXX; $1 --cray-print-opts=cflags 2>/dev/null || $1 -show 2>/dev/null; })))
mpi_link = $(filter -L% -l% -Wl% -pthread %.so %.a,$(shell \
  $1 --showme:link 2>/dev/null || $1 --cray-print-opts=libs 2>/dev/null || $1 -show 2>/dev/null))
MPI_FLAGS := $(call mpi_compile,$(MPICXX))
MPI_LIBS := $(call mpi_link,$(MPICXX))
ifneq ($(HDF5_ROOT),)
ifeq ($(wildcard $(HDF5_ROOT)/include/hdf5.h),)
$(error HDF5_ROOT: found "$(HDF5_ROOT)", which has no include/hdf5.h; expected the folder that HDF5 is installed in)
endif
HDF5_LIB_DIR := $(firstword $(foreach d,lib lib64,$(if $(wildcard $(HDF5_ROOT)/$d/libhdf5.*),$(HDF5_ROOT)/$d)))
ifeq ($(HDF5_LIB_DIR),)
$(error HDF5_ROOT: found "$(HDF5_ROOT)", which has no lib/libhdf5.so; expected the folder that HDF5 is installed in)
endif
HDF5_FLAGS := -I$(HDF5_ROOT)/include
HDF5_LIBS := -L$(HDF5_LIB_DIR) -Wl,-rpath,$(abspath $(HDF5_LIB_DIR)) -lhdf5
else
HDF5_DIR := $(firstword $(wildcard /usr/include/hdf5/serial))
HDF5_FLAGS := $(if $(HDF5_DIR),-I$(HDF5_DIR))
HDF5_LIBS := $(if $(HDF5_DIR),-lhdf5_serial,-lhdf5)
endif
BLAS_FLAGS := $(shell pkg-config --cflags openblas 2>/dev/null)
# The patterns and the Unicode of tokenizers.
TEXT_FLAGS := $(shell pkg-config --cflags libpcre2-8 libutf8proc 2>/dev/null)
TEXT_LIBS := $(or $(shell pkg-config --libs libpcre2-8 libutf8proc 2>/dev/null),-lpcre2-8 -lutf8proc)
BLAS_LIBS := $(or $(shell pkg-config --libs openblas 2>/dev/null),-lopenblas)

# The oldest processor that the program runs on. ARM's char has no sign by default.
PROCESSOR := $(shell $(CXX) -dumpmachine | cut -d- -f1)
MARCH ?= $(if $(filter aarch64,$(PROCESSOR)),armv8.2-a,x86-64-v3)
CXXFLAGS := -std=c++20 $(OPT) $(SAN_FLAGS) -g1 -march=$(MARCH)$(if $(filter aarch64,$(PROCESSOR)), -fsigned-char) -fopenmp -fPIC -Wall -Wextra -Wshadow -Wno-unknown-pragmas -Wno-missing-field-initializers -Wno-restrict
ifneq ($(IS_GCC),)
# g++ collects its garbage from half a GiB on, which few files reach: a tenth off their time, to the same code.
CXXFLAGS += --param=ggc-min-heapsize=524288
endif
CPPFLAGS := -Iinclude -Isrc -Itest -Itools $(MPI_FLAGS) $(HDF5_FLAGS) $(BLAS_FLAGS) $(TEXT_FLAGS)
# WebP pictures are read where libwebp is.
WEBP := $(shell $(CXX) -x c++ -E -include webp/demux.h /dev/null > /dev/null 2>&1 && echo 1)
WEBP_LIBS := $(if $(WEBP),-lwebpdemux -lwebp)
LDLIBS := -Wl,--build-id=sha1 $(MPI_LIBS) $(HDF5_LIBS) $(BLAS_LIBS) -lyaml-cpp -ljpeg -lpng -lz $(WEBP_LIBS) -lsentencepiece $(TEXT_LIBS) -ldl -lpthread
ifeq ($(CUDA),1)
ifneq ($(filter-out 8% 9% 1%,$(CUDA_ARCH))$(if $(strip $(CUDA_ARCH)),,none),)
$(error CUDA_ARCH: found "$(CUDA_ARCH)", expected one or more of 80, 86, 89, 90a, 100, ...: blipft needs compute capability 8.0)
endif
# Machine code for each, and PTX, which the driver compiles for later GPUs, except of those with a suffix: no other GPU
# takes that.
GENCODE := $(foreach a,$(CUDA_ARCH),-gencode=arch=compute_$(a),code=$(if $(filter %a %f,$(a)),sm_$(a),"[sm_$(a)$(comma)compute_$(a)]"))
NVCC := $(CUDA_HOME)/bin/nvcc
CPPFLAGS += -DBLIPFT_CUDA=1 -I$(CUDA_HOME)/include $(addprefix -I,$(wildcard $(CUDA_HOME)/extras/CUPTI/include))
NVCCFLAGS := -std=c++20 $(OPT) -lineinfo $(GENCODE) --expt-relaxed-constexpr --extended-lambda -Xcompiler -fPIC,-fopenmp -Xcudafe --diag_suppress=177 -DBLIPFT_CUDA_ARCH='"$(strip $(CUDA_ARCH))"'
CUDA_LIB_DIR := $(firstword $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/targets/$(if $(filter aarch64,$(PROCESSOR)),sbsa,x86_64)-linux/lib))
LDLIBS += -L$(CUDA_LIB_DIR) -Wl,-rpath,$(CUDA_LIB_DIR) -lcublasLt -lcudart -lnccl
endif

SOURCES := src/no_cuda.cpp $(filter-out src/cuda/% src/comm/nccl.cpp src/comm/peer_%,$(wildcard src/*/*.cpp src/*/*/*.cpp src/models/*/*/*.cpp))
ifeq ($(CUDA),1)
SOURCES += $(wildcard src/cuda/*.cpp src/cuda/*.cu src/cuda/*/*.cpp src/cuda/*/*.cu src/comm/nccl.cpp src/comm/peer_*.cpp src/comm/peer_*.cu)
endif
OBJECTS := $(patsubst %,$(BUILD)/%.o,$(SOURCES))
TEST_SOURCES := $(wildcard test/*/*_test.cpp test/fuzz/*_fuzz.cpp)
TEST_OBJECTS := $(patsubst %,$(BUILD)/%.o,$(TEST_SOURCES) test/support/test_main.cpp)
OP_BENCH_OBJECTS := $(patsubst %,$(BUILD)/%.o,tools/op_bench.cpp $(wildcard tools/op_bench/*.cpp))

blipft: $(BUILD)/blipft
	@ln -sfn $(BUILD)/blipft blipft

$(BUILD)/blipft: $(BUILD)/src/main.cpp.o $(BUILD)/libblipft.a
	$(CXX) -fopenmp $(SAN_FLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/op_bench: $(OP_BENCH_OBJECTS) $(BUILD)/libblipft.a
	$(CXX) -fopenmp $(SAN_FLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/gemm_bench: $(BUILD)/tools/gemm_bench.cpp.o $(BUILD)/libblipft.a
	$(CXX) -fopenmp $(SAN_FLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/tests: $(TEST_OBJECTS) $(BUILD)/libblipft.a
	$(CXX) -fopenmp $(SAN_FLAGS) -o $@ $^ $(LDLIBS)

# The tests under another MPI: only src/comm and its tests include mpi.h, the other objects are the same.
OTHER_MPICXX ?= mpicxx.mpich
OTHER_OBJECTS := $(patsubst %,$(BUILD)/other_mpi/%.o,$(filter src/comm/%.cpp,$(SOURCES)) $(filter test/comm/%,$(TEST_SOURCES)))
$(BUILD)/other_mpi/%.cpp.o: %.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	$(CCACHE) $(CXX) $(CXXFLAGS) $(filter-out $(MPI_FLAGS),$(CPPFLAGS)) $(call mpi_compile,$(OTHER_MPICXX)) -MMD -MP -c -o $@ $<
$(BUILD)/other_mpi/tests: $(OTHER_OBJECTS) $(filter-out $(BUILD)/test/comm/%,$(TEST_OBJECTS)) $(BUILD)/libblipft.a
	$(CXX) -fopenmp $(SAN_FLAGS) -o $@ $^ $(filter-out $(MPI_LIBS),$(LDLIBS)) $(call mpi_link,$(OTHER_MPICXX)) -lpthread
-include $(OTHER_OBJECTS:.o=.d)

$(BUILD)/libblipft.a: $(OBJECTS)
	rm -f $@ && ar rcs $@ $^

$(BUILD)/%.cpp.o: %.cpp $(BUILD)/flags | dependencies $(NO_GPU_NOTICE)
	@mkdir -p $(@D)
	$(CCACHE) $(CXX) $(CXXFLAGS) $(PCH_FLAGS) $(CPPFLAGS) -MMD -MP -c -o $@ $<

# The headers of the standard library that many files include, compiled once. g++ takes $(STANDARD).gch for $(STANDARD)
# where the flags are the same; the tests' are not.
STANDARD_HEADERS := algorithm array atomic charconv chrono cmath condition_variable cstdint cstdio cstdlib cstring \
  deque exception filesystem functional limits map memory mutex numeric optional set span sstream string string_view \
  thread tuple unordered_map utility vector
STANDARD := $(BUILD)/standard.h
ifeq ($(PCH),1)
# The false alarm of g++ 12 that -Wno-restrict silences (a string that grows) comes back under these names.
PCH_WARNINGS := -Wno-stringop-overflow -Wno-stringop-overread -Wno-array-bounds
$(OBJECTS) $(BUILD)/src/main.cpp.o: PCH_FLAGS := -include $(STANDARD) $(PCH_WARNINGS)
$(filter %.cpp.o,$(OBJECTS)) $(BUILD)/src/main.cpp.o: $(STANDARD).gch
endif
$(STANDARD).gch: $(BUILD)/flags | dependencies
	@printf '#include <%s>\n' $(STANDARD_HEADERS) > $(STANDARD)
	$(CXX) $(CXXFLAGS) $(CPPFLAGS) -x c++-header -o $@ $(STANDARD)

$(BUILD)/%.cu.o: %.cu $(BUILD)/flags | dependencies $(NO_GPU_NOTICE)
	@mkdir -p $(@D)
	$(CCACHE) $(NVCC) $(NVCCFLAGS) $(CPPFLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

# Of the tests' own code: cases of these rooms go over large tensors or many weights, or count how often they get around.
COMPUTING_TESTS := $(addprefix $(BUILD)/test/,cpu/% cuda/% fuzz/% ops/% strategies/%)
$(filter-out $(COMPUTING_TESTS),$(TEST_OBJECTS)): CXXFLAGS += $(or $(TEST_OPT),-O0)
$(filter $(COMPUTING_TESTS),$(TEST_OBJECTS)): CXXFLAGS += $(or $(TEST_OPT),-O1)

# Only version.cpp knows the release and the commit.
$(BUILD)/src/base/version.cpp.o: private CPPFLAGS += -DBLIPFT_VERSION='"$(VERSION)"' -DBLIPFT_COMMIT='"$(GIT_COMMIT)"'
$(BUILD)/src/base/version.cpp.o: $(BUILD)/commit
$(BUILD)/commit: FORCE
	@mkdir -p $(@D)
	@echo '$(GIT_COMMIT)' | cmp -s - $@ || echo '$(GIT_COMMIT)' > $@

$(BUILD)/src/pictures/image_webp.cpp.o build/fuzz/src/pictures/image_webp.cpp.o: private CPPFLAGS += $(if $(WEBP),-DBLIPFT_WEBP=1)

# Objects depend on the flags they were built with.
BUILD_FLAGS := $(OPT) PCH=$(PCH) $(TEST_OPT) $(SAN_FLAGS) $(CUDA) $(CUDA_HOME) $(CUDA_ARCH) $(MPI_FLAGS)$(addprefix $() ,$(HDF5_ROOT)) $(WEBP_LIBS)
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(BUILD_FLAGS)' | cmp -s - $@ || echo '$(BUILD_FLAGS)' > $@
FORCE:

-include $(OBJECTS:.o=.d) $(TEST_OBJECTS:.o=.d) $(BUILD)/src/main.cpp.d $(OP_BENCH_OBJECTS:.o=.d) $(BUILD)/tools/gemm_bench.cpp.d

# The fuzz targets: what they reach, and each target with libFuzzer's main. clang from 16 on knows the C++20 that is needed.
FUZZ_CXX := $(lastword $(sort $(wildcard $(addprefix /usr/bin/clang++-,16 17 18 19 20 21))))
FUZZ_OPT ?= -O1
FUZZ_SAN ?= address,undefined
FUZZ_FLAGS := -std=c++20 $(FUZZ_OPT) -gline-tables-only -fno-omit-frame-pointer -march=x86-64-v3 -DBLIPFT_LIBFUZZER \
  -fsanitize=$(FUZZ_SAN) $(if $(findstring undefined,$(FUZZ_SAN)),-fno-sanitize-recover=undefined) \
  -Wall -Wextra -Wshadow -Wno-unknown-pragmas -Wno-unknown-attributes
FUZZ_TARGETS := $(patsubst test/fuzz/%_fuzz.cpp,build/fuzz/%,$(wildcard test/fuzz/*_fuzz.cpp))
FUZZ_OBJECTS := $(patsubst %,build/fuzz/%.o,$(filter-out src/io/hdf5_%,$(wildcard src/io/*.cpp src/config/*.cpp \
  src/text/*.cpp src/pictures/*.cpp src/datasets/*.cpp src/loading/*.cpp src/evaluate/*.cpp src/models/families/*/*_config.cpp)))
build/fuzz/%.cpp.o: %.cpp
	@mkdir -p $(@D)
	$(CCACHE) $(FUZZ_CXX) $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link $(CPPFLAGS) -MMD -MP -c -o $@ $<
build/fuzz/libfuzz.a: $(FUZZ_OBJECTS)
	rm -f $@ && ar rcs $@ $^
$(FUZZ_TARGETS): build/fuzz/%: build/fuzz/test/fuzz/%_fuzz.cpp.o build/fuzz/libfuzz.a
	$(FUZZ_CXX) $(FUZZ_FLAGS) -fsanitize=fuzzer -o $@ $^ -lyaml-cpp -ljpeg -lpng -lz $(WEBP_LIBS) -lsentencepiece $(TEXT_LIBS)
-include $(FUZZ_OBJECTS:.o=.d) $(FUZZ_TARGETS:build/fuzz/%=build/fuzz/test/fuzz/%_fuzz.cpp.d)
.PRECIOUS: build/fuzz/%.cpp.o

.PHONY: fuzz
fuzz:
	@if [ -z "$(FUZZ_CXX)" ]; then echo "make fuzz: no clang++-16 or later: apt install clang-16 libclang-rt-16-dev" >&2; exit 1; fi
	@$(MAKE) $(FUZZ_TARGETS)

# Names each missing dependency with the package that has it.
.PHONY: dependencies
dependencies:
	@MPICXX="$(MPICXX)" tools/setup.sh --check CUDA=$(CUDA)

.PHONY: no_gpu_notice
no_gpu_notice:
	@echo "note: nvcc is here and no GPU: this builds for GPUs elsewhere, and compiling their kernels takes ten minutes or more on two cores; make CUDA=0 builds for CPUs alone"

.PHONY: setup
setup:
	@tools/setup.sh

.PHONY: check
check: setup
	@tools/setup.sh --browser > /dev/null || true
	@tools/setup.sh --mpich || true
	@tools/check.sh CUDA=$(CUDA) BUILD=$(BUILD) $(if $(SAN),SAN=$(SAN)) $(if $(SCRIPTS),SCRIPTS=$(SCRIPTS))

.PHONY: check-smoke
check-smoke: setup
	@tools/check.sh CUDA=$(CUDA) BUILD=$(BUILD) SMOKE=1

.PHONY: check-gpu
check-gpu: setup
	@tools/check.sh CUDA=1 BUILD=$(or $(filter-out build/cpu,$(BUILD)),build/cuda) GPU=1

.PHONY: check-slurm
check-slurm: setup
	@tools/check_slurm.sh CUDA=$(CUDA) BUILD=$(BUILD)

.PHONY: demo
demo: setup
	@tools/demo.sh CUDA=$(CUDA) MODEL=$(or $(MODEL),blip2)

.PHONY: bench
bench: blipft $(if $(filter 1,$(CUDA)),$(BUILD)/op_bench)
	@$$(tools/setup.sh --python) tools/bench.py --blipft $(BUILD)/blipft --op-bench $(BUILD)/op_bench $(ARGS)

.PHONY: op_bench
op_bench: $(BUILD)/op_bench

.PHONY: gemm_bench
gemm_bench: $(BUILD)/gemm_bench

.PHONY: layering
layering:
	@tools/code_rules.py

# For all users of a machine; PREFIX may be read-only afterwards.
PREFIX ?= /usr/local
.PHONY: install
install: blipft
	@tools/install.sh $(BUILD)/blipft "$(PREFIX)" "$(DESTDIR)"

.PHONY: uninstall
uninstall:
	@tools/install.sh --uninstall "$(PREFIX)" "$(DESTDIR)"

# A source package that builds without git.
.PHONY: dist
dist: $(BUILD)/commit
	git archive --format=tar.gz --prefix=blipft-$(VERSION)/ --add-file=$(BUILD)/commit -o blipft-$(VERSION).tar.gz HEAD

.PHONY: clean
clean:
	rm -rf build blipft
