#!/bin/bash
# Four GPUs of one node, FSDP: Experiment 3 of the tutorial.    sbatch jobs/fsdp.sh [section.key=value ...]
#SBATCH --job-name=blipft-fsdp
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --mem=256G
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.log
#SBATCH --signal=TERM@60
##SBATCH --partition=gpu
##SBATCH --account=project

# One rank for each GPU; every rank sees the GPUs of its node and takes its own, so ask for --gpus-per-node and not
# for --gpus-per-task. 60 s before the time limit the ranks get SIGTERM. The trace is readable whenever a run is ended.

set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")/..}"  # submit from the repository, where ./blipft is

# What ./blipft was built with; names differ from cluster to cluster.
# module purge
# module load gcc cuda nccl openmpi hdf5

output=runs/fsdp-${SLURM_JOB_ID:-$(date +%Y%m%d-%H%M%S)}
mkdir -p "$output"

# Says whether the job fits the GPUs before it takes them.
./blipft --plan --ranks 4 inputs/fsdp.yaml "$@"

exec srun --mpi=pmix ./blipft inputs/fsdp.yaml output.path="$output" "$@"
# Without PMIx in Slurm:
# exec mpirun -np 4 --bind-to none ./blipft inputs/fsdp.yaml output.path="$output" "$@"
