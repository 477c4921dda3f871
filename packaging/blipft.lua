-- Module file for Lmod. make install puts it into PREFIX/share/modulefiles/blipft/VERSION.lua: `module use PREFIX/share/modulefiles`.
-- Add what your site's blipft was built with: depends_on("gcc", "cuda", "nccl", "openmpi", "hdf5").
local prefix = myFileName():gsub("/share/modulefiles/.*$", "")

whatis("Name: blipft")
whatis("Version: " .. myModuleVersion())
whatis("Description: fine-tunes vision-language and language models on one GPU or many")
help([[blipft --recipes lists run files; blipft --help and man blipft explain them.]])

conflict("blipft")
prepend_path("PATH", prefix .. "/bin")
prepend_path("MANPATH", prefix .. "/share/man")
setenv("BLIPFT_JOBS", prefix .. "/share/blipft/jobs")
