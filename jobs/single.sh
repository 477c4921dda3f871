#!/bin/bash
# One GPU: Experiment 1 of the tutorial.    sbatch jobs/single.sh [section.key=value ...]
#SBATCH --job-name=blipft-single
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.log
#SBATCH --signal=TERM@60
##SBATCH --partition=gpu
##SBATCH --account=project

# 60 s before the time limit the ranks get SIGTERM. The trace is readable whenever a run is ended.

set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}"  # submit from the repository, where ./blipft is

# What ./blipft was built with; names differ from cluster to cluster.
# module purge
# module load gcc cuda openmpi hdf5

output=runs/single-${SLURM_JOB_ID:-$(date +%Y%m%d-%H%M%S)}
mkdir -p "$output"

# Says whether the job fits the GPU before it takes it.
./blipft --plan --ranks 1 inputs/single.yaml "$@"

exec srun --mpi=pmix ./blipft inputs/single.yaml output.path="$output" "$@"
# Without PMIx in Slurm:
# exec mpirun -np 1 ./blipft inputs/single.yaml output.path="$output" "$@"
