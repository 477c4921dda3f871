#!/bin/bash
# CodeLlama 7B on chess games, four GPUs of one node, FSDP.    sbatch jobs/chess.sh [section.key=value ...]
#
#   sbatch --gpus-per-node=8 --ntasks-per-node=8 jobs/chess.sh     the same optimisation on eight: total_batch_size
#   sbatch jobs/chess.sh parallel.strategy=ddp train.act_ckpt=full
#SBATCH --job-name=blipft-chess
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --mem=256G
#SBATCH --time=12:00:00
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

output=runs/chess-${SLURM_JOB_ID:-$(date +%Y%m%d-%H%M%S)}
mkdir -p "$output"

# Says whether the job fits the GPUs before it takes them.
./blipft --plan --ranks "${SLURM_NTASKS:-4}" inputs/chess.yaml "$@"

exec srun --mpi=pmix ./blipft inputs/chess.yaml output.path="$output" "$@"
# Without PMIx in Slurm:
# exec mpirun -np "${SLURM_NTASKS:-4}" --bind-to none ./blipft inputs/chess.yaml output.path="$output" "$@"
