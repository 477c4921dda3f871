#%Module1.0
# Module file for Environment Modules (Tcl). make install puts it into PREFIX/share/modulefiles/blipft/VERSION:
# `module use PREFIX/share/modulefiles`. Add what your site's blipft was built with: prereq gcc cuda nccl openmpi hdf5
regsub {/share/modulefiles/.*$} [file normalize $ModulesCurrentModulefile] {} prefix

proc ModulesHelp {} { puts stderr "blipft --recipes lists run files; blipft --help and man blipft explain them." }
module-whatis "blipft: fine-tunes vision-language and language models on one GPU or many"

conflict blipft
prepend-path PATH $prefix/bin
prepend-path MANPATH $prefix/share/man
setenv BLIPFT_JOBS $prefix/share/blipft/jobs
