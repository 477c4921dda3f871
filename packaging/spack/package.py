# Spack recipe. `spack repo create` a repository, copy this file to packages/blipft/package.py in it, then
#   spack install blipft +cuda cuda_arch=90a
from spack.package import *


class Blipft(MakefilePackage, CudaPackage):
    """Fine-tunes vision-language and language models on one GPU or many: MPI, NCCL, cuBLASLt, HDF5."""

    license("Apache-2.0")

    manual_download = True  # `make dist` writes blipft-0.9.0.tar.gz: put it into the folder where spack install is run
    version("0.9.0")

    depends_on("cxx", type="build")
    depends_on("c", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("mpi")
    depends_on("hdf5")
    depends_on("yaml-cpp")
    depends_on("nlohmann-json")
    depends_on("doctest", type="build")
    depends_on("openblas")
    depends_on("libjpeg-turbo")
    depends_on("libpng")
    depends_on("libwebp")
    depends_on("zlib-api")
    depends_on("sentencepiece")
    depends_on("pcre2+jit")
    depends_on("utf8proc")
    depends_on("py-numpy", type="run")
    depends_on("py-h5py", type="run")
    depends_on("py-matplotlib", type="run")
    depends_on("py-pillow", type="run")
    with when("+cuda"):
        depends_on("cuda@12.4:")
        depends_on("nccl")

    def options(self):
        options = [f"CUDA={1 if self.spec.satisfies('+cuda') else 0}", f"HDF5_ROOT={self.spec['hdf5'].prefix}"]
        if self.spec.satisfies("+cuda"):
            options += [f"CUDA_HOME={self.spec['cuda'].prefix}", "CUDA_ARCH=" + " ".join(self.spec.variants["cuda_arch"].value)]
        return options

    def build(self, spec, prefix):
        make(*self.options())

    def install(self, spec, prefix):
        make("install", f"PREFIX={prefix}", *self.options())
