#!/bin/bash
# Four GPUs of one node, FSDP: Experiment 3 of the tutorial.    sbatch jobs/fsdp.sh [section.key=value ...]
#
#   sbatch --gpus-per-node=8 jobs/fsdp.sh       eight GPUs; ranks, CPUs and memory follow
#
# If jobs may not be requeued, a chain of jobs goes on with one run: each starts when the one before it
# was stopped (code 75), and is dropped when that one was done:
#   first=$(sbatch --parsable --no-requeue jobs/fsdp.sh output.path=runs/long)
#   sbatch --no-requeue --dependency=afternotok:$first --kill-on-invalid-dep=yes jobs/fsdp.sh output.path=runs/long
# After another job, that makes its input: sbatch --dependency=afterok:JOB jobs/fsdp.sh ...
#SBATCH --job-name=blipft-fsdp
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-gpu=8
#SBATCH --mem-per-gpu=64G
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@120
##SBATCH --partition=gpu
##SBATCH --account=project

set -euo pipefail
script=$(squeue --noheader --job="${SLURM_JOB_ID:-0}" --format=%o 2> /dev/null || true)  # Slurm runs a copy of this file
source "$(dirname "$(realpath "${script%%.sh*}" 2> /dev/null || realpath "$0")")/common.sh"  # modules, ranks, time limit, going back into the queue

train fsdp @fsdp "$@"
